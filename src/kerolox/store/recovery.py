"""Recovery of the log: find its end, and the records to dispatch again.

The log is read record by record, with CRC checks, from an offset before which everything is known to be good,
up to the first bytes that are no record. Then:

* Nothing valid follows: this is the torn end of the last write. It is cut off.
* Valid records follow, power was lost, and these bytes were never flushed: the disk wrote later pages
  before earlier ones. It is cut off too, with a log line; none of it had been promised.
* Valid records follow otherwise: the log is damaged. RocketMQ silently cuts off everything from the
  damage on. kerolox refuses to start, and names the offset and the command that repairs it.

The end is found first (:func:`find_end`), and nothing is changed before that is done.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator
from operator import eq

import msgspec

from kerolox.protocol.ledger_scan import Mark, decode_head
from kerolox.protocol.record import record_crc_ok
from kerolox.protocol.record_scan import (
    CHECK_BODY,
    CHECK_NONE,
    PHYSICAL_OFFSET,
    PROPERTIES,
    SIZE,
    STORE_TIMESTAMP,
    TOPIC,
    Entry,
    Stop,
    scan,
)
from kerolox.store.disk.checkpoint import Checkpoint
from kerolox.store.disk.cut_note import Cut
from kerolox.store.disk.progress_notes import UNKNOWN, ProgressNotes
from kerolox.store.disk.segment import segment_name
from kerolox.store.disk.segments import Segments
from kerolox.store.errors import OffsetOutOfRange, StoreError
from kerolox.store.log.framing import head_bytes, scan_at, size_at, term_at
from kerolox.store.log.readable_log import store_timestamp_of

log = logging.getLogger(__name__)

PIECE_BYTES = 8 << 20
# Records kept in memory between finding the end and dispatching; above this they are read again.
KEPT_MAX = 100_000
_ZERO_PAGE = bytes(4096)
_CRC_MARK = b"__CRC32#\x01"
_CRC_MARK_LEFT = 6  # matching bytes of it that cannot be chance
FILLER_TOPIC = b"kerolox_repaired"  # the topic of filler records, which a repair writes over damage
_ZEROS = bytes(PIECE_BYTES)
_MAGICS = (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab")


def copy_anew(root: str) -> str:
    """Return the next step for damage in the log of a DLedger group member, which is not repaired in
    place."""
    return (
        f"Move {root} away and start this member with an empty store: it copies the log from the other "
        "members of its DLedger group. If the group has no other member, restore a backup."
    )


class CorruptLog(StoreError):
    """Log that is damaged in the middle. Nothing was changed."""

    def __init__(
        self,
        path: str,
        offset: int,
        in_file: int,
        what: str,
        valid_from: int,
        root: str,
        *,
        in_entries: bool = False,
    ) -> None:
        self.what = what
        self.valid_from = valid_from
        mend = (
            f"Then run either: kerolox store repair {root} --skip {offset} (keep the later records, "
            f"{valid_from - offset} bytes are lost) or --cut {offset} (drop all records from there on)."
        )
        super().__init__(
            f"{path} is damaged at byte {in_file} (log offset {offset}): {what}; valid records follow from "
            f"offset {valid_from}. Nothing was changed. Check it: kerolox store verify {root}. "
            f"{copy_anew(root) if in_entries else mend}",
            path=path,
            offset=offset,
        )


class LogEndsEarly(StoreError):
    """Log that ends before an offset up to which it was flushed. Nothing was changed."""

    def __init__(
        self,
        path: str,
        offset: int,
        in_file: int,
        what: str,
        noted: int,
        root: str,
        *,
        in_entries: bool = False,
    ) -> None:
        mend = (
            "Restore the file from a backup if there is one. Or run: kerolox store repair "
            f"{root} --cut {offset} (end the log there, {noted - offset} bytes are lost)."
        )
        super().__init__(
            f"{path} is damaged at byte {in_file} (log offset {offset}): {what}; the log was flushed up to "
            f"offset {noted}, and no valid record follows. Nothing was changed. "
            f"{copy_anew(root) if in_entries else mend}",
            path=path,
            offset=offset,
        )


class LogGone(StoreError):
    """Store whose log had files and now has none. Nothing was changed."""

    def __init__(self, directories: str, queues: int, noted: int, root: str) -> None:
        super().__init__(
            f"{directories} has no file of the commit log, but the store has {queues} consume queues, and "
            f"the log had reached offset {noted}. Nothing was changed. Mount the disk of the log, or "
            f"restore the files from a backup. To start without these messages, move {root} away.",
            path=directories,
            offset=noted,
        )


class Recovered(msgspec.Struct):
    """Result of a recovery."""

    crashed: bool
    start: int  # offset at which reading began
    end: int  # end offset of the log
    records: int = 0
    bytes_read: int = 0
    cut_bytes: int = 0  # bytes removed after the end: torn or never flushed
    stop: str = ""  # reason for the end of the log
    seconds: float = 0.0
    last_store_timestamp: int = 0
    flushed_ms: int = 0  # all messages before this store time are on the medium
    dispatched_from: int = 0  # offset from which on queues and index were filled
    cut: Cut | None = None  # cut of the log that was under way when the process died, and is now finished


class Circumstances(msgspec.Struct, frozen=True):
    """Facts known before the log is read."""

    crashed: bool  # True if the abort file exists
    power_lost: bool  # True if the operating system was restarted since, or that is unknown
    marks: ProgressNotes
    queues_end: int  # end of the last message in any consume queue, -1 without any
    queues_vanished: bool = False  # True if they have vanished and are rebuilt from the whole log
    index_vanished: bool = False  # True if it has vanished and is rebuilt from the whole log
    vouched_to: int = UNKNOWN  # sums cover queues and index for messages before this offset

    @property
    def rebuild(self) -> bool:
        return self.queues_vanished or self.index_vanished

    def never_flushed(self, offset: int, behind_ms: int, checkpoint: Checkpoint) -> bool:
        """Return True if power may have been lost before the data at this offset reached the medium.

        ``behind_ms`` is the store time of a later record. The progress notes decide, because they hold
        offsets; without them the checkpoint of another broker does.
        """
        if not (self.crashed and self.power_lost):
            return False
        if self.marks.flushed != UNKNOWN:
            return offset >= self.marks.flushed
        # Many records share a millisecond: those of the last flushed one may be flushed or not.
        return behind_ms >= checkpoint.commit_log_ms


def choose_start(segments: Segments, checkpoint: Checkpoint, known: Circumstances) -> int:
    """Return the offset at which reading begins: a record starts there, and all earlier ones are good and
    dispatched."""
    first = max(0, segments.min_offset)
    if known.rebuild or known.queues_end < 0:
        return first
    if known.vouched_to != UNKNOWN:
        vouched_to = max(first, known.vouched_to)
        if record_starts(segments, vouched_to, vouched_to):
            return vouched_to
    if known.marks.dispatched != UNKNOWN:
        # Between the last message in a queue and the noted offset are only messages without a queue.
        marked = max(first, min(known.marks.dispatched, known.queues_end))
        if record_starts(segments, marked, known.queues_end):
            return marked
    # Without progress notes (another broker wrote last) start at a file, as that broker would.
    if known.crashed:
        limit_ms = checkpoint.min_timestamp_ms
        for segment in reversed(segments.all):
            timestamp = _first_store_timestamp(segments, segment.start)
            if 0 < timestamp <= limit_ms and segment.start <= known.queues_end:
                return segment.start
        return first
    for segment in reversed(segments.all):
        if segment.start <= known.queues_end:
            return segment.start
    return first


def find_end(
    segments: Segments,
    start: int,
    known: Circumstances,
    checkpoint: Checkpoint,
    *,
    check_crc: bool = True,
    root: str = "",
    progress: Callable[[int], None] | None = None,
) -> tuple[Recovered, list[Entry] | None]:
    """Read to the end of the log, changing nothing. Return the result, and the records unless there are too
    many.

    Raise :class:`CorruptLog`. Blocks: run it in a thread, before anything else uses the log.
    """
    began_s = time.perf_counter()
    found = Recovered(crashed=known.crashed, start=start, end=start)
    kept: list[Entry] | None = []
    look_from = last_term = -1
    stop = Stop.END
    for position, entries, stop, what in records_from(
        segments, start, CHECK_BODY if check_crc else CHECK_NONE
    ):
        torn = _first_torn(segments, entries, known, checkpoint) if known.crashed else None
        if torn is not None:
            look_from = end_of(entries[torn])
            entries = entries[:torn]
        if entries:
            found.records += len(entries)
            found.last_store_timestamp = max(found.last_store_timestamp, entries[-1][STORE_TIMESTAMP])
            kept = kept + entries if kept is not None and len(kept) + len(entries) <= KEPT_MAX else None
            last_term = term_at(segments, entries[-1][PHYSICAL_OFFSET])
        found.end = end_of(entries[-1]) if entries else position
        found.bytes_read += found.end - position
        if torn is not None:
            stop, found.stop = Stop.CORRUPT, "a record whose last bytes are missing"
            break
        found.stop = what or stop.value
        if stop is Stop.BLANK:
            segment = segments.segment_at(position)
            assert segment is not None
            found.end = segment.end
        if progress is not None:
            progress(found.end)
    if stop in (Stop.END, Stop.BLANK):
        missing = segments.last is not None and found.end < segments.last.start
        found.stop = "the file that begins here is missing" if missing else "the end of the files"
    _judge_end(segments, found, known, checkpoint, root, look_from, last_term)
    found.seconds = time.perf_counter() - began_s
    return found, kept


def end_of(entry: Entry) -> int:
    """Return the log offset at which a record ends, and the next record or its entry begins."""
    return entry[PHYSICAL_OFFSET] + entry[SIZE]


def dispatch_found(
    segments: Segments,
    found: Recovered,
    kept: list[Entry] | None,
    dispatch: Callable[[list[Entry]], None],
    start: int | None = None,
) -> None:
    """Dispatch everything that :func:`find_end` found from ``start`` on, reading it again if it was too much
    to keep."""
    start = found.start if start is None else start
    if kept is not None:
        kept = [entry for entry in kept if entry[PHYSICAL_OFFSET] >= start]
        if kept:
            dispatch(kept)
        return
    for _, entries, _, _ in records_from(segments, start, CHECK_NONE):
        entries = [entry for entry in entries if entry[PHYSICAL_OFFSET] < found.end]
        if entries:
            dispatch(entries)


def cut_behind(segments: Segments, found: Recovered) -> None:
    """Truncate the files to the end that was found."""
    if segments.last is None:
        return
    end_of_files = segments.wrote
    segments.truncate_to(found.end)
    if not found.crashed or found.end >= end_of_files:
        return
    if found.stop.startswith("zeros"):
        log.info("log_end offset=%d reason=%r", found.end, found.stop)
    elif not found.cut_bytes:  # else that is logged
        log.warning(
            "torn_record_cut offset=%d reason=%r next='no action needed: the last write was incomplete when "
            "the broker died. With ASYNC_FLUSH a loss of power may take acknowledged messages'",
            found.end, found.stop,
        )  # fmt: skip


def records_from(
    segments: Segments, position: int, check: int
) -> Iterator[tuple[int, list[Entry], Stop, str]]:
    """Yield the records from an offset on, one piece of a file at a time: their position, and why they end.

    Only records that lie at the offset they name count. The last piece is the first one that does not end at
    the end of its bytes or of its file.
    """
    piece_bytes = PIECE_BYTES
    after: Mark | None = None
    while (readable := segments.readable(position)) > 0:
        data = segments.read(position, min(readable, piece_bytes))
        (entries, good, stop, what, _), after = scan_at(segments, data, position, check, after=after)
        head = head_bytes(segments, position)
        bad = first_bad(entries, position, data if check else b"", head)
        if bad is not None:
            number, what = bad
            entries, stop = entries[:number], Stop.CORRUPT
            good = sum(entry[SIZE] + head for entry in entries)
        elif stop is Stop.INCOMPLETE and len(data) < readable:
            if not good:
                # One record larger than a piece.
                size = size_at(segments, position, data)
                if size <= readable:
                    piece_bytes = size
                    continue
            else:
                stop, what = Stop.END, ""
        yield position, entries, stop, what
        piece_bytes = PIECE_BYTES
        if stop is Stop.BLANK:
            segment = segments.segment_at(position)
            assert segment is not None
            position = segment.end
        elif stop is Stop.END and good:
            position += good
        else:
            return


def refuse_early_end(segments: Segments, found: Recovered, noted: int, root: str) -> None:
    """Raise unless the log reaches the offset up to which it was flushed."""
    if found.end >= noted:
        return
    segment = segments.segment_at(found.end)
    in_entries = found.end >= segments.entries_from
    if segment is None:
        path = os.path.join(segments.directories[0], segment_name(found.end))
        what = "the file that begins here is missing"
        raise LogEndsEarly(path, found.end, 0, what, noted, root, in_entries=in_entries)
    in_file = found.end - segment.start
    raise LogEndsEarly(segment.path, found.end, in_file, found.stop, noted, root, in_entries=in_entries)


def refuse_gaps(segments: Segments, before: int, root: str) -> None:
    """Raise if a file is missing in the part that this start does not read. The rest is judged while
    reading."""
    for low, high in segments.gaps:
        if low < before:
            behind = find_record_after(segments, high)
            path = os.path.join(segments.directories[0], segment_name(low))
            what = "the file that begins here is missing"
            valid_from = high if behind is None else behind[0]
            raise CorruptLog(path, low, 0, what, valid_from, root, in_entries=low >= segments.entries_from)


def _judge_end(
    segments: Segments,
    found: Recovered,
    known: Circumstances,
    checkpoint: Checkpoint,
    root: str,
    look_from: int,
    last_term: int,
) -> None:
    # The bytes at the end itself are bad, so the search begins after them.
    behind = find_record_after(segments, max(look_from, found.end + 1), last_term)
    if behind is None:
        return
    valid_from, behind_ms = behind
    if known.never_flushed(found.end, behind_ms, checkpoint):
        found.cut_bytes = valid_from - found.end
        log.warning(
            "unflushed_records_cut offset=%d next_valid=%d reason=%r next='use SYNC_FLUSH to keep every "
            "acknowledged message: power was lost before these records were flushed'",
            found.end,
            valid_from,
            found.stop,
        )
        return
    segment = segments.segment_at(found.end)
    in_entries = found.end >= segments.entries_from
    if segment is None:
        path = os.path.join(segments.directories[0], segment_name(found.end))
        raise CorruptLog(path, found.end, 0, found.stop, valid_from, root, in_entries=in_entries)
    in_file = found.end - segment.start
    raise CorruptLog(segment.path, found.end, in_file, found.stop, valid_from, root, in_entries=in_entries)


def find_record_after(
    segments: Segments, offset: int, term_min: int = -1, *, before: int | None = None
) -> tuple[int, int] | None:
    """Return position and store time of the first whole record after an offset that lies at the offset it
    names. ``before``: only a record that begins before this offset.

    An entry of a ledger counts only if it has at least this term: Apache's members leave truncated entries
    after the end of their log, and those are older than the entries that replaced them.
    """
    for segment in segments.all:
        if segment.end <= offset:
            continue
        if before is not None and segment.start >= before:
            break
        start = max(segment.start, offset)
        for low, high in segments.written_ranges(segment, start):
            if before is not None:
                if low >= before:
                    break
                high = min(high, before + 8)  # the magic follows the size
            found = _find_record(segments, low, min(high, segments.wrote), segment.end, term_min)
            if found is not None:
                return found if before is None or found[0] < before else None
    return None


def _find_record(
    segments: Segments, low: int, high: int, file_end: int, term_min: int
) -> tuple[int, int] | None:
    position = low
    head = head_bytes(segments, low)
    while position < high:
        data = segments.read(position, min(PIECE_BYTES, high - position))
        at = -1
        # Usually false, and this comparison takes a tenth of the time of a search.
        written = data != _ZEROS[: len(data)]
        while written:
            at = min((i for i in (data.find(magic, at + 1) for magic in _MAGICS) if i >= 0), default=-1)
            if at < 0:
                break
            candidate = position + at - 4
            if candidate - head < low:
                continue
            size = int.from_bytes(segments.read(candidate, 4), "big", signed=True)
            if not 0 < size <= min(file_end, segments.wrote) - candidate:
                continue
            record = segments.read(candidate, size)
            result = scan(record, check=CHECK_BODY, count_max=1)
            if not result.entries or first_bad(result.entries, candidate, record) is not None:
                continue
            if head:
                entry = decode_head(segments.read(candidate - head, head))
                if entry is None or entry.pos != candidate - head or entry.term < term_min:
                    continue
            return candidate - head, result.entries[0][STORE_TIMESTAMP]
        # A magic number may cross two pieces.
        position += len(data) if position + len(data) >= high else max(1, len(data) - 3)
    return None


def first_bad(entries: list[Entry], position: int, data: bytes, head: int = 0) -> tuple[int, str] | None:
    """Return the number of the first record that does not lie at the offset it names, or that breaks its own
    CRC. ``head`` bytes of its entry precede each record."""
    at = head
    sealed = True  # True if the previous record carries its own CRC
    for number, entry in enumerate(entries):
        if entry[PHYSICAL_OFFSET] != position + at:
            return number, f"a record names another offset, {entry[PHYSICAL_OFFSET]}"
        end = at + entry[SIZE]
        if data and entry[PROPERTIES][-20:-11] == _CRC_MARK:
            if not record_crc_ok(data[at:end]):
                return number, "a record breaks its own CRC"
            sealed = True
        elif sealed:
            if data and _lost_its_crc(entries, number):
                return number, "a record lost its own CRC"
            sealed = False
        at = end + head
    return None


def _lost_its_crc(entries: list[Entry], number: int) -> bool:
    """Return True if a record had its own CRC: part of it is left, or it has zeros where its neighbours have
    theirs."""
    end = entries[number][PROPERTIES][-20:]
    if sum(map(eq, end[:9], _CRC_MARK)) >= _CRC_MARK_LEFT:
        return True
    if b"\0" not in end or number == 0 or number + 1 == len(entries):
        return False
    return all(entries[other][PROPERTIES][-20:-11] == _CRC_MARK for other in (number - 1, number + 1))


def _first_torn(
    segments: Segments, entries: list[Entry], known: Circumstances, checkpoint: Checkpoint
) -> int | None:
    """Return the number of the first record whose end, or a page of its properties, a crash left unwritten.

    The CRC covers only the body, and unwritten bytes read as zeros. Properties end in a separator, but those
    of some clients may not: if later records were written after it, the record is whole.
    """
    for number, entry in enumerate(entries):
        properties = entry[PROPERTIES]
        if properties.endswith(b"\0") or entry[TOPIC].endswith(b"\0") or _ZERO_PAGE in properties:
            term = term_at(segments, entry[PHYSICAL_OFFSET])
            behind = find_record_after(segments, end_of(entry), term)
            if behind is None or known.never_flushed(entry[PHYSICAL_OFFSET], behind[1], checkpoint):
                return number
    return None


def record_starts(segments: Segments, offset: int, queues_end: int = UNKNOWN) -> bool:
    """Return True if a record, a blank record, or the unwritten end begins here."""
    readable = segments.readable(offset)
    if readable == 0:
        return offset == segments.wrote
    data = segments.read(offset, min(readable, 4096))
    result, _ = scan_at(segments, data, offset, count_max=1)
    head = head_bytes(segments, offset)
    if result.entries:
        return result.entries[0][PHYSICAL_OFFSET] == offset + head
    if result.stop is Stop.INCOMPLETE:  # a record larger than the bytes read
        return len(data) == 4096 and int.from_bytes(data[head + 28 : head + 36], "big") == offset + head
    if result.stop is Stop.UNWRITTEN:
        return offset == queues_end  # zeros may also be part of a body
    return result.stop is Stop.BLANK


def _first_store_timestamp(segments: Segments, start: int) -> int:
    physical = start + head_bytes(segments, start)
    try:
        return store_timestamp_of(segments.read(physical, min(76, segments.readable(physical))))
    except OffsetOutOfRange:
        return -1
