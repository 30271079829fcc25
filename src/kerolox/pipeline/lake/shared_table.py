"""A table of Parquet files that several flows write to, and upkeep beside them.

Every commit has the marks of all writers: the last batch of each flow. A writer reads the last commit,
completes it, and writes the next one; if another writer has taken that number, it begins again. So a repeated
batch finds its mark, and no lock is needed.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, ClassVar, Final

import msgspec

from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.errors import KeroloxError, OptionError
from kerolox.pipeline.lake.parquet_table import (
    SAVE_EVERY,
    SAVED,
    Commit,
    ParquetTable,
    TableContinued,
    stored,
)
from kerolox.pipeline.lake.staging import HEAD, OWN_FOLDER, STAGING, remove
from kerolox.pipeline.lake.storage import Storage
from kerolox.pipeline.lake.table_file import LakeFile
from kerolox.pipeline.lake.upkeep import JoinTask, OthersCameFirst
from kerolox.pipeline.lake.written_names import abandoned, joined_path

FORM: Final = "kerolox-table-1"
RECORDS: Final = f"{OWN_FOLDER}/flows"  # of last batches, by older versions
TRIES: Final = 30
PAUSE_S: Final = 0.05
COMMITS_KEPT: Final = 1000  # that readers may still be reading
MARKS_KEPT: Final = 10_000


class SharedCommit(Commit, frozen=True, omit_defaults=True, kw_only=True):
    """One commit of a table that flows write to."""

    LIST: ClassVar[Any] = list[LakeFile]

    files: list[LakeFile] = []
    marks: dict[str, int] = {}  # last batch of each flow, the last changed at the end


class OldRecord(msgspec.Struct, frozen=True):
    """Record of the last batch of a flow, with the moves of its files, by older versions."""

    batch: int
    moves: list[tuple[str, str]]


class SharedTable(ParquetTable[SharedCommit]):
    """Table of Parquet files with the last batch of each flow."""

    def __init__(self, storage: Storage, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(storage, SharedCommit)
        self._clock = clock
        self._published = 0  # last commit whose files are at their places

    def check(self) -> None:
        """Raise OptionError if flows cannot write here."""
        if self.storage.exists(HEAD):
            raise OptionError("path", self.storage.address, "the path of a table; this is an archive")
        self.storage.check_decides()

    # --- marks ----------------------------------------------------------------------------------------

    def mark(self, name: str) -> int | None:
        """Return the last batch of a flow, whose files are at their places then."""
        last = self._completed()
        if last is not None and name in last.marks:
            return last.marks[name]
        try:
            record = msgspec.json.decode(self.storage.read(f"{RECORDS}/{name}.json"), type=OldRecord)
        except FileNotFoundError:
            return None
        self.storage.publish(record.moves)
        return record.batch

    def _completed(self) -> SharedCommit | None:
        """Return the last commit, with its files at their places."""
        for _ in range(TRIES):
            last = self.last()
            if last is None or last.number == self._published:
                return last
            try:
                self.publish(last)
            except TableContinued:
                continue
            self._published = last.number
            return last
        raise self._busy()

    def _busy(self) -> KeroloxError:
        return OthersCameFirst(f"other runs write to {self.storage} all the time: {TRIES} tries failed")

    # --- commits --------------------------------------------------------------------------------------

    def add(self, files: Sequence[LakeFile], name: str, batch: int) -> bool:
        """Add the files of a batch. Returns False if the table has it already."""

        def made(marks: Mapping[str, int]) -> SharedCommit | None:
            if marks.get(name, -1) >= batch:
                return None
            kept = [item for item in marks.items() if item[0] != name][-MARKS_KEPT:]
            return self._made(files, (), {**dict(kept), name: batch})

        return self._change(made)

    def replace(self, gone: Sequence[LakeFile], made: Sequence[LakeFile]) -> None:
        paths = {file.path for file in gone}

        def next_one(marks: Mapping[str, int]) -> SharedCommit:
            if not paths <= self.files().keys():
                raise OthersCameFirst(f"another run has changed the same files of {self.storage}")
            return self._made(made, sorted(paths), marks)

        try:
            self._change(next_one)
        except OthersCameFirst:
            self.discard(made)
            raise
        self.storage.prune({path.rsplit("/", 1)[0] for path in paths if "/" in path})

    def _made(
        self, files: Sequence[LakeFile], removed: Sequence[str], marks: Mapping[str, int]
    ) -> SharedCommit:
        return SharedCommit(
            form=FORM, number=0, at_ms=self._clock.wall_ms(), files=stored(files), removed=list(removed),
            run=f"{random.getrandbits(64):x}", marks=dict(marks),
        )  # fmt: skip

    def _change(self, decide: Callable[[Mapping[str, int]], SharedCommit | None]) -> bool:
        for number in range(TRIES):
            last = self._completed()
            made = decide({} if last is None else last.marks)
            if made is None:
                return False
            made = msgspec.structs.replace(made, number=1 if last is None else last.number + 1)
            try:
                self.write(made)
            except FileExistsError:
                time.sleep(PAUSE_S * random.random() * (number + 1))
                continue
            saved = self._saved()
            if saved > made.number:  # this run stood still while the log went on, and was cut
                raise KeroloxError(f"other runs have continued {self.storage}: start again")
            try:
                self.publish(made)
            except TableContinued:
                pass  # by a writer that has published it first
            self._published = made.number
            if made.number - saved >= SAVE_EVERY:
                self._cut(made.number)
            return True
        raise self._busy()

    def _cut(self, number: int) -> None:
        """Save the list of files, and delete commits and lists that nobody reads any more."""
        self.save(number)
        old = [each for each in self.numbers() if each <= number - COMMITS_KEPT]
        lists = self._numbers(SAVED)[:-2]
        self.storage.delete([*map(self._path, old), *map(self._saved_path, lists)])

    # --- upkeep ---------------------------------------------------------------------------------------

    def known(self) -> dict[str, LakeFile]:
        self._completed()
        return self.files()

    def join_tasks(self, sets: Sequence[Sequence[LakeFile]]) -> list[JoinTask]:
        tasks = []
        for files in sets:
            path = joined_path(files)
            staged = f"{STAGING}/upkeep/{path.rpartition('/')[2]}"
            tasks.append(JoinTask(tuple(files), self.storage, path, staged))
        return tasks

    def discard(self, files: Sequence[LakeFile]) -> None:
        self.storage.delete(file.staged for file in files)

    def remove_orphans(self, keep_ms: int) -> int:
        """Delete files that killed runs wrote a day ago or longer, and return how many there were."""
        now_ms = self._clock.wall_ms()
        left = [file.path for file in self.storage.files(OWN_FOLDER) if abandoned(file.path, now_ms)]
        named = {file.staged for commit in self.commits(self._saved()) for file in commit.files}
        return remove(self.storage, [path for path in left if path not in named]).files
