"""Repair of a damaged log: skip the damage, or truncate the log before it.

First a plan, which changes nothing and reports what would be lost; then the act, which first saves every byte
that it overwrites. See FORMAT.md, "Lost messages".
"""

from __future__ import annotations

import os
import time

import msgspec

from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.protocol.hosts import host_bytes
from kerolox.protocol.record import (
    CRC_PROPERTY_BYTES,
    encode_blank,
    encode_record,
    seal_properties,
    seal_record,
    topic_field,
)
from kerolox.protocol.record_scan import PHYSICAL_OFFSET, SIZE, STORE_TIMESTAMP, SYS_FLAG, TOPIC
from kerolox.store.disk.files import Files
from kerolox.store.disk.log_identity import LogIdentityFile
from kerolox.store.disk.segment import Segment, segment_name
from kerolox.store.disk.segments import Segments
from kerolox.store.disk.sums import SumsFile
from kerolox.store.errors import StoreError
from kerolox.store.offline.layout import (
    ASIDE,
    Finding,
    Layout,
    OnlyReading,
    open_log_run,
    refuse_entries,
)
from kerolox.store.offline.walk import Damage, Walk
from kerolox.store.queue.deleted_topics import DeletedTopics
from kerolox.store.recovery import FILLER_TOPIC, copy_anew

FILLER_BYTES_MIN = 92  # size of a record without body and properties, with a topic of one letter
FILLER_BYTES_MAX = 1 << 20
ROLLED_BACK = 0xC  # transaction type that both brokers keep out of queues and index
_BLANK_BYTES = 8
_COPY_BYTES = 8 << 20
_HOST = host_bytes("127.0.0.1:0")


class CannotMend(StoreError):
    """Repair that is not possible as requested. Nothing was changed."""


class MendPiece(msgspec.Struct, frozen=True):
    """Data that replaces a damaged part: bytes at an offset in a file, then zeros up to ``end``."""

    path: str
    at: int  # offset in the file
    data: list[bytes]
    end: int  # offset in the file
    make: int = 0  # create the file with this size; 0: it exists


class Skip(msgspec.Struct, frozen=True):
    """Plan to skip damage. Without pieces it is already done."""

    offset: int
    valid_from: int
    what: str
    pieces: list[MendPiece]

    @property
    def lost_bytes(self) -> int:
        return self.valid_from - self.offset


class MendCut(msgspec.Struct, frozen=True):
    """Data that is dropped when the log is truncated at ``offset``."""

    offset: int
    records: int
    bytes_used: int
    first_ms: int  # store time of the first dropped record, 0 without any
    later_files: list[str]
    path: str  # file in which the log ends from now on
    at: int


def open_log(layout: Layout) -> Segments:
    """Return the log for reading. Raise if a file does not fit: it must be repaired first."""
    findings: list[Finding] = []
    segments = open_log_run(layout, OnlyReading(), findings)
    for finding in findings:
        if not finding.note:
            raise CannotMend(f"{finding.path} {finding.what}. Next: {finding.next}.", path=finding.path)
    if segments.first is None:
        raise CannotMend(
            f"{', '.join(segments.directories)} contains no log file.", path=segments.directories[0]
        )
    return segments


# Skipping


def plan_skip(layout: Layout, offset: int) -> Skip:
    """Plan to skip the damage at this offset. Raise if there is none."""
    refuse_entries(layout, "store repair --skip", copy_anew(layout.root))
    segments = open_log(layout)
    damage, filler = _damage_at(segments, offset)
    if damage is None:
        if filler:
            return Skip(offset, offset, "already skipped", [])
        raise CannotMend(
            f"the log has no damage at {offset}, or nothing valid follows it: there is nothing to skip. "
            f"Check it: kerolox store verify {layout.root}",
            offset=offset,
        )
    if damage.offset != offset:
        raise CannotMend(
            f"the log is damaged at {damage.offset} ({damage.what}), before {offset}. "
            f"Use --skip {damage.offset} or --cut {damage.offset}.",
            offset=damage.offset,
        )
    return Skip(offset, damage.valid_from, damage.what, _pieces(segments, damage, layout))


def _damage_at(segments: Segments, offset: int) -> tuple[Damage | None, bool]:
    """Return the first damage at or before this offset in its file, and True if a filler record is there."""
    first = segments.first
    assert first is not None
    segment = segments.segment_at(offset)
    start = max((s.start for s in segments.all if s.start <= offset), default=first.start)
    if segment is not None and offset == segment.start and is_blank_file(segments, segment):
        return None, True
    walk = Walk(segments, start if segment is None else segment.start)
    for records in walk:
        if walk.position > offset:
            return None, any(
                record[PHYSICAL_OFFSET] == offset and is_filler(record[TOPIC], record[SYS_FLAG])
                for record in records
            )
    if walk.position > offset:  # after a blank record, which a repair may have written
        return None, segment is not None and offset + _BLANK_BYTES <= segment.end
    return walk.damage, False


