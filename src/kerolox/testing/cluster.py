"""Brokers that share a name server, for tests: leaders, their followers, and the links between them.

::

    async with running_cluster(brokers=2, followers=1, sync=True) as cluster:
        cluster.nameserver_address              # address for clients
        cluster.leaders["broker-a"]             # a RunningBroker
        cluster.followers("broker-a")[1]        # its followers by id, RunningBrokers too
        await cluster.caught_up()               # every follower has everything its leader has
        await cluster.kill("broker-a")          # like SIGKILL; kill("broker-a", 1): a follower
        await cluster.start_again("broker-a")   # with the same addresses and files
        cluster.link("broker-a", 1).cut()       # until heal(); also one_way=..., slow(...)

Followers may be read (``slaveReadEnable``), and reach their leader only through their link: replication and
requests use it.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kerolox.broker.options import BrokerRole
from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.errors import KeroloxError, OptionError
from kerolox.nameserver.server import NameServer
from kerolox.protocol.command import decode_command
from kerolox.protocol.frame import FrameSplitter, pack_frame
from kerolox.testing.broker import RunningBroker, broker_settings, running_broker
from kerolox.testing.nameserver import running_nameserver
from kerolox.testing.network import Relay

TO_FOLLOWER = "to_follower"
TO_LEADER = "to_leader"
CAUGHT_UP_S = 20.0
LOOK_S = 0.005
ASK_AGAIN_S = 0.5
FOLLOWERS_MAX = 16  # followers of one leader
HEARTBEAT_MS = 200  # interval at which a leader without messages reports that


class NotCaughtUp(KeroloxError):
    """Followers that lack data of their leader."""


class FollowerLink:
    """Connection of a follower to its leader."""

    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    def cut(self, *, one_way: str = "") -> None:
        """Close its connections, and every new one, until :meth:`heal`. ``one_way``: they stay open, and data
        ``"to_follower"`` or ``"to_leader"`` does not arrive until then."""
        if one_way not in ("", TO_FOLLOWER, TO_LEADER):
            raise OptionError("one_way", one_way, f'"{TO_FOLLOWER}" or "{TO_LEADER}", or none for both ways')
        if one_way:
            self._relay.stall(answers=one_way == TO_FOLLOWER)
        else:
            self._relay.refuse()

    def slow(self, *, delay_s: float = 0.0, bytes_per_s: int = 0) -> None:
        """Delay every piece of data, or limit the bytes per second, until :meth:`heal`."""
        if delay_s < 0 or bytes_per_s < 0 or not (delay_s or bytes_per_s):
            raise OptionError("slow", (delay_s, bytes_per_s), "delay_s or bytes_per_s above 0")
        self._relay.delay_s, self._relay.bytes_per_s = delay_s, bytes_per_s

    def heal(self) -> None:
        """Remove all faults. A follower reconnects to a lost leader within 5 s."""
        self._relay.accept()
        self._relay.resume()
        self._relay.delay_s, self._relay.bytes_per_s = 0.0, 0

    @property
    def connections(self) -> int:
        return self._relay.connections


@dataclass
class RunningCluster:
    """Brokers that share a name server."""

    nameserver: NameServer
    leaders: dict[str, RunningBroker] = field(default_factory=dict)  # leaders by broker name
    _followers: dict[str, dict[int, RunningBroker]] = field(default_factory=dict)
    _links: dict[tuple[str, int], FollowerLink] = field(default_factory=dict)

    @property
    def nameserver_address(self) -> str:
        return self.nameserver.address

    @property
    def brokers(self) -> list[RunningBroker]:
        """Return the leaders, in the order of their names."""
        return list(self.leaders.values())

    def followers(self, name: str) -> Mapping[int, RunningBroker]:
        """Return the followers of a broker name by id: 1, 2 and so on."""
        self.broker(name)
        return self._followers.get(name, {})

    def broker(self, name: str, broker_id: int = 0) -> RunningBroker:
        """Return the leader of a broker name, or its follower with this id."""
        found = self._followers.get(name, {}).get(broker_id) if broker_id else self.leaders.get(name)
        if found is None:
            known = [f"{name} {id}" for name in self.leaders for id in (0, *self._followers.get(name, {}))]
            raise OptionError("broker", f"{name} {broker_id}", f"one of the cluster: {', '.join(known)}")
        return found

    def link(self, name: str, follower_id: int) -> FollowerLink:
        """Return the link between a leader and the follower with this id."""
        self.broker(name, follower_id)
        if not follower_id:
            raise OptionError("follower_id", follower_id, "1 or more: a leader has a link to each follower")
        return self._links[name, follower_id]

    async def create_topic(self, topic: str, *, queues: int = 4, attributes: str = "") -> None:
        """Create a topic on every leader, with this number of queues on each. Followers get it within some
        seconds, or by :meth:`caught_up`."""
        for broker in self.brokers:
            await broker.create_topic(topic, queues=queues, attributes=attributes)

    async def stop(self, name: str, broker_id: int = 0) -> None:
        """Stop a broker as an operator does. No client can connect until it starts again."""
        await self.broker(name, broker_id).stop()

    async def kill(self, name: str, broker_id: int = 0) -> None:
        """End a broker as SIGKILL does: connections close without notice, and nothing more is written."""
        await self.broker(name, broker_id).kill()

    async def start_again(self, name: str, broker_id: int = 0) -> None:
        """Start a broker that was stopped or killed, with the same addresses and files."""
        await self.broker(name, broker_id).start()

    async def caught_up(self, timeout_s: float = CAUGHT_UP_S) -> None:
        """Wait until every running follower has what its leader has now: messages, queues, topics, groups and
        their progress. Raise NotCaughtUp with the state of each follower."""
        waiting = [
            _Pair(f"{name} {id}", leader, follower)
            for name, leader in self.leaders.items()
            for id, follower in self._followers.get(name, {}).items()
            if leader.is_running and follower.is_running
        ]
        try:
            async with asyncio.timeout(timeout_s):
                while waiting := [pair for pair in waiting if pair.lacks()]:  # noqa: ASYNC110
                    await asyncio.sleep(LOOK_S)
        except TimeoutError:
            texts = "; ".join(f"follower {pair.name}: {pair.lacks()}" for pair in waiting)
            raise NotCaughtUp(f"not caught up in {timeout_s:g} s. {texts}") from None


class _Pair:
    """Leader, and follower that must catch up with the leader's current state."""

    def __init__(self, name: str, leader: RunningBroker, follower: RunningBroker) -> None:
        self.name = name
        self._leader = leader.broker
        self._follower = follower.broker
        self._goal = self._leader.store.log.max_offset
        self._passes: int | None = None  # pass count at which its tables are current
        self._asked = (-1, 0.0)  # pass count and time of the last request for another pass

    def lacks(self) -> str:
        """Return the missing part as text; empty if nothing is missing."""
        store, link = self._follower.store, self._follower.replication.follower
        has = store.log.max_offset
        if has < self._goal:
            return f"{self._goal - has} bytes behind, {has} of {self._goal}. Its state: {link.text}"
        if store.dispatcher.dispatched < self._goal:
            return f"{self._goal - store.dispatcher.dispatched} bytes are not in its queues yet"
        acked = [one.acked for one in self._leader.replication.leader.followers if one.joined]
        if not link.copying or not any(offset >= self._goal for offset in acked):
            return f"it has all {has} bytes, but its leader got no acknowledgement. Its state: {link.text}"
        copy = self._follower.copies.copy
        if self._passes is None:
            self._passes = copy.passes + 2  # one may be under way with older data
        if copy.passes < self._passes:
            passes, asked_s = self._asked
            now_s = time.monotonic()
            if copy.passes > passes or now_s - asked_s > ASK_AGAIN_S:
                self._asked = copy.passes, now_s
                copy.copy_now()
            return "it has all bytes, but not yet the tables of its leader: topics, groups, progress"
        return ""


