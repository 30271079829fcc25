"""Inputs of every room of the broker: settings, clock, store, the lanes by which requests arrive, and the
connections to other servers. Interface of a room."""

from __future__ import annotations

import random
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Protocol

from kerolox.access.guard import Guard
from kerolox.broker.endpoints import Endpoints
from kerolox.broker.options import BrokerOptions
from kerolox.broker.role.leadership import Leadership
from kerolox.clock import Clock
from kerolox.front.lanes import BODY_BYTES_MAX, Lane
from kerolox.net.dialer import Dialer
from kerolox.store.message_store import MessageStore


def new_start() -> int:
    """Return a random number for one process of a broker. It tells this process from later ones, and from one
    that runs on a copy of its files."""
    return random.getrandbits(62) + 1


class Started(Protocol):
    """Part that starts and closes in the order that the broker gives."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...


class Room:
    """Parts of the broker for one noun. The constructor makes and connects them. The broker starts its rooms
    in their order, and closes those that were started in the opposite order."""

    async def start(self) -> None: ...

    async def close(self) -> None: ...


Action = Callable[[], Awaitable[None]]


async def _nothing() -> None: ...


class Step(Room):
    """One place in the order of the rooms, for a part that starts or stops at another time than its room."""

    def __init__(self, start: Action = _nothing, close: Action = _nothing) -> None:
        self._start = start
        self._close = close

    async def start(self) -> None:
        await self._start()

    async def close(self) -> None:
        await self._close()


@dataclass(frozen=True, slots=True)
class Base:
    """``dialer``: connections to other brokers and name servers, shared by all parts but those that must know
    when a connection ends, or that must end their own: registrations, controllers, members of DLedger
    groups."""

    options: BrokerOptions
    clock: Clock
    store: MessageStore
    lanes: dict[str, Lane]
    endpoints: Endpoints
    leadership: Leadership
    guard: Guard
    dialer: Dialer
    start: int = field(default_factory=new_start)


def lanes_of(options: BrokerOptions, clock: Clock) -> dict[str, Lane]:
    """Return the lanes by name. Each has its own limits: a flood of one kind of request does not starve the
    others."""
    lanes = [
        Lane("send", clock=clock),
        Lane("pull", waiting_max=100_000, clock=clock),
        Lane("ack", waiting_max=100_000, age_s_max=3.0, clock=clock),
        Lane("heartbeat", waiting_max=50_000, clock=clock),
        Lane("reply", running_max=1024, clock=clock),  # each request waits for a client
        Lane("transaction", waiting_max=100_000, clock=clock),
        Lane("query_message", waiting_max=20_000, clock=clock),
        Lane("client_manager", waiting_max=1_000_000, age_s_max=31.0, clock=clock),
        Lane("consumer_manager", waiting_max=1_000_000, age_s_max=31.0, clock=clock),
        Lane("admin", running_max=16, clock=clock),
    ]
    for lane in lanes:
        if lane.name not in ("send", "reply"):  # requests of the other two lanes carry messages
            lane.body_bytes_max = BODY_BYTES_MAX
    found = {lane.name: lane for lane in lanes}
    set_ages(found, options)
    return found


def set_ages(lanes: dict[str, Lane], options: BrokerOptions) -> None:
    """Set how long a request may wait before it is rejected. These options can change while the broker
    runs."""
    lanes["send"].age_s_max = options.send_wait_ms / 1000
    lanes["pull"].age_s_max = options.pull_wait_ms / 1000
    lanes["heartbeat"].age_s_max = options.heartbeat_wait_ms / 1000
    lanes["admin"].age_s_max = options.admin_wait_ms / 1000
    lanes["transaction"].age_s_max = options.transaction_wait_ms / 1000