def is_blank_file(segments: Segments, segment: Segment) -> bool:
    """Return True if a repair created this file in place of a missing one: one blank record. No broker
    does."""
    return segments.read(segment.start, _BLANK_BYTES) == encode_blank(segment.size)


def _pieces(segments: Segments, damage: Damage, layout: Layout) -> list[MendPiece]:
    pieces: list[MendPiece] = []
    position = damage.offset
    while position < damage.valid_from:
        segment = segments.segment_at(position)
        if segment is None:  # the file is missing: a blank one takes its place
            path = os.path.join(layout.log_paths[0], segment_name(position))
            size = layout.log_file_bytes
            pieces.append(MendPiece(path, 0, [encode_blank(size)], size, make=size))
            position += size
            continue
        end = min(segment.end, damage.valid_from)
        span = end - position
        if end == segment.end:
            if span < _BLANK_BYTES:
                raise _too_small(layout, damage, span, _BLANK_BYTES)
            data = [encode_blank(span)]
        else:
            if span < FILLER_BYTES_MIN:
                raise _too_small(layout, damage, span, FILLER_BYTES_MIN)
            data = fillers(position, span, damage.valid_ms)
        pieces.append(MendPiece(segment.path, position - segment.start, data, end - segment.start))
        position = end
    return pieces


def _too_small(layout: Layout, damage: Damage, span: int, smallest: int) -> CannotMend:
    return CannotMend(
        f"only {span} bytes are damaged at {damage.offset}: too few for a replacement record "
        f"(the smallest has {smallest}). Run instead: kerolox store repair {layout.root} "
        f"--cut {damage.offset}, which drops all records from there on.",
        offset=damage.offset,
    )


def is_filler(topic: bytes, sys_flag: int) -> bool:
    """Return True if a record of this topic and system flag is a filler record, written over damage."""
    return sys_flag & ROLLED_BACK == ROLLED_BACK and FILLER_TOPIC.startswith(topic)


