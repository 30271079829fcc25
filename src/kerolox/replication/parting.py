"""Where the log of a follower and that of its leader part: the last record both have.

Two logs with a common history are the same up to a place and never again behind it, for a record contains its
own place and time. So that place is found by halving: first among the files, then among the records of one.
The leader, ours or Apache's, is asked for records by their place like any other message.
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

LOOKED_AT_BEFORE = 8  # records before the last common one that are compared, too
# Of a broker that has no record there, or one that it cannot read.
_NOT_THERE = {ResponseCode.SYSTEM_ERROR, ResponseCode.QUERY_NOT_FOUND}


class Found(Enum):
    """How the two logs stand, in words."""

    BEGINNING = "the leader has all of this log"
    AHEAD = "this log goes on where the leader's ends"
    DIVERGED = "the two logs go on differently"
    TOO_OLD = "the leader has deleted what comes next here"
    NOTHING_COMMON = "the two logs have nothing in common"


class Parting(msgspec.Struct, frozen=True):
    """What both have, and what each has behind it."""

    found: Found
    own: LogRange
    leader: LogRange
    common_end: int | None  # behind the last common record; None: there is none
    common_ms: int  # when that was stored; 0: there is none, or the leader has deleted it
    behind: Stretch  # of ours: what goes
    leader_ms: int  # when the leader stored what it has there; 0: nothing

    @property
    def keep_to(self) -> int:
        """Where this log has to end for the follower to go on."""
        return self.own.low if self.common_end is None else self.common_end


class CannotCompare(KeroloxError):
    """The leader does not tell enough. Nothing was changed."""


async def find_parting(
    own: OwnLog,
    leader: LeaderQuestions,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Parting:
    """Compare this log with the leader's."""
    there = await leader.log_range()
    if there.low % own.file_bytes:
        raise CannotCompare(
            f"the leader's log at {leader.address} begins at {there.low}, which is no multiple of "
            f"{own.file_bytes}, the size of a log file here. Give this broker the leader's file size "
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
        if own.end == there.low:  # the leader's next byte is the next one here: nothing shows a difference
            return Parting(Found.BEGINNING, here, there, own.end, 0, Stretch(own.end, own.end), 0)
        gone = own.stretch(own.low, progress)
        place = max(there.low, own.low)
        return Parting(Found.NOTHING_COMMON, here, there, None, 0, gone, await _stored(leader, place))
    end = last + len(own.record(last))
    gone = own.stretch(end, progress)
    leader_ms = await _stored(leader, end) if there.end > end else 0
    if not gone.size_bytes or not (gone.records or leader_ms or there.end < own.end):
        found = Found.BEGINNING  # what is behind may be the blank end of a file, here as there
    else:
        found = Found.DIVERGED if there.end > end else Found.AHEAD
    return Parting(found, here, there, end, own.stored_ms(last), gone, leader_ms)


async def _last_common(own: OwnLog, leader: LeaderQuestions, there: LogRange) -> int | None:
    """Where the last record that both have begins; None when there is none."""

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
                f"the record at {places[last]} is the leader's at {leader.address} and the one before it, at "
                f"{place}, is not: one of the two logs is damaged. Look: kerolox store verify, at both."
            )
    return places[last]


async def _last_true(places: Sequence[int], holds: Callable[[int], Awaitable[bool]]) -> int | None:
    """The index of the last place of which it holds, where it holds of all before; None: of none."""
    low, high = -1, len(places)
    while high - low > 1:
        middle = (low + high) // 2
        if await holds(places[middle]):
            low = middle
        else:
            high = middle
    return None if low < 0 else low


async def record_at(leader: LeaderQuestions, place: int) -> bytes | None:
    """What the leader has there, if a record begins there."""
    try:
        return await leader.record_at(place)
    except RequestFailed as error:
        if error.response_code in _NOT_THERE:
            return None
        raise


async def _stored(leader: LeaderQuestions, place: int) -> int:
    """When the leader stored the record that begins there; 0: there is none."""
    record = await record_at(leader, place)
    if record is None or len(record) < HEAD_BYTES:
        return 0
    return max(0, store_timestamp_of(record[:HEAD_BYTES]))


async def _gives_records(leader: LeaderQuestions, there: LogRange) -> None:
    """Raise unless the leader gives out its first record: without that all would look different."""
    if await record_at(leader, there.low) is None:
        raise CannotCompare(
            f"the leader at {leader.address} says that its log begins at {there.low} and does not give out "
            "the record there. It may be deleting its first file: try again. If that goes on, its log is "
            "damaged."
        )
