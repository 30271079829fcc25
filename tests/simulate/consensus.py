"""A consensus engine of several controllers, as etcd behaves: one history, compared before each change.

Who leads holds a key with a lease. The lease runs by the engine's time: a controller that is paused, or cut
off from the engine, loses it and does not know. Calls may fail before or after they were carried out, and
the caller cannot tell which.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import TypeVar

from kerolox.controller.carriers.carrier import (
    NEW,
    Deposed,
    LeadingController,
    RevisionConflict,
    StoredState,
)
from kerolox.controller.state import ControllerState, ReplicaGroup
from kerolox.errors import KeroloxError

from .loop import current
from .network import Network

T = TypeVar("T")

CALL_TIMEOUT_S = 1.0
LEASE_S = 3.0
LOOK_S = 0.3


class EngineUnreachable(KeroloxError):
    """No answer: it may have been carried out."""

    retriable = True


class Engine:
    """What all members agree on."""

    def __init__(self, network: Network, ip: str) -> None:
        self.ip = ip
        self.network = network
        self.revision = 0
        self.groups: dict[str, tuple[int, ReplicaGroup]] = {}
        self.leader: LeadingController | None = None
        self.until_s = 0.0  # the lease of the leader
        self.commits: list[tuple[int, str, ReplicaGroup | None]] = []  # token, name, what it became

    def expire(self) -> None:
        if self.leader is not None and self.network.loop.time() > self.until_s:
            self.leader = None

    def try_lead(self, id: str, address: str) -> int | None:
        self.expire()
        if self.leader is not None:
            return None
        self.revision += 1
        self.leader = LeadingController(id, address, self.revision)
        self.until_s = self.network.loop.time() + LEASE_S
        return self.revision

    def keep_alive(self, token: int) -> bool:
        self.expire()
        if self.leader is None or self.leader.token != token:
            return False
        self.until_s = self.network.loop.time() + LEASE_S
        return True

    def give_up(self, token: int) -> None:
        if self.leader is not None and self.leader.token == token:
            self.leader = None

    def who(self) -> LeadingController | None:
        self.expire()
        return self.leader

    def load(self) -> StoredState:
        return StoredState(
            ControllerState({name: group for name, (_, group) in self.groups.items()}),
            {name: revision for name, (revision, _) in self.groups.items()},
        )

    def commit(self, token: int, name: str, revision: int, group: ReplicaGroup | None) -> int:
        self.expire()
        if self.leader is None or self.leader.token != token:
            raise Deposed(token, "another one leads, or nobody")
        found = self.groups[name][0] if name in self.groups else NEW
        if found != revision:
            raise RevisionConflict(name, revision, found)
        self.revision += 1
        if group is None:
            self.groups.pop(name, None)
        else:
            self.groups[name] = (self.revision, group)
        self.commits.append((token, name, group))
        return self.revision


class EngineCarrier:
    """A controller's way to the engine."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._ip = current().ip
        self._token: int | None = None
        self._until_s = 0.0  # the lease has not run out before
        self._keeping: asyncio.Task[None] | None = None

    async def open(self) -> None:
        return

    async def close(self) -> None:
        if self._keeping is not None:
            self._keeping.cancel()
        if self._token is not None:
            token = self._token
            with suppress(EngineUnreachable):
                await self._call(lambda: self._engine.give_up(token))

    async def load(self) -> StoredState:
        return await self._call(self._engine.load)

    async def commit(self, token: int, name: str, revision: int, group: ReplicaGroup | None) -> int:
        return await self._call(lambda: self._engine.commit(token, name, revision, group))

    async def lead(self, id: str, address: str) -> int:
        # Who asks again has stepped down: the key it may still have must not be kept alive, and bar all.
        if self._keeping is not None:
            self._keeping.cancel()
        while True:
            asked_s = asyncio.get_running_loop().time()
            token = await self._call(lambda: self._engine.try_lead(id, address))
            if token is not None:
                break
            await asyncio.sleep(LOOK_S)
        self._token, self._until_s = token, asked_s + LEASE_S
        self._keeping = asyncio.get_running_loop().create_task(self._keep_alive(token))
        return token

    def holds(self, token: int) -> bool:
        return token == self._token and asyncio.get_running_loop().time() < self._until_s

    async def leader(self) -> LeadingController | None:
        return await self._call(self._engine.who)

    async def watch(self) -> AsyncIterator[LeadingController | None]:
        before: LeadingController | None = None
        yield None
        heard_s = asyncio.get_running_loop().time()
        while True:
            now_s = asyncio.get_running_loop().time()
            try:
                found = await self._call(self._engine.who)
                heard_s = now_s
            except EngineUnreachable:
                found = before if now_s - heard_s < LEASE_S else None
            if found != before:
                before = found
                yield found
            await asyncio.sleep(LOOK_S)

    async def _keep_alive(self, token: int) -> None:
        while True:
            await asyncio.sleep(LEASE_S / 3)
            asked_s = asyncio.get_running_loop().time()
            with suppress(EngineUnreachable):
                if not await self._call(lambda: self._engine.keep_alive(token)):
                    return
                self._until_s = asked_s + LEASE_S

    async def _call(self, ask: Callable[[], T]) -> T:
        network, here, there = self._engine.network, self._ip, self._engine.ip
        await asyncio.sleep(network.delay_s(here, there))
        if not network.passes(here, there):
            await asyncio.sleep(CALL_TIMEOUT_S)
            raise EngineUnreachable("the consensus engine does not answer: asked again soon")
        answer = ask()
        await asyncio.sleep(network.delay_s(there, here))
        if not network.passes(there, here):
            await asyncio.sleep(CALL_TIMEOUT_S)
            raise EngineUnreachable("the consensus engine does not answer: asked again soon")
        return answer