def fillers(offset: int, span: int, store_ms: int) -> list[bytes]:
    """Return records that fill exactly ``span`` bytes from ``offset`` on, and that no broker delivers."""
    count = -(-span // FILLER_BYTES_MAX)
    records: list[bytes] = []
    for number in range(count):
        size = span // count + (number < span % count)
        topic = FILLER_TOPIC[: size - 91]
        # With a CRC over the whole record if it has room: a broker that requires one accepts no others.
        sealed = size >= 91 + len(topic) + CRC_PROPERTY_BYTES
        properties = seal_properties(b"") if sealed else b""
        record = encode_record(
            queue_id=0,
            flag=0,
            queue_offset=0,
            physical_offset=offset,
            sys_flag=ROLLED_BACK,
            born_timestamp=store_ms,
            born_host=_HOST,
            store_timestamp=store_ms,
            store_host=_HOST,
            reconsume_times=0,
            prepared_offset=0,
            body=bytes(size - 91 - len(topic) - len(properties)),
            topic_field=topic_field(topic),
            properties=properties,
        )
        if sealed:
            record = seal_record(record)
        assert len(record) == size
        records.append(record)
        offset += size
    return records


def apply_skip(layout: Layout, skip: Skip, files: Files | None = None) -> str | None:
    """Save the damaged bytes, then overwrite them; return the path of the saved bytes.

    The first record of a piece is written last: until then the damage begins at the same offset, and the rest
    counts as valid records after it. So an interrupted repair is simply repeated.
    """
    files = files or Files()
    forget_sums(layout, files)
    saved: str | None = None
    for piece in reversed(skip.pieces):
        if piece.make:
            _make_blank_file(files, piece)
            continue
        kept = _save(files, layout, _log_offset(piece), piece.path, piece.at, piece.end)
        saved = kept or saved
        mtime_s = files.mtime_s(piece.path)
        with files.open(piece.path) as file:
            first, rest = piece.data[0], b"".join(piece.data[1:])
            behind = piece.at + len(first)
            if rest:
                file.pwrite(rest, behind)
            file.zero(behind + len(rest), piece.end)
            file.sync()
            file.pwrite(first, piece.at)
            file.sync()
        files.set_mtime(piece.path, mtime_s)  # it determines when the file is deleted
    return saved


def _make_blank_file(files: Files, piece: MendPiece) -> None:
    if files.exists(piece.path):
        return
    fresh = piece.path + ".tmp"
    files.remove(fresh)
    with files.create(fresh) as file:
        file.truncate(piece.make)
        file.pwrite(piece.data[0], 0)
        file.sync()
    files.rename(fresh, piece.path)
    files.sync_dir(os.path.dirname(piece.path))


def _log_offset(piece: MendPiece) -> int:
    return int(os.path.basename(piece.path)) + piece.at


# Truncation


def plan_cut(layout: Layout, offset: int) -> MendCut | None:
    """Plan a truncation; return None if the log already ends there."""
    refuse_entries(layout, "store repair --cut", copy_anew(layout.root))
    segments = open_log(layout)
    first, last = segments.first, segments.last
    assert first is not None
    assert last is not None
    segment = segments.segment_at(offset)
    if segment is None or offset <= first.start:
        raise CannotMend(
            f"{offset} is not inside the log, which holds {first.start} to {last.end}. "
            "Give the offset of a record after the first.",
            offset=offset,
        )
    before, after = _boundaries(segments, segment.start, offset)
    if offset not in (before, after):
        raise CannotMend(
            f"no record begins at {offset}. The record around it is from {before} to {after}: use one of "
            "these offsets.",
            offset=offset,
        )
    walk = Walk(segments, offset)
    records = bytes_used = first_ms = 0
    while True:
        for batch in walk:
            first_ms = first_ms or batch[0][STORE_TIMESTAMP]
            records += len(batch)
            bytes_used += sum(record[SIZE] for record in batch)
        if walk.damage is None:
            break
        bytes_used += walk.damage.valid_from - walk.damage.offset
        walk.resume()
    later = [other.path for other in segments.all if other.start > offset]
    if not records and not later and not _has_bytes(segments, offset):
        return None
    return MendCut(offset, records, bytes_used, first_ms, later, segment.path, offset - segment.start)


def _boundaries(segments: Segments, start: int, offset: int) -> tuple[int, int]:
    """Return the begin and end of the record around an offset; the offset itself if it is a boundary."""
    walk = Walk(segments, start)
    before = start
    for records in walk:
        for record in records:
            if record[PHYSICAL_OFFSET] >= offset:
                return offset if record[PHYSICAL_OFFSET] == offset else before, record[PHYSICAL_OFFSET]
            before = record[PHYSICAL_OFFSET]
        if walk.position >= offset:
            return before, walk.position
    return walk.position, walk.position


def _has_bytes(segments: Segments, offset: int) -> bool:
    segment = segments.segment_at(offset)
    return segment is not None and any(
        segments.read(at, min(1 << 20, high - at)).strip(b"\0")
        for low, high in segments.written_ranges(segment, offset)
        for at in range(low, high, 1 << 20)
    )


def apply_cut(
    layout: Layout, cut: MendCut, files: Files | None = None, clock: Clock = SYSTEM_CLOCK
) -> list[str]:
    """Move later files aside, save the rest of the last one, and end the log; return the paths of the removed
    data."""
    files = files or Files()
    forget_sums(layout, files)
    put: list[str] = []
    if cut.later_files:
        aside = aside_name(files, layout.path("commitlog"), clock)
        files.make_dirs(aside)
        for path in reversed(cut.later_files):  # newest first: an interruption leaves no gap
            files.rename(path, os.path.join(aside, os.path.basename(path)))
            files.sync_dir(os.path.dirname(path))
        files.sync_dir(aside)
        put.append(aside)
    size = files.size(cut.path)
    saved = _save(files, layout, cut.offset, cut.path, cut.at, size)
    if saved:
        put.append(saved)
    deleted = DeletedTopics(files, layout.root)
    deleted.load()
    deleted.fit(cut.offset)  # messages after the cut are new
    with files.open(cut.path) as file:
        file.zero(cut.at, size)
        file.sync()
    return put


def forget_sums(layout: Layout, files: Files) -> None:
    """Remove the saved notes about log, queues and index, before any of them is changed."""
    SumsFile(files, layout.root).remove()
    LogIdentityFile(files, layout.root).remove()


# Saved data


def aside_name(files: Files, path: str, clock: Clock) -> str:
    """Return an unused name to which a repair moves this path."""
    moment = time.strftime("%Y%m%d-%H%M%S", time.localtime(clock.wall_ms() / 1000))
    name = base = f"{path}{ASIDE}{moment}"
    number = 2
    while files.exists(name):
        name = f"{base}-{number}"
        number += 1
    return name


def _save(files: Files, layout: Layout, offset: int, path: str, low: int, high: int) -> str | None:
    """Copy bytes of a file to ``damaged-<offset>.bin``, without trailing zeros."""
    with files.open(path, read_only=True) as source:
        end = low
        for start, stop in source.written_ranges(low, high):
            for at in range(start, stop, _COPY_BYTES):
                data = source.pread(min(_COPY_BYTES, stop - at), at).rstrip(b"\0")
                if data:
                    end = at + len(data)
        if end == low:
            return None
        base = layout.path(f"damaged-{offset}")
        name, number = f"{base}.bin", 2
        while files.exists(name):
            if files.size(name) == end - low and _same(files, name, source.pread, low):
                return name
            name, number = f"{base}-{number}.bin", number + 1
        fresh = name + ".tmp"
        files.remove(fresh)
        with files.create(fresh) as target:
            for at in range(low, end, _COPY_BYTES):
                target.pwrite(source.pread(min(_COPY_BYTES, end - at), at), at - low)
            target.sync()
        files.rename(fresh, name)
        files.sync_dir(layout.root)
        return name


def _same(files: Files, name: str, pread: object, low: int) -> bool:
    assert callable(pread)
    with files.open(name, read_only=True) as saved:
        for at in range(0, saved.size, _COPY_BYTES):
            data = saved.pread(_COPY_BYTES, at)
            if data != pread(len(data), low + at):
                return False
    return True
