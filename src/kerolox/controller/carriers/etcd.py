"""Carrier for several controllers, with the state in an etcd cluster.

Keys below a prefix, for each group of controllers::

    /kerolox/group1/leader             the leading controller; the key expires with its lease
    /kerolox/group1/groups/broker-a    one group of brokers, a document (document.py)

The *token* of a leader is the create revision of the leader key, the *revision* of a group the mod revision
of its key: etcd assigns both, and no number twice. Each commit is one etcd transaction that compares both and
changes nothing if either differs. So a controller may be stalled for any time without harm.

The lease is only a hint that a controller leads. The leader knows by its own clock when the lease may have
expired, and stops answering as leader. If the result of a commit is unknown, it resigns: once the leader key
is a different one, a commit in flight can no longer change anything, and the next leader loads the current
state.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator

import msgspec

from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.controller.carriers.carrier import (
    NEW,
    Deposed,
    LeadingController,
    RevisionConflict,
    StoredState,
)
from kerolox.controller.carriers.document import StateUnusable, decode, encode
from kerolox.controller.carriers.etcd_client import EtcdClient, EtcdUnreachable, EtcdUnsure, rpc
from kerolox.controller.etcd_access import EtcdAccess
from kerolox.controller.state import GROUPS_MAX, ControllerState, ReplicaGroup
from kerolox.errors import KeroloxError

log = logging.getLogger(__name__)

VALUE_BYTES_MAX = 1 << 20  # per group; etcd's limit of a request is 1.5 MiB
PAGE = 20  # groups read per request
PAUSE_S = 0.3  # before a failed request is retried
RESIGN_S = 1.0  # limit at close, if the cluster does not answer


class _Place(msgspec.Struct, frozen=True):
    """The value of the leader key."""

    id: str
    address: str


class _Seen(msgspec.Struct, frozen=True):
    """The leader key at a revision of etcd. ``is_known`` is false if etcd has not answered for a lease's
    time."""

    revision: int
    token: int = 0  # 0: the key does not exist
    value: bytes = b""
    is_known: bool = True


class EtcdCarrier:
    """The state in etcd."""

    def __init__(
        self,
        access: EtcdAccess,
        *,
        group: str,
        prefix: str = "/kerolox",
        lease_s: int = 5,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self._client = EtcdClient(access)
        self._clock = clock
        self._lease_s = lease_s
        root = f"{prefix.rstrip('/')}/{group}"
        self._leader_key = f"{root}/leader".encode()
        self._groups_key = f"{root}/groups/".encode()
        self._token = 0  # 0 unless this controller leads, as far as it knows
        self._lease = 0
        self._until_s = 0.0  # the lease has not expired before this time on the local clock
        self._renewing: asyncio.Task[None] | None = None
        self._resigning: asyncio.Task[None] | None = None
        self._turn = asyncio.Lock()  # serializes commits and loads
        self._unusable: bytes | None = None  # value of the leader key that was reported as unusable

    async def open(self) -> None:
        await self._client.open()
        with contextlib.suppress(EtcdUnreachable):  # etcd may come up later; a damaged state is reported now
            await self.load()

    async def close(self) -> None:
        try:
            async with asyncio.timeout(RESIGN_S):
                await self._resign()
        except (TimeoutError, KeroloxError) as error:
            log.warning("not_resigned error=%r next='the lease expires automatically'", str(error))
        for task in (self._renewing, self._resigning):
            if task is not None:
                task.cancel()
        await self._client.close()

    # --- the groups ---------------------------------------------------------------------------

    async def load(self) -> StoredState:
        async with self._turn:
            return await self._load()

    async def _load(self) -> StoredState:
        groups: dict[str, ReplicaGroup] = {}
        revisions: dict[str, int] = {}
        start, end, at = self._groups_key, _after(self._groups_key), 0
        while True:
            page = await self._client.range(
                rpc.RangeRequest(key=start, range_end=end, limit=PAGE, revision=at)
            )
            if page.count + len(groups) > GROUPS_MAX:
                raise StateUnusable(
                    self._where(self._groups_key), f"it has more keys than the limit of {GROUPS_MAX} groups"
                )
            for kv in page.kvs:
                name = kv.key[len(self._groups_key) :].decode(errors="replace")
                groups[name] = self._group(kv, name)
                revisions[name] = kv.mod_revision
            if not page.more:
                return StoredState(ControllerState(groups), revisions)
            start, at = page.kvs[-1].key + b"\0", at or page.header.revision

    async def commit(self, token: int, name: str, revision: int, group: ReplicaGroup | None) -> int:
        # A cancelled caller must not stop the commit midway or release the turn early.
        return await asyncio.shield(asyncio.ensure_future(self._commit_in_turn(token, name, revision, group)))

    async def _commit_in_turn(self, token: int, name: str, revision: int, group: ReplicaGroup | None) -> int:
        async with self._turn:
            return await self._commit(token, name, revision, group)

    async def _commit(self, token: int, name: str, revision: int, group: ReplicaGroup | None) -> int:
        key = self._groups_key + name.encode()
        if group is None:
            change = rpc.RequestOp(request_delete_range=rpc.DeleteRangeRequest(key=key))
        else:
            value = encode(group)
            if len(value) > VALUE_BYTES_MAX:
                raise StateUnusable(self._where(key), f"it would have more than {VALUE_BYTES_MAX} bytes")
            change = rpc.RequestOp(request_put=rpc.PutRequest(key=key, value=value))
        request = rpc.TxnRequest(
            compare=[_created(self._leader_key, token), _modified(key, revision)],
            success=[change],
            failure=[_get(self._leader_key), _get(key)],
        )
        try:
            response = await self._client.change(request)
        except EtcdUnsure:
            self._give_up(token)
            raise
        if response.succeeded:
            return int(response.header.revision)
        leader, found = (each.response_range.kvs for each in response.responses)
        if not leader or leader[0].create_revision != token:
            self._give_up(token)
            raise Deposed(
                token, f"the token is {leader[0].create_revision}" if leader else "no controller leads"
            )
        raise RevisionConflict(name, revision, found[0].mod_revision if found else NEW)

    def _group(self, kv: rpc.KeyValue, name: str) -> ReplicaGroup:
        where = self._where(kv.key)
        if len(kv.value) > VALUE_BYTES_MAX:
            raise StateUnusable(where, f"it has more than {VALUE_BYTES_MAX} bytes")
        group = decode(kv.value, ReplicaGroup, where)
        if group.name != name:
            raise StateUnusable(where, f"it belongs to group {group.name!r}")
        return group

    def _where(self, key: bytes) -> str:
        return f"in etcd, key {key.decode(errors='replace')!r},"

    # --- leading ------------------------------------------------------------------------------

    async def lead(self, id: str, address: str) -> int:
        await self._resign()
        async for seen in self._follow():
            if seen.is_known and not seen.token and await self._campaign(_Place(id, address)):
                return self._token
        raise AssertionError("it is followed for ever")

    def holds(self, token: int) -> bool:
        return token == self._token and self._clock.monotonic_s() < self._until_s

    async def leader(self) -> LeadingController | None:
        return self._leading(await self._look())

    async def watch(self) -> AsyncIterator[LeadingController | None]:
        told = False
        last: LeadingController | None = None
        async for seen in self._follow():
            if seen.is_known and seen.revision < self._token:
                continue  # older than this controller's leadership
            try:
                leader = self._leading(seen)
            except StateUnusable as error:
                if self._unusable != seen.value:
                    log.error("leader_unknown error=%r", str(error))
                self._unusable = seen.value
                leader = None
            if not told or leader != last:
                told, last = True, leader
                yield leader

    async def _campaign(self, place: _Place) -> bool:
        """Create the leader key if it does not exist. Return whether this controller leads."""
        asked_s = self._clock.monotonic_s()
        granted = await self._client.grant(self._lease_s)
        self._lease = granted.ID
        request = rpc.TxnRequest(
            compare=[_created(self._leader_key, 0)],
            success=[
                rpc.RequestOp(
                    request_put=rpc.PutRequest(key=self._leader_key, value=encode(place), lease=granted.ID)
                )
            ],
        )
        response = await self._client.change(request)
        if not response.succeeded:
            await self._resign()  # another controller was faster
            return False
        self._token = response.header.revision
        self._until_s = asked_s + _surely(granted.TTL)
        self._renewing = asyncio.get_running_loop().create_task(self._renew(self._token, granted.ID))
        return True

    async def _renew(self, token: int, lease: int) -> None:
        """Renew the lease. If renewals fail, the local clock ends the leadership in time; if a later renewal
        succeeds, no other controller has led meanwhile."""
        pause_s = self._lease_s / 4
        complained = False
        while token == self._token:
            await self._clock.sleep(pause_s)
            asked_s = self._clock.monotonic_s()
            try:
                seconds = await self._client.renew(lease, max(0.5, self._lease_s / 4))
            except KeroloxError as error:
                if not complained:
                    log.warning("lease_not_renewed error=%r next='retried'", str(error))
                complained, pause_s = True, PAUSE_S
                continue
            complained, pause_s = False, self._lease_s / 4
            if seconds <= 0:
                log.warning("lease_ran_out token=%d next='another controller leads'", token)
                self._give_up(token)
            elif token == self._token:
                self._until_s = asked_s + _surely(seconds)

    def _give_up(self, token: int) -> None:
        """Stop leading at once, and revoke the lease."""
        if token != self._token:
            return
        self._token, self._until_s = 0, 0.0
        self._resigning = asyncio.get_running_loop().create_task(self._resign_soon())

    async def _resign_soon(self) -> None:
        try:
            await self._resign()
        except KeroloxError as error:
            log.warning("not_resigned error=%r next='the lease expires automatically'", str(error))

    async def _resign(self) -> None:
        """Revoke the lease. After the return, nothing started with the old lease and token can take
        effect."""
        self._token, self._until_s = 0, 0.0
        if self._renewing is not None:
            self._renewing.cancel()
        lease = self._lease
        if lease:
            await self._client.revoke(lease)
            if lease == self._lease:
                self._lease = 0

    # --- the leading controller ----------------------------------------------------------------

    async def _look(self) -> _Seen:
        found = await self._client.range(rpc.RangeRequest(key=self._leader_key))
        if not found.kvs:
            return _Seen(found.header.revision)
        return _Seen(found.header.revision, found.kvs[0].create_revision, found.kvs[0].value)

    async def _follow(self) -> AsyncIterator[_Seen]:
        """Yield the leader key, now and after each change. It is also read every few seconds, and from
        another member if one does not answer."""
        heard_s = self._clock.monotonic_s()
        complained = False
        while True:
            try:
                seen = await self._look()
            except KeroloxError as error:
                if not complained:
                    log.warning("etcd_lost error=%r", str(error))
                    complained = True
                if self._clock.monotonic_s() - heard_s > self._lease_s:
                    yield _Seen(0, is_known=False)
                await self._clock.sleep(PAUSE_S)
                continue
            heard_s = self._clock.monotonic_s()
            if complained:
                log.info("etcd_found_again revision=%d", seen.revision)
                complained = False
            yield seen
            async with contextlib.aclosing(
                self._client.watch(self._leader_key, seen.revision + 1, self._lease_s / 2)
            ) as events:
                async for event in events:
                    kv = event.kv
                    if event.type == rpc.Event.PUT:
                        yield _Seen(kv.mod_revision, kv.create_revision, kv.value)
                    else:
                        yield _Seen(kv.mod_revision)
            if self._clock.monotonic_s() - heard_s < PAUSE_S:
                await self._clock.sleep(PAUSE_S)  # do not poll a member that ends watches at once

    def _leading(self, seen: _Seen) -> LeadingController | None:
        if not seen.token:
            return None
        place = decode(seen.value, _Place, self._where(self._leader_key))
        return LeadingController(place.id, place.address, seen.token)


def _surely(seconds: float) -> float:
    """Return the part of a lease that is certainly left: clocks run at slightly different speeds."""
    return seconds * 0.9


def _after(prefix: bytes) -> bytes:
    """Return the first key after all keys with this prefix."""
    return prefix[:-1] + bytes([prefix[-1] + 1])


def _created(key: bytes, revision: int) -> rpc.Compare:
    return rpc.Compare(key=key, target=rpc.Compare.CREATE, result=rpc.Compare.EQUAL, create_revision=revision)


def _modified(key: bytes, revision: int) -> rpc.Compare:
    return rpc.Compare(key=key, target=rpc.Compare.MOD, result=rpc.Compare.EQUAL, mod_revision=revision)


def _get(key: bytes) -> rpc.RequestOp:
    return rpc.RequestOp(request_range=rpc.RangeRequest(key=key))
