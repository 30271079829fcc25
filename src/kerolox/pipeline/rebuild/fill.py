"""Combination of pieces into queues and files of the key index.

A queue is filled run by run in log order, by the classes of the broker's own rebuild. A file of the index
has a range of all keys in log order, so several files are made at the same time.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from zlib import crc32

import msgspec

from kerolox.pipeline.rebuild.pieces import EntriesFile, PieceRun, key_at, keys_of, read_piece
from kerolox.store.disk.files import Files
from kerolox.store.disk.segment import OpenFiles
from kerolox.store.errors import StoreError
from kerolox.store.index.index_file import ITEM, IndexFile
from kerolox.store.index.key_index import file_name
from kerolox.store.offline.layout import Layout
from kerolox.store.queue.consume_queue import ConsumeQueue
from kerolox.store.queue.consume_queues import flush
from kerolox.store.queue.entry import SIMPLE
from kerolox.store.rebuild import MendingFiller, MendingQueues, keep_ends

WRITE_ENTRIES = 100_000  # maximum of unwritten entries of a queue in memory
_TAIL_MAX = 1 << 20


class FilledQueues(msgspec.Struct):
    """Counts of the queues of one share."""

    queues: int = 0
    entries: int = 0
    holes: int = 0
    restarted: int = 0
    kept: int = 0
    files: int = 0


class QueueShare(msgspec.Struct, frozen=True):
    """Queues that a task fills: those whose name hashes to ``number`` modulo ``of``."""

    number: int
    of: int
    topics: tuple[str, ...]  # only these topics; empty: all
    log_min: int
    log_end: int

    def takes(self, topic: str, queue_id: int) -> bool:
        if self.topics and topic not in self.topics:
            return False
        return crc32(f"{topic}/{queue_id}".encode()) % self.of == self.number


def fill_queues(layout: Layout, work: str, to: str, starts: Sequence[int], share: QueueShare) -> FilledQueues:
    """Fill the queues of a share in ``to`` from all pieces, in log order."""
    files = Files()
    queues = MendingQueues(files, to, layout, share.log_min)
    filler = MendingFiller(queues, layout)
    made = FilledQueues()
    for start in starts:
        piece = read_piece(Path(work), start)
        if piece is None:
            raise StoreError(f"the piece at {start} in {work} does not exist. Run the same command again.")
        with EntriesFile(Path(work), start) as entries:
            for note in piece.queues:
                if not share.takes(note.topic, note.queue_id):
                    continue
                queue = queues.find(note.topic, note.queue_id)
                if queue is None:
                    # Remove files of a task that did not finish.
                    files.remove_tree(os.path.join(to, note.topic, str(note.queue_id)))
                    queue = queues.queue(note.topic, note.queue_id)
                for run, packed in entries.runs(note):
                    made.entries += run.count
                    _add(filler, queue, run, packed)
                    if queue.unwritten > WRITE_ENTRIES:
                        queues.write()
        queues.write()
    made.kept = keep_ends(layout, queues, share.log_min, share.log_end, share.takes)
    flush(queues.write())
    made.queues, made.holes, made.restarted = len(queues), queues.holes, queues.restarted
    made.files = sum(queue.file_count for queue in queues)
    queues.close()
    return made


def _add(filler: MendingFiller, queue: ConsumeQueue, run: PieceRun, packed: bytes) -> None:
    physical = SIMPLE.at(packed)[0]
    if not run.extra and queue.next_offset == run.first and physical >= queue.max_physical:
        queue.extend(packed, run.first)
        return
    for number, (physical, size, code) in enumerate(SIMPLE.each(packed), run.first):
        if not run.extra and queue.next_offset == number and physical >= queue.max_physical:
            # The entries after a repaired one are appended together.
            queue.extend(packed[(number - run.first) * SIMPLE.size :], number)
            return
        filler.enter(queue, physical, size, code, number, run.extra + 1)


# --- the index ---------------------------------------------------------------------------------------


class KeyRange(msgspec.Struct, frozen=True):
    """Range of keys of one piece, by number."""

    start: int  # start of the piece
    low: int
    high: int


class IndexShare(msgspec.Struct, frozen=True):
    """One file of the index: its keys, and the values it inherits from the file before."""

    name: str
    parts: tuple[KeyRange, ...]
    inherited_ms: int
    inherited_physical: int
    like_apache: bool
    full: bool

    @property
    def count(self) -> int:
        return sum(part.high - part.low for part in self.parts)


def plan_index(
    work: Path, layout: Layout, pieces: Sequence[tuple[int, int]], *, like_apache: bool
) -> list[IndexShare]:
    """Cut all keys in log order into files. ``pieces``: start and number of keys of each piece.

    Apache's broker fills a file to its last entry, kerolox puts all keys of a message into one file. File
    names are the store times of the first entries, in local time, as if the broker had made the files then.
    """
    shares: list[IndexShare] = []
    room = layout.index_entries - 1
    total = sum(count for _, count in pieces)
    first, ended_ms, ended_physical, last_name = 0, 0, 0, ""
    while first < total:
        end = min(first + room, total)
        if end < total and not like_apache:
            end = _whole_messages(work, pieces, first, end)
        parts = tuple(_parts(pieces, first, end))
        _, _, begin_ms = key_at(work, parts[0].start, parts[0].low)
        name = file_name(begin_ms)
        if last_name:
            name = max(name, f"{int(last_name) + 1:017d}")
        shares.append(IndexShare(name, parts, ended_ms, ended_physical, like_apache, end < total))
        _, ended_physical, ended_ms = key_at(work, parts[-1].start, parts[-1].high - 1)
        first, last_name = end, name
    return shares


def _parts(pieces: Sequence[tuple[int, int]], low: int, high: int) -> Iterator[KeyRange]:
    """Yield the ranges of pieces that contain these keys."""
    at = 0
    for start, count in pieces:
        if at < high and at + count > low:
            yield KeyRange(start, max(0, low - at), min(count, high - at))
        at += count


def _whole_messages(work: Path, pieces: Sequence[tuple[int, int]], first: int, end: int) -> int:
    """Return ``end`` moved back to the first key of a message; unchanged if one message fills the file."""

    def physical_of(number: int) -> int:
        (part,) = _parts(pieces, number, number + 1)
        return key_at(work, part.start, part.low)[1]

    behind = physical_of(end)
    cut = end
    while cut > first and physical_of(cut - 1) == behind:
        cut -= 1
    return cut if cut > first else end


def fill_index(layout: Layout, work: str, to: str, share: IndexShare) -> IndexShare:
    """Write one file of the index."""
    files = Files()
    path = os.path.join(to, share.name)
    files.remove(path)
    files.make_dirs(to)
    open_files = OpenFiles(files, limit=4)
    file = IndexFile(open_files, path, layout.index_slots, layout.index_entries, named=False)
    handle = files.create(path)
    handle.truncate(layout.index_file_bytes)
    open_files.adopt(file.segment, handle)
    open_files.release(file.segment)
    file.new_table()
    file.begin_ms, file.begin_physical = share.inherited_ms, share.inherited_physical
    for part in share.parts:
        for items in keys_of(Path(work), part.start, part.low, part.high):
            assert len(items) % ITEM.size == 0
            file.put_packed(items, inherits=share.like_apache)
            if file.unwritten > _TAIL_MAX:
                file.write_entries()
    file.write_entries()
    file.write_table()
    file.write_header(file.header)
    file.sync()
    files.sync_dir(to)
    open_files.close_all_idle()
    return share
