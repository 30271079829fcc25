"""Read-only access to the log of a stopped follower."""

from __future__ import annotations

from array import array
from collections.abc import Callable

import msgspec

from kerolox.protocol.record_scan import CHECK_NONE, PHYSICAL_OFFSET, SIZE, STORE_TIMESTAMP
from kerolox.store.disk.segment import Segment
from kerolox.store.disk.segments import Segments
from kerolox.store.errors import CorruptRecord
from kerolox.store.log.readable_log import store_timestamp_of
from kerolox.store.offline.layout import Layout, refuse_entries
from kerolox.store.offline.mend import open_log
from kerolox.store.offline.walk import Walk

HEAD_BYTES = 76  # per record; contains its size and store time


class Stretch(msgspec.Struct, frozen=True):
    """Records between two offsets of a log."""

    begin: int
    end: int
    records: int = 0
    first_ms: int = 0  # store times; 0 without a record
    last_ms: int = 0

    @property
    def size_bytes(self) -> int:
        return self.end - self.begin


class OwnLog:
    """A log opened read-only while no process writes it. All methods block on disk I/O."""

    def __init__(self, layout: Layout) -> None:
        refuse_entries(layout, "store resync", "Its members repair their logs automatically.")
        self.segments: Segments = open_log(layout)
        self.file_bytes = layout.log_file_bytes
        # Files may be preallocated: the last ones may be empty.
        self.files: list[Segment] = list(self.segments.all)
        while len(self.files) > 1 and not self._written(self.files[-1].start):
            self.files.pop()
        self.low = self.files[0].start
        self.end = self._end()

    def _written(self, offset: int) -> bool:
        return any(self.segments.read(offset, min(HEAD_BYTES, self.segments.readable(offset))))

    def _end(self) -> int:
        """Return the offset behind the last complete record."""
        last = self.files[-1]
        walk = Walk(self.segments, last.start, last.end, check=CHECK_NONE)
        for _ in walk:
            pass
        if walk.damage is not None:
            raise CorruptRecord(
                f"the log is damaged at {walk.damage.offset} ({walk.damage.what}), and records follow behind "
                f"it. Nothing was changed. Check it first: kerolox store verify",
                path=walk.damage.path,
                offset=walk.damage.offset,
            )
        return walk.position

    def record(self, offset: int) -> bytes:
        """Return the record that begins at an offset."""
        size = int.from_bytes(self.segments.read(offset, 4), "big")
        return self.segments.read(offset, min(size, self.segments.readable(offset)))

    def stored_ms(self, offset: int) -> int:
        return store_timestamp_of(self.segments.read(offset, min(HEAD_BYTES, self.segments.readable(offset))))

    def places(self, file: Segment) -> array[int]:
        """Return the offsets of the records in a file."""
        found = array("q")
        for entries in Walk(self.segments, file.start, min(file.end, self.end), check=CHECK_NONE):
            found.extend([entry[PHYSICAL_OFFSET] for entry in entries])
        return found

    def stretch(self, begin: int, progress: Callable[[int, int], None] = lambda done, total: None) -> Stretch:
        """Return the records behind an offset at which a record begins or ends."""
        records = first_ms = last_ms = 0
        at = begin
        walk = Walk(self.segments, begin, self.end, check=CHECK_NONE)
        while True:
            for entries in walk:
                records += len(entries)
                first_ms = first_ms or entries[0][STORE_TIMESTAMP]
                last_ms = entries[-1][STORE_TIMESTAMP]
                at = entries[-1][PHYSICAL_OFFSET] + entries[-1][SIZE]
                progress(at - begin, self.end - begin)
            if walk.damage is None:
                return Stretch(begin, self.end, records, first_ms, last_ms)
            walk.resume()
