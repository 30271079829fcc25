"""From files to a consistent log: where it ends, and what has to be dispatched again.

The log is read from a place before which everything is known to be good, record by record with CRC,
to the first bytes that are no record. What then?

* Nothing valid behind them: the torn end of the last write. Cut off.
* Valid records behind them, power was lost, and they were never flushed: the disk wrote later pages
  before earlier ones. Cut off too, and said aloud; nothing of it had been promised.
* Valid records behind them otherwise: something damaged the log. The original cuts off everything
  behind the damage without a word. We refuse to start and name the place and the command that mends it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import msgspec

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
from kerolox.store.checkpoint import Checkpoint
from kerolox.store.errors import CorruptRecord, StoreError
from kerolox.store.marks import Marks
from kerolox.store.segments import Segments

log = logging.getLogger(__name__)

PIECE_BYTES = 8 << 20
_ZERO_PAGE = bytes(4096)
_MAGICS = (b"\xda\xa3\x20\xa7", b"\xda\xa3\x20\xab")


class CorruptLog(StoreError):
    """The log is damaged in the middle. Nothing was changed."""

    def __init__(self, path: str, offset: int, in_file: int, what: str, valid_from: int, root: str) -> None:
        self.what = what
        self.valid_from = valid_from
        super().__init__(
            f"{path} is damaged at byte {in_file} (log offset {offset}): {what}; valid records follow from "
            f"offset {valid_from}. Nothing was changed. Look: kerolox store verify {root}. Then choose: "
            f"kerolox store repair {root} --skip {offset} (keep what follows, {valid_from - offset} bytes "
            f"are lost) or --cut {offset} (drop everything from there on).",
            path=path,
            offset=offset,
        )


class Recovered(msgspec.Struct):
    """What recovery found and did."""

    crashed: bool
    start: int  # read from here
    end: int  # the log ends here
    records: int = 0
    bytes_read: int = 0
    cut_bytes: int = 0  # dropped behind the end: torn or never flushed
    stop: str = ""  # why the log ends where it does
    seconds: float = 0.0
    last_store_timestamp: int = 0


class Circumstances(msgspec.Struct, frozen=True):
    """What is known before the log is read."""

    crashed: bool  # the abort file is there
    power_lost: bool  # the operating system was started since, or that is not known
    marks: Marks
    queues_end: int  # end of the last message in any consume queue, -1 without any
    rebuild_all: bool = False  # queues or index vanished: read everything

    def never_flushed(self, store_timestamp: int, checkpoint: Checkpoint) -> bool:
        """Whether power was lost before a record of this time was known to be on the medium."""
        return self.crashed and self.power_lost and store_timestamp > checkpoint.commit_log_ms


def choose_start(segments: Segments, checkpoint: Checkpoint, known: Circumstances) -> int:
    """Where to begin reading: a record starts there, and all before it is good and dispatched."""
    first = max(0, segments.min_offset)
    if known.rebuild_all or known.queues_end < 0:
        return first
    marked = known.marks.dispatched
    if first <= marked <= known.queues_end and _record_starts(segments, marked):
        return marked
    # Without our marks (another broker wrote last) by whole files, as it would.
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


def recover_log(
    segments: Segments,
    start: int,
    known: Circumstances,
    checkpoint: Checkpoint,
    dispatch: Callable[[list[Entry]], None],
    *,
    check_crc: bool = True,
    root: str = "",
    progress: Callable[[int], None] | None = None,
) -> Recovered:
    """Read to the end, dispatching every record; then make that end the end of the files.

    Blocking: for a thread, before anything else uses the log.
    """
    began_s = time.perf_counter()
    found = Recovered(crashed=known.crashed, start=start, end=start)
    check = CHECK_BODY if check_crc else CHECK_NONE
    position, what = start, "the end of the files"
    torn_bytes = 0
    while True:
        segment = segments.segment_at(position)
        if segment is None:
            break
        readable = segment.end - position
        piece = min(readable, PIECE_BYTES)
        data = segments.read(position, piece)
        result = scan(data, check=check)
        entries = result.entries
        misplaced = _first_misplaced(entries, position)
        if misplaced is not None:
            entries = entries[:misplaced]
        torn = _first_torn(segments, entries, known, checkpoint) if known.crashed else None
        if torn is not None:
            torn_bytes = entries[torn][SIZE]
            entries = entries[:torn]
        if entries:
            dispatch(entries)
            last = entries[-1]
            found.records += len(entries)
            found.last_store_timestamp = max(found.last_store_timestamp, last[STORE_TIMESTAMP])
        good = sum(entry[SIZE] for entry in entries)
        found.bytes_read += good
        position += good
        found.end = position
        if progress is not None:
            progress(position)
        if torn is not None:
            what = "a record whose last bytes are missing"
            break
        if misplaced is not None:
            what = f"a record says it lies at {result.entries[misplaced][PHYSICAL_OFFSET]}"
            break
        if result.stop is Stop.BLANK:
            found.end = position = segment.end
            continue
        if result.stop is Stop.END and good:
            continue
        if result.stop is Stop.INCOMPLETE and piece < readable:
            if good:
                continue
            # One record larger than a piece: look at the rest of the file at once.
            data = segments.read(position, readable)
            result = scan(data, check=check, count_max=1)
            if result.entries and _first_misplaced(result.entries, position) is None:
                dispatch(result.entries)
                found.records += 1
                found.bytes_read += result.position
                position += result.position
                found.end = position
                continue
        what = result.what or result.stop.value
        break
    found.stop = what
    _judge_end(segments, found, known, checkpoint, what, root, found.end + torn_bytes)
    log_end_of_files = segments.wrote
    if segments.last is not None:
        segments.truncate_to(found.end)
        if known.crashed and found.end < log_end_of_files:
            log.info("log_end offset=%d reason=%r", found.end, what)
    found.seconds = time.perf_counter() - began_s
    return found


def _judge_end(
    segments: Segments,
    found: Recovered,
    known: Circumstances,
    checkpoint: Checkpoint,
    what: str,
    root: str,
    look_from: int,
) -> None:
    behind = find_record_after(segments, look_from)
    if behind is None:
        return
    valid_from, store_timestamp = behind
    if known.never_flushed(store_timestamp, checkpoint):
        found.cut_bytes = valid_from - found.end
        log.warning(
            "unflushed_records_cut offset=%d next_valid=%d reason=%r next='power was lost before they were "
            "flushed; with SYNC_FLUSH none of them had been acknowledged'",
            found.end,
            valid_from,
            what,
        )
        return
    segment = segments.segment_at(found.end)
    path = segment.path if segment is not None else segments.directories[0]
    in_file = found.end - segment.start if segment is not None else 0
    raise CorruptLog(path, found.end, in_file, what, valid_from, root)


def find_record_after(segments: Segments, offset: int) -> tuple[int, int] | None:
    """The first whole record behind an offset that lies where it says: offset and store time."""
    for segment in segments.all:
        if segment.end <= offset:
            continue
        start = max(segment.start, offset)
        for low, high in segments.written_ranges(segment, start):
            found = _find_record(segments, low, high, segment.end)
            if found is not None:
                return found
    return None


def _find_record(segments: Segments, low: int, high: int, file_end: int) -> tuple[int, int] | None:
    position = low
    while position < high:
        data = segments.read(position, min(PIECE_BYTES, high - position))
        at = -1
        while True:
            at = min((i for i in (data.find(magic, at + 1) for magic in _MAGICS) if i >= 0), default=-1)
            if at < 0:
                break
            candidate = position + at - 4
            if candidate < low:
                continue
            size = int.from_bytes(segments.read(candidate, 4), "big", signed=True)
            if not 0 < size <= file_end - candidate:
                continue
            result = scan(segments.read(candidate, size), check=CHECK_BODY, count_max=1)
            if result.entries and result.entries[0][PHYSICAL_OFFSET] == candidate:
                return candidate, result.entries[0][STORE_TIMESTAMP]
        # A magic may lie across two pieces.
        position += len(data) if position + len(data) >= high else max(1, len(data) - 3)
    return None


def _first_misplaced(entries: list[Entry], position: int) -> int | None:
    """The number of the first record that does not lie where it says it does."""
    for number, entry in enumerate(entries):
        if entry[PHYSICAL_OFFSET] != position:
            return number
        position += entry[SIZE]
    return None


def _first_torn(
    segments: Segments, entries: list[Entry], known: Circumstances, checkpoint: Checkpoint
) -> int | None:
    """The number of the first record that a crash left without the end, or a page, of its properties.

    The CRC covers the body only, and what was not written reads as zeros. Properties end in a separator,
    but a message of some client may not: with records behind it that were written later it is whole.
    """
    for number, entry in enumerate(entries):
        properties = entry[PROPERTIES]
        if properties.endswith(b"\0") or entry[TOPIC].endswith(b"\0") or _ZERO_PAGE in properties:
            behind = find_record_after(segments, entry[PHYSICAL_OFFSET] + entry[SIZE])
            if behind is None or known.never_flushed(behind[1], checkpoint):
                return number
    return None


def _record_starts(segments: Segments, offset: int) -> bool:
    """Whether a record, a blank one, or the unwritten end begins here."""
    readable = segments.readable(offset)
    if readable == 0:
        return True  # exactly at the end of the files
    data = segments.read(offset, min(readable, 4096))
    result = scan(data, count_max=1)
    if result.entries:
        return result.entries[0][PHYSICAL_OFFSET] == offset
    return result.stop is not Stop.CORRUPT


def _first_store_timestamp(segments: Segments, start: int) -> int:
    from kerolox.store.commit_log import store_timestamp_of

    try:
        return store_timestamp_of(segments.read(start, min(76, segments.readable(start))))
    except (StoreError, CorruptRecord):
        return -1
