"""``expire`` and ``compact`` killed at each of their steps, on archives of every kind that lie on disk.

Each one has files of hours that are old, and of hours that are not. It is put back as it was before each
kill; what is left is then looked at in a process that knows nothing of the killed one.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.dataset as ds

from kerolox.client.messages import Queue
from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.pipeline.archive import upkeep
from kerolox.pipeline.archive.delta import DeltaArchive
from kerolox.pipeline.archive.files import Format, HourFile, WriteTask, WrittenFile
from kerolox.pipeline.archive.folders import FolderPlace
from kerolox.pipeline.archive.iceberg import NOTES, IcebergArchive
from kerolox.pipeline.archive.log import ParquetArchive
from kerolox.pipeline.lake.iceberg_catalog import CatalogPlace
from kerolox.pipeline.lake.local_folder import LocalFolder
from kerolox.pipeline.lake.shared_delta import SharedDelta
from kerolox.pipeline.lake.shared_iceberg import SharedIceberg
from kerolox.pipeline.lake.shared_table import SharedTable
from kerolox.pipeline.lake.table_file import LakeFile, TableFileWriter
from kerolox.pipeline.lake.written_names import hour_of, written_name
from tests.pipeline.archiving import bodies as folder_bodies
from tests.pipeline.iceberg_archiving import NAME
from tests.pipeline.iceberg_archiving import bodies as iceberg_bodies
from tests.pipeline.step_kills import Steps, first_of, killed_at

HOUR_MS, DAY_MS = 3_600_000, 86_400_000
ROWS = 4  # of each file
OLD, LIVE = range(3), range(3, 6)  # numbers of files
KEEP_MS = 5 * DAY_MS
WORKS = ("compact", "expire")
KINDS = ("iceberg", "parquet", "delta", "flow iceberg", "flow parquet", "flow delta")
FLOW, BODIES = "tests.flow.query", pa.schema([("text", pa.string())])


class _Moved(type(SYSTEM_CLOCK)):  # type: ignore[misc]
    """Some days ahead."""

    def __init__(self, days: int) -> None:
        self._ahead_ms = days * DAY_MS

    def wall_ms(self) -> int:
        return SYSTEM_CLOCK.wall_ms() + self._ahead_ms


# All snapshots are old by then, the newest rows are not; and later what was seen then is removed.
THEN, LATER = _Moved(2), _Moved(4)


class Kept:
    """An archive in a folder, and what has to be in it."""

    def __init__(self, folder: Path, kind: str) -> None:
        self.folder = folder
        self.kind = kind
        self.data = folder / "data"
        self.catalog = CatalogPlace(f"sqlite:///{self.data}/catalog.db", warehouse=f"{self.data}/warehouse")

    def archive(self, clock: Clock = SYSTEM_CLOCK) -> Any:
        if self.kind == "iceberg":
            return IcebergArchive(NAME, self.catalog, clock=clock)
        return (ParquetArchive if self.kind == "parquet" else DeltaArchive)(self.data, clock=clock)

    @property
    def is_flow(self) -> bool:
        return self.kind.startswith("flow ")

    @property
    def format(self) -> str:
        return self.kind.removeprefix("flow ")

    def flow(self) -> Any:
        """The table as flows know it."""
        if self.format == "iceberg":
            table: Any = SharedIceberg(NAME, self.catalog)
            table.make(BODIES, ())
        elif self.format == "delta":
            table = SharedDelta(LocalFolder(self.data))
            table.make(BODIES, (), "")
        else:
            table = SharedTable(LocalFolder(self.data))
        return table

    def add(self, table: Any, number: int, stored_ms: int) -> None:
        """A batch of a flow."""
        path = written_name(stored_ms, f"flow-{number}")
        staged = f"_kerolox/staging/flow/{path}" if self.format == "parquet" else path
        schema = table.table.file_schema(BODIES) if self.format == "iceberg" else BODIES
        file = TableFileWriter(table.storage, staged, schema)
        texts = pa.array([body.decode() for body in rows_of([number])])
        file.add(pa.RecordBatch.from_arrays([texts], schema=schema))
        rows, size, columns, bounds = file.close()
        done = LakeFile(
            path=path, staged=staged, rows=rows, bytes=size, columns=columns, bounds=bounds,
            **hour_of(stored_ms),
        )  # fmt: skip
        assert table.add([done], FLOW, number)

    def work(self, name: str, clock: Clock = THEN) -> None:
        iceberg = self.format == "iceberg"
        place = IcebergArchive(NAME, self.catalog, clock=clock) if iceberg else LocalFolder(self.data)
        if name == "compact":
            upkeep.compact(place, older_than_ms=HOUR_MS, clock=clock)
        else:
            upkeep.expire(place, keep_ms=KEEP_MS, clock=clock)

    def fill(self) -> None:
        """A commit for each file: two hours, three files each."""
        self.data.mkdir(parents=True)
        archive = self.flow() if self.is_flow else self.archive()
        format = Format() if self.is_flow else archive.open(Format())
        now_ms = SYSTEM_CLOCK.wall_ms()
        for number in (*OLD, *LIVE):
            stored_ms = now_ms - (20 * DAY_MS if number in OLD else 0)
            stored_ms -= stored_ms % HOUR_MS
            if self.is_flow:
                self.add(archive, number, stored_ms)
                continue
            file = _file(archive, format, number, stored_ms)
            archive.commit("g", {}, {Queue("t", "b", 0): (number + 1) * ROWS}, [file])
        if not self.is_flow:
            archive.close()
        shutil.copytree(self.data, self.folder / "before")

    def put_back(self) -> None:
        shutil.rmtree(self.data)
        shutil.copytree(self.folder / "before", self.data)

    def bodies(self) -> Counter[bytes]:
        if self.is_flow:
            return Counter(text.encode() for text in self._texts())
        if self.kind == "iceberg":
            return iceberg_bodies(self.catalog)
        if not any(self.data.rglob("*.parquet")):
            return Counter()
        return folder_bodies(self.data, self.kind)

    def _texts(self) -> list[str]:
        if self.format == "parquet":
            found = ds.dataset(self.data, schema=BODIES).to_table()
        elif self.format == "delta":
            from deltalake import DeltaTable

            found = DeltaTable(self.data).to_pyarrow_table()
        else:
            found = self.catalog.open().load_table(NAME).scan().to_arrow()
        return [text for text in found["text"].to_pylist() if text is not None]

    def check_half(self, work: str) -> None:
        """Killed anywhere: no row is there twice, and none is missing that is not old.

        In a folder of files those that are joined are away for a moment, and come back with the next run.
        """
        seen = self.bodies()
        assert max(seen.values(), default=1) == 1
        if work == "expire" or self.format != "parquet":
            wanted = rows_of(LIVE if work == "expire" else (*OLD, *LIVE))
            assert wanted.keys() <= seen.keys(), f"missing: {wanted.keys() - seen.keys()}"

    def check_whole(self, work: str) -> None:
        """The same again ends it, and nothing is left that nobody needs."""
        if self.is_flow:
            self._check_flow(work)
            return
        self.work(work)
        wanted = rows_of(LIVE if work == "expire" else (*OLD, *LIVE))
        assert self.bodies() == wanted
        archive = self.archive()
        archive.open(Format())
        archive.find_places([Queue("t", "b", 0)])
        assert archive.places == {Queue("t", "b", 0): ROWS * len((*OLD, *LIVE))}
        archive.close()
        if self.kind == "iceberg":
            # Of snapshots the last, and then what nothing leads to, when it was seen for a day.
            for clock in (THEN, LATER):
                upkeep.expire(self.archive(clock), keep_ms=1000 * DAY_MS, clock=clock)
            self._check_table()
        elif (self.kind, work) != ("delta", "compact"):  # whose old versions stay for a week
            assert self.files(".parquet") == self.named()
        assert self.bodies() == wanted
        assert not self.files("_kerolox/staging", ".tmp")

    def _check_flow(self, work: str) -> None:
        """The flow goes on behind its last batch, before anything is looked after again."""
        numbers = (*OLD, *LIVE, 6)
        assert self.flow().mark(FLOW) == 5
        self.add(self.flow(), 6, SYSTEM_CLOCK.wall_ms())
        self.work(work)
        wanted = rows_of((*LIVE, 6) if work == "expire" else numbers)
        assert self.bodies() == wanted
        assert self.flow().mark(FLOW) == 6
        place = LocalFolder(self.data)
        for clock in (THEN, LATER):
            there = IcebergArchive(NAME, self.catalog, clock=clock) if self.format == "iceberg" else place
            upkeep.expire(there, keep_ms=1000 * DAY_MS, clock=clock)
        if self.format == "iceberg":
            self._check_table()
        elif self.format == "parquet":
            assert {Path(path).name for path in self.files(".parquet")} == {
                Path(path).name for path in SharedTable(place).files()
            }
        assert self.bodies() == wanted
        assert not self.files("_kerolox/staging", ".tmp")

    def _check_table(self) -> None:
        archive = IcebergArchive(NAME, self.catalog)
        table = archive.table
        table.load()
        reachable = {path.rsplit("/", 1)[-1] for path in table.reachable()}
        there = self.files(".parquet", ".avro", ".metadata.json")
        assert {path.rsplit("/", 1)[-1] for path in there} == reachable
        assert not [path for path in self.files("") if f"{NOTES}/" in path]

    def named(self) -> set[str]:
        if self.kind == "parquet":
            return set(ParquetArchive(self.data).files())
        from deltalake import DeltaTable

        return {str(uri).removeprefix(f"{self.data}/") for uri in DeltaTable(str(self.data)).file_uris()}

    def files(self, *words: str) -> set[str]:
        found = (path.relative_to(self.data).as_posix() for path in self.data.rglob("*") if path.is_file())
        return {path for path in found if any(word in path for word in words)}


def rows_of(files: Iterable[int]) -> Counter[bytes]:
    return Counter(b"%d" % row for number in files for row in range(number * ROWS, (number + 1) * ROWS))


def _file(archive: Any, format: Format, number: int, stored_ms: int) -> WrittenFile:
    """A file of some rows, as a task writes it."""
    task = WriteTask("t", (), None, archive.storage, archive.staging, archive.stem(), format)  # type: ignore[arg-type]
    schema = format.schema()
    columns = {name: pa.nulls(ROWS, schema.field(name).type) for name in schema.names}
    offsets = range(number * ROWS, (number + 1) * ROWS)
    columns["queue_offset"] = pa.array(offsets, schema.field("queue_offset").type)
    columns["body"] = pa.array([b"%d" % offset for offset in offsets], schema.field("body").type)
    times = pa.array([stored_ms * 1000] * ROWS, pa.int64())
    columns["store_timestamp"] = times.cast(schema.field("store_timestamp").type)
    if "topic" in columns:
        columns["topic"] = pa.array(["t"] * ROWS, schema.field("topic").type)
    file = HourFile(task, schema, FolderPlace(stored_ms // HOUR_MS), 1)
    file.add(
        Queue("t", "b", 0),
        pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema),
    )
    return file.close()


def watch(steps: Steps, kept: Kept) -> None:
    """What changes files is a step, and so is what changes the catalog or a table's log."""
    steps.of_files(kept.data)
    if kept.format == "iceberg":
        from pyiceberg.catalog.sql import SqlCatalog
        from pyiceberg.io.pyarrow import PyArrowFile, PyArrowFileIO

        steps.of_calls(SqlCatalog, "commit_table", "_write_metadata", "_delete_old_metadata")
        steps.of_calls(PyArrowFile, "create")
        steps.of_calls(PyArrowFileIO, "delete")
    elif kept.format == "delta":
        from deltalake import DeltaTable

        steps.of_calls(DeltaTable, "create_write_transaction", "update_incremental", "vacuum")


