"""Check of the key index against the log.

Index entries are in the order of the log, across all files, so both are read once, side by side. The chains
are checked with a table of slots in memory, one file at a time.
"""

from __future__ import annotations

import os
import sys
from array import array
from collections.abc import Iterator
from itertools import groupby

from kerolox.protocol import properties as names
from kerolox.protocol.record_scan import Entry
from kerolox.store.disk.files import File
from kerolox.store.errors import DiskError
from kerolox.store.index.index_file import ENTRY, HEADER, SLOT_SIZE
from kerolox.store.index.key_index import KeyHasher
from kerolox.store.offline.layout import INDEX, Finding, Layout, OnlyReading

_CHUNK = 16384
_REPORTED_MAX = 20
Pair = tuple[int, int]  # hash, log offset


class IndexCheck:
    """Comparison of the messages' keys with the index."""

    def __init__(
        self, layout: Layout, files: OnlyReading, log_min: int, findings: list[Finding], *, clean: bool
    ) -> None:
        self.entries = 0  # entries read
        self.messages = 0  # messages with keys
        self.found = 0  # messages with all their keys in the index
        self.files = 0
        self._layout = layout
        self._files = files
        self._log_min = log_min
        self._findings = findings
        self._clean = clean  # True after a clean stop: the slots of the last file are on disk
        self._hasher = KeyHasher()
        self._paths = self._usable()
        self._stream = self._pairs()
        self._buffer: list[Pair] = []
        self._at = 0
        self._reported = 0
        self._last = -1  # log offset of the message checked last
        self._missing: tuple[int, int, int] | None = None  # first log offset, last log offset, count

    @property
    def _repair(self) -> str:
        return f"kerolox store repair {self._layout.root} --index"

    def _usable(self) -> list[str]:
        root = self._layout.path(INDEX)
        size = self._layout.index_file_bytes
        paths: list[str] = []
        for name in self._files.list_dir(root):
            path = os.path.join(root, name)
            if not (name.isascii() and name.isdigit()):
                what = "does not belong here: index files are named by a time"
                self._findings.append(Finding("stray file", path, what, "move it away"))
                continue
            actual = self._files.size(path)
            if actual != size:
                what = f"is {actual} bytes long, expected {size}"
                step = "pass the broker's configuration (-c) if it sets maxHashSlotNum or maxIndexNum"
                self._findings.append(
                    Finding("wrong size", path, what, f"{step}; otherwise run: {self._repair}")
                )
                continue
            paths.append(path)
        self.files = len(paths)
        return paths

    # Reading the index

    def _pairs(self) -> Iterator[list[Pair]]:
        for number, path in enumerate(self._paths):
            try:
                with self._files.open(path) as file:
                    yield from self._file_pairs(file, path, is_last=number == len(self._paths) - 1)
            except DiskError as error:
                self._findings.append(Finding("unreadable", path, str(error), self._repair))

    def _file_pairs(self, file: File, path: str, *, is_last: bool) -> Iterator[list[Pair]]:
        slots, capacity = self._layout.index_slots, self._layout.index_entries
        *_, used, count = HEADER.unpack(file.pread(HEADER.size, 0))
        if not 0 <= count <= capacity:
            what = f"counts {count} entries, the maximum is {capacity - 1}"
            self._findings.append(Finding("index header", path, what, self._repair))
            return
        table = array("i", bytes(slots * SLOT_SIZE))
        at = HEADER.size + slots * SLOT_SIZE
        number = 1
        broken = 0
        while number < count:
            data = file.pread(min(_CHUNK, count - number) * ENTRY.size, at + number * ENTRY.size)
            pairs: list[Pair] = []
            add = pairs.append
            for key_hash, physical, seconds, previous in ENTRY.iter_unpack(data):
                slot = key_hash % slots
                if previous != table[slot] or key_hash < 0 or seconds < 0:
                    broken += 1
                    if broken == 1:
                        what = f"entry {number} does not continue its chain ({previous}, not {table[slot]})"
                        self._findings.append(Finding("index chain", path, what, self._repair, number))
                table[slot] = number
                number += 1
                add((key_hash, physical))
            self.entries += len(pairs)
            yield pairs
        if broken > 1:
            what = f"{broken} entries in total do not continue their chains"
            self._findings.append(Finding("index chain", path, what, self._repair))
        if self._clean or not is_last:
            self._check_slots(file, path, table, used)

    def _check_slots(self, file: File, path: str, table: array[int], used: int) -> None:
        on_disk = array("i")
        on_disk.frombytes(file.pread(len(table) * SLOT_SIZE, HEADER.size))
        if sys.byteorder == "little":
            on_disk.byteswap()
        if on_disk != table:
            wrong = [slot for slot, (a, b) in enumerate(zip(on_disk, table, strict=True)) if a != b]
            what = f"{len(wrong)} slots do not point to their newest entry, the first is slot {wrong[0]}"
            self._findings.append(Finding("index slots", path, what, self._repair, wrong[0]))
        elif used != len(table) - table.count(0):
            what = f"counts {used} used slots instead of {len(table) - table.count(0)}"
            self._findings.append(Finding("index header", path, what, self._repair))

    def _fill(self, count: int) -> bool:
        """Read ahead until ``count`` entries are available; return False if there are no more."""
        while len(self._buffer) - self._at < count:
            pairs = next(self._stream, None)
            if pairs is None:
                return False
            self._buffer = self._buffer[self._at :] + pairs
            self._at = 0
        return True

    # While the log is read

    def check(self, records: list[Entry]) -> None:
        """Check the next records of the log."""
        wanted: list[Pair] = []
        find = names.find
        hasher = self._hasher
        for _, _, _, _, physical, sys_flag, _, topic, properties in records:
            if sys_flag & 0xC == 0xC:
                continue
            unique = find(properties, names.AT_UNIQUE_KEY)
            keys = find(properties, names.AT_KEYS)
            if keys is not None:
                wanted += [(code, physical) for code in hasher.keys(topic, unique, keys)]
                self.messages += 1
            elif unique is not None:
                wanted.append((hasher.unique_key(topic, unique), physical))
                self.messages += 1
        if not wanted:
            return
        if self._fill(len(wanted)) and self._buffer[self._at : self._at + len(wanted)] == wanted:
            self._at += len(wanted)
            self.found += len({physical for _, physical in wanted})
            self._last = wanted[-1][1]
            return
        keys_of = {
            physical: {code for code, _ in group}
            for physical, group in groupby(wanted, key=lambda pair: pair[1])
        }
        for _, _, _, _, physical, _, _, topic, properties in records:
            self._check_message(physical, keys_of.get(physical, set()), topic, properties)

    def _check_message(self, physical: int, wanted: set[int], topic: bytes, properties: bytes) -> None:
        found: set[int] = set()
        while self._fill(1):
            code, place = self._buffer[self._at]
            if place > physical:
                break
            self._at += 1
            if place == physical:
                found.add(code)
            elif place >= self._log_min and place != self._last:
                # RocketMQ enters its newest message again after a restart.
                self._tell(
                    "index: no message", f"an entry points at {place}, where no message with keys is", place
                )
        if not wanted and not found:
            return
        self._last = physical
        if wanted <= found:
            self.found += 1
        elif self._missing is None:
            self._missing = (physical, physical, 1)
        else:
            first, _, count = self._missing
            self._missing = (first, physical, count + 1)
        extra = found - wanted
        tag = names.find(properties, names.AT_TAGS)
        if extra and tag is not None:
            extra.discard(self._hasher.key(topic, b"T#" + tag))  # brokers since 5.4 enter tags too
        if extra:
            self._tell(
                "index: wrong key",
                f"{len(extra)} keys point at {physical}, whose message does not have them",
                physical,
            )

    def _tell(self, kind: str, what: str, place: int) -> None:
        self._reported += 1
        if self._reported <= _REPORTED_MAX:
            self._findings.append(Finding(kind, self._layout.path(INDEX), what, self._repair, place))

    # After the log

    def finish(self, log_end: int, *, crashed: bool, dispatched: int) -> None:
        path = self._layout.path(INDEX)
        while self._fill(1):
            for _, place in self._buffer[self._at :]:
                if place >= self._log_min and place != self._last and not (crashed and place >= log_end):
                    self._tell(
                        "index: no message", f"an entry points at {place}, after the last message", place
                    )
            self._at = len(self._buffer)
        if self._reported > _REPORTED_MAX:
            what = f"{self._reported - _REPORTED_MAX} more entries are wrong"
            self._findings.append(Finding("index", path, what, self._repair))
        if self._missing is None:
            return
        first, last, count = self._missing
        what = f"keys of {count} messages, from {first} to {last} of the log, are not in the index"
        if crashed and first >= dispatched:
            step = "the next start adds them: they were only in memory"
            self._findings.append(Finding("index: end", path, what, step, first, note=True))
        elif not self.files and self._layout.index_enabled is not True:
            step = (
                f"none if the index is switched off (messageIndexEnable=false); otherwise run: {self._repair}"
            )
            self._findings.append(Finding("no index", path, what, step, first, note=True))
        else:
            self._findings.append(Finding("index: missing", path, what, self._repair, first))