@asynccontextmanager
async def running_cluster(
    brokers: int = 2,
    *,
    followers: int = 0,
    sync: bool = False,
    directory: Path | None = None,
    clock: Clock = SYSTEM_CLOCK,
    **options: Any,
) -> AsyncIterator[RunningCluster]:
    """Run a name server and ``brokers`` leaders, ``broker-a``, ``broker-b`` and so on, each with
    ``followers`` followers. With ``sync`` a send is acknowledged when a follower has it (SYNC_MASTER).
    ``options`` apply to all brokers."""
    for word, count, least, most in (("brokers", brokers, 1, 26), ("followers", followers, 0, FOLLOWERS_MAX)):
        if isinstance(count, bool) or not isinstance(count, int) or not least <= count <= most:
            raise OptionError(word, count, f"a number from {least} to {most}")
    own = broker_settings(options)
    if brokers > 1 and "broker_name" in own:
        raise OptionError(
            "broker_name", own["broker_name"], "no name with several leaders: they are broker-a, broker-b"
        )
    if sync:
        own["role"] = BrokerRole.SYNC_MASTER
    async with AsyncExitStack() as stack:
        place = directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kerolox-cluster-")))
        nameserver = await stack.enter_async_context(
            running_nameserver(directory=place / "nameserver", clock=clock)
        )
        cluster = RunningCluster(nameserver)
        for number in range(brokers):
            name = own.get("broker_name", f"broker-{chr(ord('a') + number)}")
            settings = {"ha_heartbeat_ms": HEARTBEAT_MS} | own | {"broker_name": name}
            leader = await stack.enter_async_context(
                running_broker(directory=place / name, nameserver=nameserver, clock=clock, **settings)
            )
            cluster.leaders[name] = leader
            for id in range(1, followers + 1):
                relay, names = Relay(), Relay()
                stack.push_async_callback(relay.close)
                stack.push_async_callback(names.close)
                settings |= {
                    "broker_id": id,
                    "role": BrokerRole.SLAVE,
                    "slave_read": own.get("slave_read", True),
                    "nameservers": await _telling_of(leader, relay, names, nameserver.address),
                }
                follower = await stack.enter_async_context(
                    running_broker(
                        directory=place / f"{name}-{id}", nameserver=nameserver, clock=clock, **settings
                    )
                )
                cluster._followers.setdefault(name, {})[id] = follower
                cluster._links[name, id] = FollowerLink(relay)
        if followers:
            await cluster.caught_up()
        yield cluster


async def _telling_of(leader: RunningBroker, behind: Relay, names: Relay, nameserver: str) -> str:
    """Return the address of a name server for a follower: it names a leader ``behind`` a relay. The
    connection to the name server itself is always open."""
    endpoints = leader.broker.endpoints
    told = {real: await behind.proxy(real) for real in (endpoints.address, endpoints.ha_address)}
    return await names.proxy(nameserver, lambda: _changed_addresses(told))


def _changed_addresses(told: Mapping[str, str]) -> Callable[[bytes], bytes]:
    """Return a function that replaces addresses in the fields of frames."""
    splitter = FrameSplitter()

    def change(data: bytes) -> bytes:
        frames = []
        for frame in splitter.feed(data):
            command = decode_command(*frame)
            fields = {word: told.get(value, value) for word, value in command.fields.items()}
            if fields == command.fields:
                frames.append(pack_frame(*frame))
            else:
                command.fields.update(fields)
                frames.append(command.encode())
        return b"".join(frames)

    return change
