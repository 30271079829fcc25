"""Decision if a store may be opened, for the start, ``store verify`` and ``store repair``.

Everything here only reads. The files of a log are judged by their content (each begins with a record that
lies at the offset it names) and by the saved note of their identity. Damage inside files is judged where they
are read: see :mod:`kerolox.store.recovery`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator

from kerolox.protocol.record_scan import CHECK_BODY, PHYSICAL_OFFSET, STORE_TIMESTAMP, Entry, Stop
from kerolox.store.disk.log_identity import FileHead, LogIdentity
from kerolox.store.disk.progress_notes import UNKNOWN, ProgressNotes
from kerolox.store.disk.segment import Segment, segment_name
from kerolox.store.disk.segments import NOWHERE, Segments
from kerolox.store.disk.sums import Sums
from kerolox.store.errors import StoreError
from kerolox.store.log.framing import head_bytes, scan_at, size_at
from kerolox.store.recovery import LogGone, copy_anew

_LOOK_BYTES = 16 << 10
_LOOK_COUNT = 8


class NotThisLog(StoreError):
    """File of the log that is missing at the beginning, or belongs to another log. Nothing was changed."""


def identity_of(segments: Segments, known: LogIdentity | None, end: int, begin: int = 0) -> LogIdentity:
    """Return the identity of the log up to ``end``, with a beginning at ``begin`` or later. Read only files
    that are not ``known``. Wait for the disk."""
    old = {} if known is None else {head.start: head for head in known.heads}
    heads: list[FileHead] = []
    for segment in segments.all:
        head = old.get(segment.start)
        if head is None:
            records, data, _ = _first_records(segments, segment)
            if not records or records[0][0] + records[0][PHYSICAL_OFFSET] > end:
                continue
            head = _head(segments, segment, records, data)
        heads.append(head)
    return LogIdentity(max(0, begin, segments.min_offset), heads)


def doubtful_from(marks: ProgressNotes, boot: str, *, crashed: bool) -> int:
    """Return the offset from which on a power loss may have taken written data. ``boot``: the current run of
    the operating system."""
    if not crashed or (marks.boot and marks.boot == boot):
        return NOWHERE
    return max(0, marks.flushed)


def judge_files(
    segments: Segments, identity: LogIdentity | None, root: str, doubtful: int = NOWHERE
) -> Iterator[NotThisLog]:
    """Yield the reasons not to trust the files of a log, the oldest file first.

    ``identity``: the saved note, if no other broker has used the store since it was written. Zeros from
    ``doubtful`` on are left to the search for the end of the log. Reads a few pages of each file.
    """
    if segments.first is None:
        return
    if identity is not None and segments.min_offset > identity.begin:
        yield _begins_late(segments, identity.begin, root)
    heads = {} if identity is None else {head.start: head for head in identity.heads}
    unwritten: Segment | None = None
    for segment in segments.all:
        records, data, stop = _first_records(segments, segment)
        if stop is Stop.UNWRITTEN and not records:
            unwritten = unwritten or segment  # prepared in advance, if nothing follows
            continue
        if unwritten is not None and unwritten.start < doubtful:
            yield _strange(
                segments, unwritten, "it begins with zeros, and records follow in later files", root
            )
        unwritten = None
        at = segment.start + head_bytes(segments, segment.start)
        if not records:
            size = size_at(segments, segment.start, data)
            if stop is Stop.BLANK and not head_bytes(segments, segment.start) and size != segment.size:
                yield _strange(segments, segment, f"it begins with a blank record of {size} bytes", root)
            continue  # damaged, or made by a repair in place of a missing file
        # One record may be damaged; in a file from elsewhere all of them name other offsets.
        shift = {record[PHYSICAL_OFFSET] - place for place, record in _placed(segments, at, records)}
        if 0 not in shift:
            lies_at = records[0][PHYSICAL_OFFSET]
            yield _strange(segments, segment, f"its first record names offset {lies_at}, not {at}", root)
            continue
        noted = heads.get(segment.start)
        if noted is not None and noted != (found := _head(segments, segment, records, data)):
            why = f"its first record was stored at {found.store_ms}, the noted one at {noted.store_ms}"
            yield _strange(segments, segment, why, root)


def noted_end(marks: ProgressNotes, sums: Sums | None) -> int:
    """Return the lowest offset up to which the log was flushed when the notes were saved."""
    return max(marks.dispatched, UNKNOWN if sums is None else sums.end)


def refuse_lost_log(
    segments: Segments, marks: ProgressNotes, sums: Sums | None, queues: int, queues_end: int, root: str
) -> None:
    """Raise if a log that had messages has no file. ``queues_end``: end of the last message in any consume
    queue."""
    noted = max(marks.log_end, noted_end(marks, sums), queues_end)
    if segments.first is None and noted > 0:
        raise LogGone(", ".join(segments.directories), queues, noted, root)


def refuse_strange_files(
    segments: Segments, identity: LogIdentity | None, root: str, doubtful: int = NOWHERE
) -> None:
    """Raise the first reason of :func:`judge_files`, if there is one."""
    for refusal in judge_files(segments, identity, root, doubtful):
        raise refusal


def _first_records(segments: Segments, segment: Segment) -> tuple[list[Entry], bytes, Stop]:
    """Return the first whole records of a file, its first bytes, and the reason why there are no more."""
    readable = segments.readable(segment.start)
    if not readable:
        return [], b"", Stop.UNWRITTEN
    data = segments.read(segment.start, min(_LOOK_BYTES, readable))
    result, _ = scan_at(segments, data, segment.start, CHECK_BODY, _LOOK_COUNT)
    if not result.entries and result.stop is Stop.INCOMPLETE:
        size = size_at(segments, segment.start, data) + head_bytes(segments, segment.start)
        if len(data) < size <= readable:  # a record larger than the bytes read so far
            data = segments.read(segment.start, size)
            result, _ = scan_at(segments, data, segment.start, CHECK_BODY, 1)
    return result.entries, data, result.stop


def _placed(segments: Segments, at: int, records: list[Entry]) -> Iterator[tuple[int, Entry]]:
    """Yield records with their offsets."""
    head = head_bytes(segments, at)
    for record in records:
        yield at, record
        at += record[0] + head


def _head(segments: Segments, segment: Segment, records: list[Entry], data: bytes) -> FileHead:
    at = head_bytes(segments, segment.start)
    return FileHead(segment.start, int.from_bytes(data[at + 8 : at + 12], "big"), records[0][STORE_TIMESTAMP])


def _begins_late(segments: Segments, begin: int, root: str) -> NotThisLog:
    path = os.path.join(segments.directories[0], segment_name(begin - begin % segments.size))
    return NotThisLog(
        f"{path} is missing: the log begins at offset {segments.min_offset}, but retention has deleted only "
        f"the files before {begin}. {segments.min_offset - begin} bytes are missing. Nothing was changed. "
        f"{_step(segments, begin, root)}",
        path=path,
        offset=begin,
    )


def _strange(segments: Segments, segment: Segment, why: str, root: str) -> NotThisLog:
    return NotThisLog(
        f"{segment.path} is not the original file of the log (log offset {segment.start}): {why}. It may "
        "have been swapped with another file or copied from another store. Nothing was changed. Check it: "
        f"kerolox store verify {root}. {_step(segments, segment.start, root)}",
        path=segment.path,
        offset=segment.start,
    )


def _step(segments: Segments, offset: int, root: str) -> str:
    if offset >= segments.entries_from:
        return copy_anew(root)
    return (
        f"Restore the original files. Or accept the log as it is now: kerolox store repair {root} (rebuilds "
        "queues and index from it; missing messages are lost)."
    )
