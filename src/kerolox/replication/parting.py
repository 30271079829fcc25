"""The last common record of the logs of a follower and its leader.

Two logs with a common history are equal up to an offset and never behind it, because a record contains its
offset and time. So that offset is found by bisection: first over the files, then over the records of one
file. The leader, kerolox or Apache's, is asked for records like for any message.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from enum import Enum

import msgspec

from kerolox.errors import KeroloxError, RequestFailed
from kerolox.protocol.codes import ResponseCode
from kerolox.replication.leader_questions import LeaderQuestions, LogRange
from kerolox.replication.own_log import HEAD_BYTES, OwnLog, Stretch
from kerolox.store.log.readable_log import store_timestamp_of

LOOKED_AT_BEFORE = 8  # records before the last common one that are compared as well
# Codes of a broker that has no record at an offset, or cannot read it.
_NOT_THERE = {ResponseCode.SYSTEM_ERROR, ResponseCode.QUERY_NOT_FOUND}


class Found(Enum):
    """The relation of the two logs, as text."""

    BEGINNING = "the leader has all of this log"
    AHEAD = "this log continues after the end of the leader's"
    DIVERGED = "the two logs diverge"
    TOO_OLD = "the leader has deleted the next part of the log"
    NOTHING_COMMON = "the two logs have nothing in common"


class Parting(msgspec.Struct, frozen=True):
    """The common part of the logs, and the part behind it on each side."""

    found: Found
    own: LogRange
    leader: LogRange
    common_end: int | None  # end of the last common record; None if there is none
    common_ms: int  # its store time; 0 if there is none or the leader has deleted it
    behind: Stretch  # part of this log to be removed
    leader_ms: int  # store time of the leader's next record; 0 if there is none

    @property
    def keep_to(self) -> int:
        """Offset to which this log must be truncated."""
        return self.own.low if self.common_end is None else self.common_end


class CannotCompare(KeroloxError):
    """The leader's answers are not sufficient. Nothing was changed."""


async def find_parting(
    own: OwnLog,
    leader: LeaderQuestions,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Parting:
    """Compare this log with the leader's."""
    there = await leader.log_range()
    if there.low % own.file_bytes:
        raise CannotCompare(
            f"the leader's log at {leader.address} begins at {there.low}, which is not a multiple of "
            f"{own.file_bytes}, the size of a log file here. Set the leader's file size on this broker "
            "(mappedFileSizeCommitLog) and an empty store directory."
        )
    here = LogRange(own.low, own.end)
    if there.low < there.end:
        await _gives_records(leader, there)
    if own.low == own.end:
        return Parting(Found.BEGINNING, here, there, own.end, 0, Stretch(own.end, own.end), 0)
    if own.end < there.low:
        gone = own.stretch(own.low, progress)
        return Parting(Found.TOO_OLD, here, there, None, 0, gone, await _stored(leader, there.low))
    last = await _last_common(own, leader, there)
    if last is None:
        if own.end == there.low:  # the leader's next byte is the next one here: no difference
            return Parting(Found.BEGINNING, here, there, own.end, 0, Stretch(own.end, own.end), 0)
        gone = own.stretch(own.low, progress)
        place = max(there.low, own.low)
        return Parting(Found.NOTHING_COMMON, here, there, None, 0, gone, await _stored(leader, place))
    end = last + len(own.record(last))
    gone = own.stretch(end, progress)
    leader_ms = await _stored(leader, end) if there.end > end else 0
    if not gone.size_bytes or not (gone.records or leader_ms or there.end < own.end):
        found = Found.BEGINNING  # the rest may be the blank end of a file on both sides
    else:
        found = Found.DIVERGED if there.end > end else Found.AHEAD
    return Parting(found, here, there, end, own.stored_ms(last), gone, leader_ms)


async def _last_common(own: OwnLog, leader: LeaderQuestions, there: LogRange) -> int | None:
    """Return the offset of the last common record; None if there is none."""

    async def same(place: int) -> bool:
        record = own.record(place)
        return place + len(record) <= there.end and await record_at(leader, place) == record

    files = [file for file in own.files if there.low <= file.start < min(own.end, there.end)]
    at = await _last_true([file.start for file in files], same)
    if at is None:
        return None
    places = own.places(files[at])
    last = await _last_true(places, same)
    assert last is not None, "the first record of the file is common"
    for place in places[max(0, last - LOOKED_AT_BEFORE) : last]:
        if not await same(place):
            raise CannotCompare(
                f"the record at {places[last]} equals the leader's at {leader.address}, but the one before "
                f"it, at {place}, does not: one of the two logs is damaged. Run kerolox store verify on both."
            )
    return places[last]


async def _last_true(places: Sequence[int], holds: Callable[[int], Awaitable[bool]]) -> int | None:
    """Return the index of the last place for which `holds` is true, if it is true for all places before; None
    if for none."""
    low, high = -1, len(places)
    while high - low > 1:
        middle = (low + high) // 2
        if await holds(places[middle]):
            low = middle
        else:
            high = middle
    return None if low < 0 else low


async def record_at(leader: LeaderQuestions, place: int) -> bytes | None:
    """Return the leader's record at an offset; None if no record begins there."""
    try:
        return await leader.record_at(place)
    except RequestFailed as error:
        if error.response_code in _NOT_THERE:
            return None
        raise


async def _stored(leader: LeaderQuestions, place: int) -> int:
    """Return the store time of the leader's record at an offset; 0 if there is none."""
    record = await record_at(leader, place)
    if record is None or len(record) < HEAD_BYTES:
        return 0
    return max(0, store_timestamp_of(record[:HEAD_BYTES]))


async def _gives_records(leader: LeaderQuestions, there: LogRange) -> None:
    """Raise unless the leader returns its first record: otherwise all records would appear different."""
    if await record_at(leader, there.low) is None:
        raise CannotCompare(
            f"the leader at {leader.address} reports that its log begins at {there.low}, but does not return "
            "the record there. It may be deleting its first file: try again. If the error persists, its log "
            "is damaged."
        )
