"""Members of a group in one process, with virtual time and a network that loses, delays and cuts.

Everything happens by a seed: a failing one is played again by its number. The members are the real ones, only
time, connections, the log and the file of the term are made of memory.
"""

from __future__ import annotations

import asyncio
import logging
import random
import selectors
from collections.abc import Callable, Coroutine, Iterator
from contextlib import contextmanager
from typing import Any

from kerolox.clock import Clock
from kerolox.errors import ConnectFailed, KeroloxError, RequestTimeout
from kerolox.protocol.bodies.dledger import LedgerCode
from kerolox.protocol.ledger_entry import LedgerEntry
from kerolox.replication.dledger.group import LedgerGroup
from kerolox.replication.dledger.ledger import OutOfLedger
from kerolox.replication.dledger.member import Role
from kerolox.replication.dledger.network import OnBytes
from kerolox.replication.dledger.settings import GroupSettings
from kerolox.replication.dledger.term_file import Promise

from .memory_ledger import BARRIER, MemoryLedger

# Ten times as many elections as with the times of a real group.
HASTY = {"heartbeat_ms": 200, "vote_ms_min": 30, "vote_ms_max": 100}


@contextmanager
def unforeseen_errors(kept: list[BaseException]) -> Iterator[None]:
    """Keep what members log with a traceback: they go on after it, the test does not."""

    class Keep(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            if record.exc_info and record.exc_info[1] is not None:
                kept.append(record.exc_info[1])

    logger, keep = logging.getLogger("kerolox.replication.dledger"), Keep()
    logger.addHandler(keep)
    try:
        yield
    finally:
        logger.removeHandler(keep)


class _NoFiles(selectors.SelectSelector):
    """Waits for nothing but time, which passes at once."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 1000.0

    def select(self, timeout: float | None = None) -> list[Any]:
        if timeout is None:
            raise AssertionError("everybody waits, and nothing will ever happen")
        self.now_s += max(0.0, timeout)
        return []


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop whose time passes as fast as its callbacks run."""

    def __init__(self) -> None:
        self._virtual = _NoFiles()
        super().__init__(self._virtual)

    def time(self) -> float:
        return self._virtual.now_s


class VirtualClock(Clock):
    def wall_ms(self) -> int:
        return int(self.monotonic_s() * 1000)

    def monotonic_s(self) -> float:
        return asyncio.get_running_loop().time()


def run_virtual(main: Coroutine[Any, Any, None]) -> None:
    with asyncio.Runner(loop_factory=VirtualLoop) as runner:
        runner.run(main)


class Weather:
    """How good the network is now."""

    def __init__(self, chance: random.Random) -> None:
        self.chance = chance
        self.loss = 0.0
        self.delay_s_max = 0.005
        self.cut: set[tuple[str, str]] = set()  # from, to

    def passes(self, sender: str, receiver: str) -> bool:
        return (sender, receiver) not in self.cut and self.chance.random() >= self.loss

    def delay_s(self) -> float:
        return self.chance.uniform(0.0002, self.delay_s_max)


class SimLine:
    is_open = True

    def __init__(self, network: SimNetwork, peer: str) -> None:
        self._network = network
        self._peer = peer

    def ask(self, code: int, body: bytes, on_answer: OnBytes, timeout_s: float) -> None:
        self._network.ask(self._peer, code, body, on_answer, timeout_s)


class SimNetwork:
    """What one member reaches the others by."""

    def __init__(self, simulation: Simulation, own: str) -> None:
        self._simulation = simulation
        self._own = own
        self.is_dead = False

    async def line(self, peer: str) -> SimLine:
        weather = self._simulation.weather
        await asyncio.sleep(weather.delay_s())
        if not weather.passes(self._own, peer) or not weather.passes(peer, self._own):
            raise ConnectFailed(peer, "no way there")
        return SimLine(self, peer)

    async def call(self, peer: str, code: int, body: bytes, timeout_s: float) -> bytes:
        done: asyncio.Future[bytes] = asyncio.get_running_loop().create_future()

        def answered(told: bytes | Exception) -> None:
            if not done.done():
                if isinstance(told, Exception):
                    done.set_exception(told)
                else:
                    done.set_result(told)

        self.ask(peer, code, body, answered, timeout_s)
        return await done

    def ask(self, peer: str, code: int, body: bytes, on_answer: OnBytes, timeout_s: float) -> None:
        if self.is_dead:
            raise ConnectFailed(peer, "dead")
        simulation, weather, own = self._simulation, self._simulation.weather, self._own
        loop = asyncio.get_running_loop()
        over: list[bool] = []

        def end(told: bytes | Exception) -> None:
            if not over and not self.is_dead:
                over.append(True)
                timer.cancel()
                on_answer(told)

        timer = loop.call_later(timeout_s, lambda: end(RequestTimeout(peer, str(code), timeout_s)))

        def deliver() -> None:
            if not weather.passes(own, peer):
                return
            simulation.nodes[peer].receive(code, body, answer)

        def answer(told: bytes) -> None:
            loop.call_later(weather.delay_s(), lambda: end(told) if weather.passes(peer, own) else None)

        loop.call_later(weather.delay_s(), deliver)


class SimNode:
    """One member and what survives it."""

    def __init__(self, simulation: Simulation, name: str) -> None:
        self.name = name
        self.simulation = simulation
        self.clock = VirtualClock()
        self.promise = Promise()
        self.ledger = MemoryLedger(self.clock)
        self.ledger.on_committed = self._committed
        self.group: LedgerGroup | None = None
        self.network = SimNetwork(simulation, name)
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._closing: asyncio.Task[None] | None = None

    def start(self) -> None:
        simulation = self.simulation
        network = self.network = SimNetwork(simulation, self.name)

        async def save(promise: Promise) -> None:
            await asyncio.sleep(simulation.chance.uniform(0.0, 0.02))
            if network.is_dead:
                await asyncio.sleep(3600)
            self.promise = promise

        self.ledger.restart()
        settings = GroupSettings(
            "g",
            self.name,
            simulation.peers,
            preferred=simulation.preferred,
            batch_push=simulation.batch_push,
            **(HASTY if simulation.hasty else {}),
        )
        group = self.group = LedgerGroup(
            settings,
            self.ledger,
            network,
            self.promise,
            save,
            clock=self.clock,
            chance=random.Random(simulation.chance.random()),
        )
        group.member.on_role.append(lambda: simulation.role_changed(self, group))
        group.start()

    async def kill(self) -> None:
        """From now on it neither says nor hears nor remembers anything."""
        group, self.group = self.group, None
        self.network.is_dead = True
        self.ledger.restart()
        if group is not None:
            for task in self._tasks:
                task.cancel()
            # Parts of it must not touch the log any more, which survives it.
            group.member.on_role.clear()
            await group.close()
        self.ledger.restart()

    def receive(self, code: int, body: bytes, answer: Callable[[bytes], None]) -> None:
        group = self.group
        if group is None:
            return
        if code == LedgerCode.PUSH:
            group.push(body, lambda told: answer(told.encode()))
            return

        async def handle() -> None:
            try:
                answer((await group.answer(code, body)).encode())
            except KeroloxError:
                pass

        task = asyncio.get_running_loop().create_task(handle())
        self._tasks[task] = None
        task.add_done_callback(lambda task: self._tasks.pop(task, None))

    def _committed(self, before: int, index: int) -> None:
        self.simulation.committed(self, before, index)


class Simulation:
    """A group under faults, and what must hold meanwhile."""

    def __init__(
        self,
        seed: int,
        members: int,
        *,
        batch_push: bool = False,
        preferred: tuple[str, ...] = (),
        hasty: bool = False,
    ) -> None:
        self.seed = seed
        self.hasty = hasty
        self.chance = random.Random(seed)
        self.weather = Weather(random.Random(seed + 1))
        self.peers = {f"n{number}": f"sim:{number + 1}" for number in range(members)}
        self.batch_push = batch_push
        self.preferred = preferred
        self.nodes: dict[str, SimNode] = {}
        self.leaders: dict[int, str] = {}  # by term
        self.log: dict[int, LedgerEntry] = {}  # what anybody saw committed
        self.acked: dict[bytes, int] = {}  # body → index
        self.sent = 0
        self.elections = 0
        self.unforeseen: list[BaseException] = []

    async def start(self) -> None:
        for name in self.peers:
            self.nodes[name] = SimNode(self, name)
        for node in self.nodes.values():
            node.start()

    async def stop(self) -> None:
        for node in self.nodes.values():
            await node.kill()

    # --- what must hold -------------------------------------------------------------------------

    def role_changed(self, node: SimNode, group: LedgerGroup) -> None:
        if group.role is Role.LEADER:
            term = group.member.term
            assert self.leaders.setdefault(term, node.name) == node.name, f"two leaders in term {term}"
            assert node.promise.term == term, "led in a term that is not on its disk"
            self.elections += 1

    def committed(self, node: SimNode, before: int, index: int) -> None:
        ledger = node.ledger
        ledger.certain_index = max(ledger.certain_index, index)
        for at in range(max(before + 1, ledger.begin_index), index + 1):
            entry = ledger.entries[at - ledger.begin_index]
            assert self.log.setdefault(at, entry) == entry, f"entry {at} is another one on {node.name}"

    def check_alive(self) -> None:
        """No part of a member ended with an error, or went on after one that nobody foresaw."""
        if self.unforeseen:
            raise self.unforeseen[0]
        for node in self.nodes.values():
            for task in [] if node.group is None else node.group._tasks:
                if task.done() and not task.cancelled():
                    task.result()
                    raise AssertionError(f"{task} ended")

    def check_end(self) -> None:
        """After all is well again: everybody has the same, and all that was acknowledged."""
        self.check_alive()
        logs = [node.ledger for node in self.nodes.values()]
        ends = {(log.end_index, log.committed_index) for log in logs}
        assert len(ends) == 1, f"logs end at {ends}"
        (end, committed) = ends.pop()
        assert end == committed, "all of it is committed"
        for log in logs[1:]:
            low = max(log.begin_index, logs[0].begin_index)
            assert log.entries[low - log.begin_index :] == logs[0].entries[low - logs[0].begin_index :]
        for body, index in self.acked.items():
            assert self.log[index].body == body, f"acknowledged, and gone: {body!r}"
        bodies = [entry.body for entry in self.log.values() if entry.body != BARRIER]
        assert len(bodies) == len(set(bodies)), "an entry is there twice"

    # --- what happens ---------------------------------------------------------------------------

    async def write(self, for_s: float, every_s: float = 0.15) -> None:
        """Send to whoever thinks that it leads."""
        loop = asyncio.get_running_loop()
        until_s = loop.time() + for_s
        while loop.time() < until_s:
            self.check_alive()
            for node in list(self.nodes.values()):
                if node.group is not None and node.group.role is Role.LEADER:
                    self.send(node)
            await asyncio.sleep(self.chance.uniform(0, 2 * every_s))

    def send(self, node: SimNode) -> None:
        body = b"%d from %b" % (self.sent, node.name.encode())
        self.sent += 1
        place: list[int] = []
        early: list[bool] = []

        def told(is_safe: bool) -> None:
            if not place:
                early.append(is_safe)
            elif is_safe:
                self.acked[body] = place[0]

        try:
            place.append(node.ledger.append_leader(body, told).index)
        except OutOfLedger:
            return
        if early:
            told(early[0])

    async def trouble(self, for_s: float) -> None:
        """One fault after the other: kills, partitions, loss, slowness, and recovery from each."""
        loop, chance = asyncio.get_running_loop(), self.chance
        until_s = loop.time() + for_s
        names = list(self.nodes)
        pause_s = 0.7 if self.hasty else 4
        while loop.time() < until_s:
            kind = chance.choice(["kill", "kill_leader", "split", "one_way", "loss", "slow", "calm", "all"])
            down: list[str] = []
            if kind == "kill":
                down = chance.sample(names, chance.randint(1, len(names)))
            elif kind == "kill_leader":
                down = [
                    node.name
                    for node in self.nodes.values()
                    if node.group is not None and node.group.role is Role.LEADER
                ]
            elif kind == "all":
                down = names
            elif kind == "split":
                side = set(chance.sample(names, chance.randint(1, len(names) - 1)))
                self.weather.cut = {(a, b) for a in names for b in names if (a in side) != (b in side)}
            elif kind == "one_way":
                self.weather.cut = {(a, b) for a in names for b in names if a != b and chance.random() < 0.3}
            elif kind == "loss":
                self.weather.loss = chance.uniform(0.02, 0.4)
            elif kind == "slow":
                self.weather.delay_s_max = chance.uniform(0.05, 2.5)
            for name in down:
                await self.nodes[name].kill()
            await asyncio.sleep(chance.expovariate(1 / pause_s))
            for name in down:
                self.nodes[name].start()
            if chance.random() < 0.7:
                self.heal()
            await asyncio.sleep(chance.expovariate(1 / pause_s))
        self.heal()

    def heal(self) -> None:
        self.weather.cut = set()
        self.weather.loss = 0.0
        self.weather.delay_s_max = 0.005

    async def run(self, for_s: float) -> None:
        """Faults under load, then time to recover, then the look at what is there."""
        with unforeseen_errors(self.unforeseen):
            await self._run(for_s)

    async def _run(self, for_s: float) -> None:
        await self.start()
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self.write(for_s + (10 if self.hasty else 40)))
            tasks.create_task(self.trouble(for_s))
        await asyncio.sleep(10)
        self.check_end()
        assert self.acked, "nothing was acknowledged at all"
        await self.stop()