def different(steps: Sequence[str]) -> Iterator[int]:
    """The numbers of steps; of many in a row that are the same the first, the second and the last."""
    for number, step in enumerate(steps, 1):
        if steps[number - 3 : number - 1] != [step, step] or step not in steps[number : number + 1]:
            yield number


def apart(work: Any) -> None:
    """Do it in a process of its own: no thread of a library is forked with the next one."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException:
            sys.excepthook(*sys.exc_info())  # type: ignore[arg-type]
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0


if __name__ == "__main__":  # python -m tests.pipeline.upkeep_killing FOLDER KIND WORK [WORDS]
    kept, work, words = Kept(Path(sys.argv[1]), sys.argv[2]), sys.argv[3], sys.argv[4:]
    apart(kept.fill)

    def count() -> None:
        steps = Steps()
        watch(steps, kept)
        kept.work(work)
        (kept.folder / "steps.json").write_text(json.dumps(steps.done))

    apart(count)
    known: list[str] = json.loads((kept.folder / "steps.json").read_text())
    chosen = [first_of(known, word) for word in words] or list(different(known))

    def kill(number: int, steps: Steps) -> None:
        watch(steps, kept)
        kept.work(work)

    for number in chosen:
        kept.put_back()
        killed_at([number], kill)
        try:
            apart(lambda: kept.check_half(work))
            apart(lambda: kept.check_whole(work))
        except AssertionError:
            sys.exit(f"killed at step {number} of {len(known)}, {known[number - 1]}")
    sys.stdout.write(f"{len(chosen)} of {len(known)} steps\n")
