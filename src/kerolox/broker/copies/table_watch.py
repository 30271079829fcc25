"""Replication of changed tables to followers at once. A leader that promises copies waits for it.

A kerolox follower asks its leader for changes of its tables (WATCH_TABLES), and names the last change it has.
The leader holds the request until the next change, and answers with the changed tables. The follower copies
them; its next request confirms that. Brokers of RocketMQ do not send it: they copy tables by interval.

A requested change (a topic, a group, a user, an offset commit that waits for the answer) is answered when
every follower that asks has it, if the leader also waits for copies of messages (SYNC_MASTER, a controller, a
DLedger group). Under a controller these are the followers that may be elected.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import secrets
from collections import OrderedDict
from collections.abc import Iterable
from functools import partial
from typing import Any

from kerolox.access.needs.kinds import CHANGES
from kerolox.broker.base import Base
from kerolox.clock import TimerHandle
from kerolox.errors import KeroloxError, Refused, sentences
from kerolox.front.caller import Caller
from kerolox.front.requests import Answer, Handler, HeldRequest, Later, Request
from kerolox.front.rows import Row, serves
from kerolox.protocol.bodies.table_news import TABLES, TableNews
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.headers.offset import UpdateOffsetRequest
from kerolox.protocol.headers.replication import WatchTablesRequest
from kerolox.replication.in_sync_set import InSyncSet
from kerolox.store.tables.offsets import ConsumerOffsets

log = logging.getLogger(__name__)

FOLLOWERS_MAX = 64
HOLD_S_MAX = 10.0  # longest hold of a request
GONE_S = 10.0  # a follower without a request for this long is not waited for
COMMITS_MAX = 4096  # commits remembered one by one; a follower that lacks more copies the whole table

# Requests that permanently change a table, and the table.
_CHANGES: dict[int, str] = {
    RequestCode.UPDATE_AND_CREATE_TOPIC: "topics",
    RequestCode.UPDATE_AND_CREATE_TOPIC_LIST: "topics",
    RequestCode.DELETE_TOPIC_IN_BROKER: "topics",
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP: "groups",
    RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP_LIST: "groups",
    RequestCode.DELETE_SUBSCRIPTIONGROUP: "groups",
    RequestCode.UPDATE_AND_GET_GROUP_FORBIDDEN: "groups",
    RequestCode.SET_MESSAGE_REQUEST_MODE: "modes",
    RequestCode.INVOKE_BROKER_TO_RESET_OFFSET: "offsets",
    RequestCode.CLONE_GROUP_OFFSET: "offsets",
    RequestCode.AUTH_CREATE_USER: "users",
    RequestCode.AUTH_UPDATE_USER: "users",
    RequestCode.AUTH_DELETE_USER: "users",
    RequestCode.AUTH_CREATE_ACL: "users",
    RequestCode.AUTH_UPDATE_ACL: "users",
    RequestCode.AUTH_DELETE_ACL: "users",
}


class TableNotCopied(KeroloxError):
    """A change is stored at the leader, but may not be copied to its followers."""

    code = ResponseCode.FLUSH_SLAVE_TIMEOUT
    retriable = True

    def __init__(self, table: str, followers: Iterable[str], why: str) -> None:
        super().__init__(
            sentences(
                f"the change of {table} is stored at this leader, but may not have reached "
                f"{', '.join(sorted(followers))}: {why}",
                "they copy it as soon as they can; repeat the request to wait for that, and see: kerolox "
                "broker followers",
            )
        )


_ALONE = (
    "stored only at this leader: no follower is connected. Followers copy it when they are back; until then "
    "it is lost if one of them is promoted"
)


def _not_asking(id: int) -> str:
    """Return a name for a follower whose address is not known yet."""
    return f"follower {id}"


class _Follower:
    """State of one follower that asks for changes."""

    __slots__ = ("address", "asked_s", "caller", "has", "held", "id", "timer")

    def __init__(self, address: str) -> None:
        self.address = address
        self.id = 0
        self.has = 0  # the last change it has copied
        self.caller: Caller | None = None
        self.held: HeldRequest[WatchTablesRequest] | None = None
        self.asked_s = 0.0  # time of its last request or answer
        self.timer: TimerHandle | None = None


class _Wait:
    """One change that is answered when these followers have it."""

    __slots__ = ("done", "missing", "serial")

    def __init__(self, serial: int, missing: set[str]) -> None:
        self.serial = serial
        self.missing = missing  # addresses or ids of followers that lack it
        self.done: asyncio.Future[str] = asyncio.get_running_loop().create_future()

    def end(self, why_not: str = "") -> None:
        if not self.done.done():
            self.done.set_result(why_not)


class TableWatch:
    """Numbered changes of the tables while this broker leads. A part of the leadership.

    ``in_sync``: the followers that may be elected, under a controller.
    """

    def __init__(self, base: Base, offsets: ConsumerOffsets, in_sync: InSyncSet | None) -> None:
        self._store = base.store
        self._offsets = offsets
        self._clock = base.clock
        self._in_sync = in_sync
        self._in_ledger = base.options.ledger  # all members of a DLedger group may be elected
        self._life = ""  # name of this term as a leader; empty: this broker does not lead
        self._serial = 0  # serial of the last change
        self._marks: dict[str, int] = {}  # table → the serial of its last change
        self._commits: OrderedDict[tuple[str, int], int] = OrderedDict()  # topic@group, queue → serial
        self._commits_from = 0  # commits up to this serial are not remembered one by one
        self._followers: dict[str, _Follower] = {}  # by address
        self._waits: list[_Wait] = []
        self._is_woken = False
        self._told_alone = False  # a log line about missing followers was written since there was one
        if in_sync is not None:
            in_sync.on_wanted.append(self._set_changed)

    @property
    def followers(self) -> list[str]:
        """Addresses of the followers that must have a change before it is answered."""
        return sorted(one.address for one in self._counting())

    # --- role -------------------------------------------------------------------------------------------

    async def lead(self) -> None:
        self._life = secrets.token_hex(8)
        self._serial = 1
        self._marks.clear()
        self._commits.clear()
        self._commits_from = 0

    async def follow(self) -> None:
        self._life = ""
        for follower in self._followers.values():
            self._release(
                follower, Answer(code=ResponseCode.SYSTEM_ERROR, remark="this broker stops leading")
            )
        self._followers.clear()
        for wait in self._waits:
            wait.end("this broker does not lead any more")

    # --- changes ----------------------------------------------------------------------------------------

    def changed(self, table: str) -> None:
        """Notify followers that a table has changed."""
        if self._life:
            self._serial += 1
            self._marks[table] = self._serial
            self._wake()

    def committed(self, topic: str, group: str, queue_id: int) -> None:
        """Notify followers of the progress of a group in one queue."""
        if not self._life:
            return
        self._serial += 1
        key = (f"{topic}@{group}", queue_id)
        self._commits[key] = self._serial
        self._commits.move_to_end(key)
        if len(self._commits) > COMMITS_MAX:
            _, self._commits_from = self._commits.popitem(last=False)
        self._wake()

    async def copied(self, table: str) -> str | None:
        """Wait until followers have all changes so far, if this leader promises copies. Return a remark if
        there are no followers. Raises TableNotCopied."""
        if not self._waits_for_copies:
            return None
        serial = self._serial
        missing = self._behind(serial)
        if not missing:
            is_alone = (
                not (self._in_sync or self._in_ledger)
                and not self._followers
                and not any(self._store.replicas)
            )
            return self._alone(table) if is_alone else None
        wait = _Wait(serial, missing)
        self._waits.append(wait)
        timeout_ms = self._store.options.replica_timeout_ms
        timer = self._clock.call_later(timeout_ms / 1000, lambda: wait.end(f"{timeout_ms} ms have passed"))
        try:
            why_not = await wait.done
        finally:
            timer.cancel()
            self._waits.remove(wait)
        if why_not:
            raise TableNotCopied(table, wait.missing, why_not)
        return None

    def _alone(self, table: str) -> str:
        if not self._told_alone:
            self._told_alone = True
            log.warning("table_change_alone table=%r next='start a follower: it copies the change'", table)
        return _ALONE

    @property
    def _waits_for_copies(self) -> bool:
        return bool(self._life) and (self._in_ledger or self._store.acks.promises_copies)

    def _counting(self) -> list[_Follower]:
        """Return the followers that must have a change before it is answered."""
        if self._in_sync is not None:
            electable = self._in_sync.electable
            return [one for one in self._followers.values() if one.id in electable]
        since_s = self._clock.monotonic_s() - GONE_S
        return [one for one in self._followers.values() if one.held is not None or one.asked_s >= since_s]

    def _behind(self, serial: int) -> set[str]:
        """Return the followers that count and lack this change. Under a controller a kerolox follower counts
        from the moment it is in sync, even if it has not asked yet."""
        behind = {one.address for one in self._counting() if one.has < serial}
        if self._in_sync is not None:
            asking = {one.id for one in self._followers.values()}
            behind |= {_not_asking(id) for id in self._in_sync.electable_ours - asking}
        return behind

    # --- requests that change tables --------------------------------------------------------------------

    def waiting(self, rows: Iterable[Row]) -> list[Row]:
        """Wrap these requests: they are answered when followers have the changes."""
        return [row._replace(handler=self._waiting(row.code, row.handler)) for row in rows]

    def _waiting(self, code: int, handler: Handler) -> Handler:
        if code == RequestCode.UPDATE_CONSUMER_OFFSET:
            return partial(self._commit, handler)
        table = _CHANGES.get(code)
        if table is None:
            return handler
        if inspect.iscoroutinefunction(handler):
            return lambda request: partial(self._changing, table, partial(handler, request))
        return partial(self._change, table, handler)

    def _change(self, table: str, handler: Handler, request: Request[Any]) -> Later:
        found = handler(request)
        assert callable(found), f"{handler} answers before the change is on the disk"
        return partial(self._changing, table, found)

    async def _changing(self, table: str, change: Later) -> Answer | None:
        answer = await change()
        if answer is not None and answer.code == ResponseCode.SUCCESS:
            self.changed(table)
            remark = await self.copied(table)
            answer.remark = remark or answer.remark
        return answer

    def _commit(self, handler: Any, request: Request[UpdateOffsetRequest]) -> Answer | Later | None:
        answer: Answer = handler(request)
        if request.is_one_way or not self._waits_for_copies or answer.remark:
            return answer
        header = request.header
        self.committed(header.topic, header.consumer_group, header.queue_id)

        async def copied() -> Answer:
            await self.copied("progress")
            return answer

        return copied

    # --- requests of followers --------------------------------------------------------------------------

    @serves(RequestCode.WATCH_TABLES, WatchTablesRequest, CHANGES)
    def watch(self, request: Request[WatchTablesRequest]) -> Answer | None:
        """Answer with the changes since the follower asked last; hold the request while there are none."""
        asked = request.header
        if not self._life:
            raise Refused(ResponseCode.SYSTEM_ERROR, "this broker does not lead: its tables are copies")
        follower = self._follower(asked)
        self._release(follower, Answer(body=TableNews(life=self._life, serial=follower.has).encode()))
        follower.caller = request.caller
        follower.has = min(asked.serial, self._serial) if asked.life == self._life else 0
        follower.asked_s = self._clock.monotonic_s()
        self._look_at_waits(follower)
        if follower.has < self._serial:
            return Answer(body=self._news(follower).encode())
        follower.held = HeldRequest.of(request)
        hold_s = min(HOLD_S_MAX, max(0, asked.hold_millis) / 1000)
        follower.timer = self._clock.call_later(hold_s, lambda: self._tell(follower))
        return None

    def forget(self, caller: Caller) -> None:
        """Forget a closed connection. Under a controller its follower may still be elected."""
        for follower in [one for one in self._followers.values() if one.caller is caller]:
            self._drop(follower)
            if self._in_sync is not None and follower.id in self._in_sync.electable:
                continue
            del self._followers[follower.address]
            for wait in self._waits:
                if follower.address in wait.missing:
                    wait.end("its connection was closed")

    def _follower(self, asked: WatchTablesRequest) -> _Follower:
        for other in list(self._followers.values()):
            if other.id and other.id == asked.broker_id and other.address != asked.broker_address:
                self._drop(other)
                del self._followers[other.address]  # it returned under another address
        found = self._followers.get(asked.broker_address)
        if found is None:
            if len(self._followers) >= FOLLOWERS_MAX:
                raise Refused(
                    ResponseCode.SYSTEM_BUSY, f"{FOLLOWERS_MAX} followers watch the tables of this leader"
                )
            found = self._followers[asked.broker_address] = _Follower(asked.broker_address)
        found.id = asked.broker_id
        self._told_alone = False
        return found

    def _look_at_waits(self, follower: _Follower) -> None:
        for wait in self._waits:
            if follower.has >= wait.serial:
                wait.missing -= {follower.address, _not_asking(follower.id)}
                if not wait.missing:
                    wait.end()

    def _set_changed(self) -> None:
        """Stop waiting for followers that can no longer be elected."""
        if self._waits and self._in_sync is not None:
            counting = {one.address for one in self._counting()}
            counting |= {_not_asking(id) for id in self._in_sync.electable}
            for wait in self._waits:
                wait.missing &= counting
                if not wait.missing:
                    wait.end()

    def _wake(self) -> None:
        """Answer waiting requests, once for all changes of this turn of the loop."""
        if not self._is_woken and self._followers:
            self._is_woken = True
            asyncio.get_running_loop().call_soon(self._tell_all)

    def _tell_all(self) -> None:
        self._is_woken = False
        for follower in list(self._followers.values()):
            self._tell(follower)

    def _tell(self, follower: _Follower) -> None:
        self._release(follower, Answer(body=self._news(follower).encode()))

    def _release(self, follower: _Follower, answer: Answer) -> None:
        held = follower.held
        self._drop(follower)
        if held is not None:
            follower.asked_s = self._clock.monotonic_s()
            held.answer(answer)

    @staticmethod
    def _drop(follower: _Follower) -> None:
        follower.held = None
        if follower.timer is not None:
            follower.timer.cancel()
            follower.timer = None

    def _news(self, follower: _Follower) -> TableNews:
        has = follower.has
        tables = [table for table in TABLES if not has or self._marks.get(table, 0) > has]
        commits: dict[str, dict[int, int]] = {}
        if has and has < self._commits_from and "offsets" not in tables:
            tables.append("offsets")
        if "offsets" not in tables:
            for (key, queue_id), serial in reversed(self._commits.items()):
                if serial <= has:
                    break
                offset = self._offsets.offsets.get(key, {}).get(queue_id)
                if offset is not None:
                    commits.setdefault(key, {})[queue_id] = offset
        return TableNews(life=self._life, serial=self._serial, tables=tuple(tables), offsets=commits)
