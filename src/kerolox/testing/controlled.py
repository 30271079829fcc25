"""Brokers of one name under a controller, for tests: one of them leads, and another is elected when it fails.

::

    async with running_controlled(brokers=3) as group:
        group.nameserver_address            # address for clients
        await group.leading()               # the RunningBroker that leads, once there is one
        await group.in_sync(3)              # the in-sync set has 3 members
        number = group.number_of(await group.leading())
        await group.kill(number)            # like SIGKILL; stop(number): as an operator
        await group.leading(but=number)     # another broker leads
        await group.start_again(number)     # with the same addresses and files
        group.control_link(number).cut()    # its connection to the controller, until heal()
        group.link(number).cut()            # its connection to the leader; also one_way=..., slow(...)
        await group.stop_controller()       # and start_controller()

Brokers are numbered from 1 on, by the ids that the controller assigns.
"""

from __future__ import annotations

import asyncio
import random
import socket
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kerolox.broker.role.value import LeaderAddress
from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.controller.controller import Controller
from kerolox.controller.options import ControllerOptions
from kerolox.errors import KeroloxError, OptionError
from kerolox.nameserver.server import NameServer
from kerolox.testing.broker import RunningBroker, broker_settings, running_broker
from kerolox.testing.cluster import FollowerLink
from kerolox.testing.nameserver import running_nameserver
from kerolox.testing.network import Relay

WAIT_S = 20.0
LOOK_S = 0.005
BROKERS_MAX = 16
HEARTBEAT_MS = 200
LASTING_PORTS = 12_000, 32_000
PORT_TRIES = 1000


class NotThereYet(KeroloxError):
    """Condition that was not met in time."""


class ControlLink:
    """Connection of a broker to the controllers."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    def cut(self, *, silently: bool = False) -> None:
        """Close its connections, and every new one, until :meth:`heal`. ``silently``: they stay open, and no
        data arrives in either direction until then."""
        if silently:
            self._relay.stall(answers=True)
            self._relay.stall(answers=False)
        else:
            self._relay.refuse()

    def heal(self) -> None:
        self._relay.accept()
        self._relay.resume()


@dataclass
class RunningControlled:
    """Controller, name server, and brokers of one name."""

    controller: Controller
    nameserver: NameServer
    brokers: dict[int, RunningBroker] = field(default_factory=dict)  # brokers by number
    _control_links: dict[int, ControlLink] = field(default_factory=dict)
    _relays: dict[int, Relay] = field(default_factory=dict)  # relays to the leader
    _clock: Clock = SYSTEM_CLOCK

    @property
    def nameserver_address(self) -> str:
        return self.nameserver.address

    def broker(self, number: int) -> RunningBroker:
        found = self.brokers.get(number)
        if found is None:
            raise OptionError("broker", number, f"one of {', '.join(map(str, self.brokers))}")
        return found

    def number_of(self, broker: RunningBroker) -> int:
        return next(number for number, one in self.brokers.items() if one is broker)

    def control_link(self, number: int) -> ControlLink:
        """Return the link between this broker and the controller."""
        self.broker(number)
        return self._control_links[number]

    def link(self, number: int) -> FollowerLink:
        """Return the link of this broker to the current leader, for replication and requests."""
        self.broker(number)
        return FollowerLink(self._relays[number])

    @property
    def leader(self) -> RunningBroker | None:
        """Return the leader in the newest epoch, among the running brokers; None without one."""
        leaders = [one for one in self.brokers.values() if one.is_running and one.broker.leadership.leads]
        return max(leaders, key=lambda one: _epoch(one), default=None)

    async def kill(self, number: int) -> None:
        """End a broker as SIGKILL does: connections close without notice, and nothing more is written."""
        await self.broker(number).kill()

    async def stop(self, number: int) -> None:
        await self.broker(number).stop()

    async def start_again(self, number: int) -> None:
        """Start a broker that was stopped or killed, with the same addresses and files."""
        await self.broker(number).start()
        self._use_link(number)

    def _use_link(self, number: int) -> None:
        """Route the broker's connection to the leader through its relay.

        Brokers ask for the leader only some round trips after their start, so this is early enough.
        """
        relay, controlled = self._relays[number], self.broker(number).broker.controlled

        async def way(found: LeaderAddress) -> LeaderAddress:
            return LeaderAddress(await relay.proxy(found.address), await relay.proxy(found.ha_address))

        assert controlled is not None
        controlled.search.way = way

    async def stop_controller(self) -> None:
        await self.controller.close()

    async def start_controller(self) -> None:
        """Start the controller again, with the same address and files."""
        before = self.controller
        await before.close()
        options = before.options
        options.listen_port = before.port
        self.controller = Controller(options, clock=self._clock)
        await self.controller.start()

    # --- waiting --------------------------------------------------------------------------------------

    async def leading(self, *, but: int = 0, timeout_s: float = WAIT_S) -> RunningBroker:
        """Wait until a broker other than ``but`` leads, and return it."""
        await self.until(
            lambda: self.leader is not None and self.leader is not self.brokers.get(but),
            "leader", timeout_s,
        )  # fmt: skip
        assert self.leader is not None
        return self.leader

    async def has_role(self, number: int, timeout_s: float = WAIT_S) -> None:
        """Wait until a broker knows its role."""
        one = self.broker(number)
        await self.until(lambda: not one.broker.leadership.waits_for, f"role of broker {number}", timeout_s)

    async def in_sync(self, count: int, timeout_s: float = WAIT_S) -> None:
        """Wait until the in-sync set has ``count`` members, including the leader."""
        await self.until(lambda: len(self._members()) == count, f"{count} brokers in sync", timeout_s)

    async def caught_up(self, timeout_s: float = WAIT_S) -> None:
        """Wait until every running broker has what the leader has: messages, queues, topics."""
        await self.until(lambda: not self._lacking(), "replication to all brokers", timeout_s)

    async def until(self, condition: Callable[[], object], what: str, timeout_s: float = WAIT_S) -> None:
        """Wait until a condition is true. Raise NotThereYet with the state of the brokers."""
        try:
            async with asyncio.timeout(timeout_s):
                while not condition():  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            raise NotThereYet(f"no {what} in {timeout_s:g} s. {self.describe()}") from None

    def describe(self) -> str:
        return "; ".join(f"broker {number}: {_describe(one)}" for number, one in self.brokers.items())

    def _members(self) -> frozenset[int]:
        leader = self.leader
        if leader is None or leader.broker.replication.epochs is None:
            return frozenset()
        return leader.broker.replication.epochs.in_sync.members

    def _lacking(self) -> bool:
        leader = self.leader
        if leader is None:
            return True
        goal, version = leader.broker.store.log.max_offset, leader.broker.tables.topics.table.version
        for one in self.brokers.values():
            if one.is_running and one is not leader:
                broker = one.broker
                if broker.store.log.max_offset != goal or broker.store.dispatcher.dispatched < goal:
                    return True
                if broker.tables.topics.table.version != version:
                    return True
        return leader.broker.store.progress.confirmed < goal


def _epoch(one: RunningBroker) -> int:
    return 0 if one.broker.controlled is None else one.broker.controlled.elections.mastership.epoch


def _describe(one: RunningBroker) -> str:
    if not one.is_running:
        return "down"
    broker = one.broker
    leads = "leads" if broker.leadership.leads else broker.leadership.waits_for or "follows"
    return (
        f"{leads} epoch={_epoch(one)} end={broker.store.log.max_offset} "
        f"confirmed={broker.store.progress.confirmed} link={broker.replication.follower.text!r}"
    )


def _lasting_port() -> int:
    """Return a port for a broker that starts several times: free with its neighbours, and outside the range
    of outgoing connections, which could take it in between."""
    for _ in range(PORT_TRIES):
        port = random.randrange(*LASTING_PORTS)
        try:
            for one in (port, port + 1, port - 2):
                with socket.socket() as probe:
                    probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                    probe.bind(("127.0.0.1", one))
        except OSError:
            continue
        return port
    raise KeroloxError(
        f"no free port in {PORT_TRIES} tries between {LASTING_PORTS[0]} and {LASTING_PORTS[1]}"
    )


@asynccontextmanager
async def running_controlled(
    brokers: int = 3,
    *,
    directory: Path | None = None,
    clock: Clock = SYSTEM_CLOCK,
    **options: Any,
) -> AsyncIterator[RunningControlled]:
    """Run ``brokers`` brokers ``broker-a`` under a controller, and a name server. The first one is the first
    leader, and all are in sync. ``options`` apply to all brokers."""
    if isinstance(brokers, bool) or not isinstance(brokers, int) or not 1 <= brokers <= BROKERS_MAX:
        raise OptionError("brokers", brokers, f"a number from 1 to {BROKERS_MAX}")
    own = {"ha_heartbeat_ms": HEARTBEAT_MS, "slave_read": True, **broker_settings(options)}
    async with AsyncExitStack() as stack:
        place = directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kerolox-group-")))
        controller = Controller(
            ControllerOptions(
                bind_address="127.0.0.1",
                listen_port=0,
                store_path=str(place / "controller"),
                config_store_path=str(place / "controller.properties"),
            ),
            clock=clock,
        )
        await controller.start()
        nameserver = await stack.enter_async_context(
            running_nameserver(directory=place / "nameserver", clock=clock)
        )
        group = RunningControlled(controller, nameserver, _clock=clock)
        stack.push_async_callback(group.stop_controller)
        for number in range(1, brokers + 1):
            relay, to_leader = Relay(), Relay()
            stack.push_async_callback(relay.close)
            stack.push_async_callback(to_leader.close)
            settings = own | {"controlled": True, "controllers": await relay.proxy(controller.address)}
            settings.setdefault("listen_port", _lasting_port())
            one = await stack.enter_async_context(
                running_broker(
                    directory=place / f"broker-{number}", nameserver=nameserver, clock=clock, **settings
                )
            )
            group.brokers[number], group._control_links[number] = one, ControlLink(relay)
            group._relays[number] = to_leader
            group._use_link(number)
            await group.has_role(number)
        await group.in_sync(brokers)
        yield group
