"""What goes wrong, one thing at a time or several: begun at a random moment, over at another.

Each kind is a function that makes the fault and returns what ends it. Who makes a schedule decides which
kinds it has, and asks for all of them to be over before anything is judged.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol, runtime_checkable

from .network import Way
from .world import Host, World

End = Callable[[], None]


class Node(Protocol):
    """A server on a host of its own."""

    @property
    def host(self) -> Host: ...

    def start(self) -> None:
        """Start it, on a host that has power."""

    def power_off(self, seed: int) -> None:
        """What was not flushed is lost."""


class Disk(Protocol):
    """The disk of a broker, as far as it can be made to fail."""

    def fill(self, free_bytes: int = 0) -> None: ...

    def make_room(self) -> None: ...

    def tear_next_write(self, after: int) -> None: ...

    def tear_no_write(self) -> None: ...

    def fail_syncs(self, count: int | None = None) -> None: ...


class StoringNode(Node, Protocol):
    """A server whose files can fail."""

    @property
    def disk(self) -> Disk: ...

    def wipe(self) -> None:
        """It has stopped; nothing of it stays."""


@runtime_checkable
class RestorableNode(Node, Protocol):
    """A server whose state an operator may restore."""

    def restore(self, chance: random.Random) -> str:
        """While it does not run: put an older copy in place. Which one."""


class Faults:
    """Makes and ends them."""

    def __init__(
        self,
        world: World,
        chance: random.Random,
        *,
        brokers: Sequence[Node],
        controllers: Sequence[Node],
        others: Sequence[str] = (),  # addresses of clients, and of a consensus engine
        engine_ip: str | None = None,
        may_lose: Callable[[Node], bool] = lambda node: True,  # whether a broker's disk may be lost now
    ) -> None:
        self.world = world
        self.chance = chance
        self.brokers = list(brokers)
        self.controllers = list(controllers)
        self.ips = [node.host.ip for node in (*brokers, *controllers)] + list(others)
        self.engine_ip = engine_ip
        if engine_ip is not None:
            self.ips.append(engine_ip)
        self.may_lose = may_lose
        self.is_over = False  # nobody is started any more
        self.count: Counter[str] = Counter()
        self._under_way: dict[int, tuple[str, End]] = {}
        self._numbers = 0
        self.busy: set[str] = set()  # hosts that are down or paused: one such fault each
        self._cuts: Counter[Way] = Counter()

    # --- all of them ----------------------------------------------------------------------------------------

    def make(self, kind: str) -> int | None:
        """Begin one; its number, or None when there is nobody to have it."""
        begin: Callable[[], tuple[str, End] | None] = getattr(self, f"_{kind}")
        begun = begin()
        if begun is None:
            return None
        text, end = begun
        self.world.tell(f"FAULT {kind} {text}")
        self.count[kind] += 1
        self._numbers += 1
        self._under_way[self._numbers] = (f"{kind} {text}", end)
        return self._numbers

    def over(self, number: int) -> None:
        text, end = self._under_way.pop(number, ("", None))
        if end is not None:
            self.world.tell(f"OVER {text}")
            end()

    def all_over(self) -> None:
        for number in list(self._under_way):
            self.over(number)
        for node in (*self.controllers, *self.brokers):
            if not node.host.is_up:
                self._up(node)

    async def run(self, kinds: Sequence[str], until_s: float, gap_s: float) -> None:
        """Random ones, until then; some are under way at the same time."""
        loop = self.world.loop
        while loop.time() < until_s:
            await asyncio.sleep(self.chance.expovariate(1 / gap_s))
            number = self.make(self.chance.choice(kinds))
            if number is not None:
                lasts_s = self.chance.choice((0.05, 0.5, 2.0, 5.0, 9.0)) * self.chance.uniform(0.3, 1.7)
                loop.call_later(min(lasts_s, max(0.0, until_s - loop.time())), self.over, number)

    # --- processes and hosts --------------------------------------------------------------------------------

    def _one(self, nodes: Sequence[Node]) -> Node | None:
        free = [node for node in nodes if node.host.is_up and node.host.name not in self.busy]
        return self.chance.choice(free) if free else None

    def _up(self, node: Node) -> None:
        if self.is_over:
            return
        self.busy.discard(node.host.name)
        node.host.power_on()
        if not node.host.is_up:
            node.start()

    def _taken(self, node: Node) -> End:
        self.busy.add(node.host.name)
        return lambda: self._up(node)

    def _kill(self, nodes: Sequence[Node] | None = None) -> tuple[str, End] | None:
        node = self._one(self.brokers if nodes is None else nodes)
        if node is None:
            return None
        node.host.end()
        return node.host.name, self._taken(node)

    def _kill_controller(self) -> tuple[str, End] | None:
        return self._kill(self.controllers)

    def _older(self) -> tuple[str, End] | None:
        """The controller is killed, and an older copy of its file is there when it comes back."""
        node = self._one(self.controllers)
        if not isinstance(node, RestorableNode):
            return None
        node.host.end()
        return f"{node.host.name} {node.restore(self.chance)}", self._taken(node)

    def _kill_all(self) -> tuple[str, End] | None:
        """All brokers at once: they come back in some order."""
        killed = [node for node in self.brokers if node.host.is_up and node.host.name not in self.busy]
        if not killed:
            return None
        ends = []
        for node in killed:
            node.host.end()
            ends.append(self._taken(node))
        return ",".join(node.host.name for node in killed), self._one_by_one(ends)

    def _blackout(self) -> tuple[str, End] | None:
        """All brokers lose power at once, and come back one after the other."""
        lost = [node for node in self.brokers if node.host.is_up and node.host.name not in self.busy]
        if not lost:
            return None
        ends = []
        for node in lost:
            node.power_off(self.chance.randrange(1 << 30))
            ends.append(self._taken(node))
        return ",".join(node.host.name for node in lost), self._one_by_one(ends)

    def _one_by_one(self, ends: list[End]) -> End:
        self.chance.shuffle(ends)

        def end() -> None:
            for number, back in enumerate(ends):
                self.world.loop.call_later(number * self.chance.uniform(0, 2), back)

        return end

    def _power(self) -> tuple[str, End] | None:
        node = self._one([*self.brokers, *self.controllers])
        if node is None:
            return None
        node.power_off(self.chance.randrange(1 << 30))
        return node.host.name, self._taken(node)

    def _pause(self) -> tuple[str, End] | None:
        node = self._one([*self.brokers, *self.controllers])
        if node is None or node.host.process is None:
            return None
        process = node.host.process
        self.world.loop.pause(process)
        self.busy.add(node.host.name)

        def end() -> None:
            self.busy.discard(node.host.name)
            self.world.loop.resume(process)

        return node.host.name, end

    def _engine(self) -> tuple[str, End] | None:
        ip = self.engine_ip
        if ip is None or ip in self.world.network.down:
            return None
        self.world.network.down.add(ip)
        return "down", lambda: self.world.network.down.discard(ip)

    def _clock(self) -> tuple[str, End] | None:
        host = self.chance.choice([*self.brokers, *self.controllers]).host
        delta_ms = self.chance.choice((-1, 1)) * self.chance.choice((100, 5_000, 60_000, 86_400_000))
        host.clock.set_wall(delta_ms)
        return f"{host.name} {delta_ms} ms", lambda: None

    # --- the network ----------------------------------------------------------------------------------------

    def _cut(self, ways: list[Way], text: str) -> tuple[str, End]:
        self._cuts.update(ways)
        self.world.network.cut_ways(ways)

        def end() -> None:
            self._cuts.subtract(ways)
            self.world.network.heal([way for way in ways if self._cuts[way] <= 0])

        return text, end

    def _isolate(self) -> tuple[str, End]:
        """One host from all others."""
        ip = self.chance.choice(self.ips)
        others = [other for other in self.ips if other != ip]
        return self._cut([(ip, other) for other in others] + [(other, ip) for other in others], ip)

    def _split(self) -> tuple[str, End]:
        """Two halves."""
        one = [ip for ip in self.ips if self.chance.random() < 0.5]
        other = [ip for ip in self.ips if ip not in one]
        ways = [(a, b) for a in one for b in other]
        return self._cut(ways + [(b, a) for a, b in ways], f"{one} from {other}")

    def _one_way(self) -> tuple[str, End]:
        """What one host says is not heard by some, or by anybody."""
        ip = self.chance.choice(self.ips)
        others = [other for other in self.ips if other != ip and self.chance.random() < 0.6]
        if self.chance.random() < 0.5:
            return self._cut([(ip, other) for other in others], f"from {ip} to {others}")
        return self._cut([(other, ip) for other in others], f"to {ip} from {others}")

    def _ring(self) -> tuple[str, End]:
        """Some pairs do not see each other, though others see both."""
        pairs = [(a, b) for a in self.ips for b in self.ips if a < b and self.chance.random() < 0.3]
        return self._cut(pairs + [(b, a) for a, b in pairs], f"{pairs}")

    def _brokers_apart(self) -> tuple[str, End]:
        """A broker from its fellows; controllers and clients reach all of them."""
        ip = self.chance.choice(self.brokers).host.ip
        ways = [(ip, node.host.ip) for node in self.brokers if node.host.ip != ip]
        return self._cut(ways + [(b, a) for a, b in ways], ip)

    def _from_controllers(self) -> tuple[str, End]:
        """A broker from the controllers; its fellows and clients reach it."""
        ip = self.chance.choice(self.brokers).host.ip
        ways = [(ip, node.host.ip) for node in self.controllers]
        return self._cut(ways + [(b, a) for a, b in ways], ip)

    def _reset(self) -> tuple[str, End]:
        ip, other = self.chance.sample(self.ips, 2)
        return f"{ip} {other} {self.world.network.reset(ip, other)}", lambda: None

    def _slow(self) -> tuple[str, End]:
        """The ways of one host take long."""
        ip = self.chance.choice(self.ips)
        long_s = self.chance.choice((0.02, 0.2, 0.8))
        ways = [(ip, other) for other in self.ips] + [(other, ip) for other in self.ips]
        for way in ways:
            self.world.network.latency_s[way] = long_s

        def end() -> None:
            for way in ways:
                self.world.network.latency_s.pop(way, None)

        return f"{ip} {long_s} s", end

    # --- disks ----------------------------------------------------------------------------------------------

    def _storing(self) -> StoringNode | None:
        return self._one(self.brokers)  # type: ignore[return-value]

    def _wipe(self) -> tuple[str, End] | None:
        node = self._storing()
        if node is None or not self.may_lose(node):
            return None
        node.host.end()
        node.wipe()
        return node.host.name, self._taken(node)

    def _full(self) -> tuple[str, End] | None:
        node = self._storing()
        if node is None:
            return None
        disk = node.disk
        free = self.chance.choice((0, 100, 5000))
        disk.fill(free)
        return f"{node.host.name} {free} bytes left", disk.make_room

    def _torn(self) -> tuple[str, End] | None:
        """The next write stops in the middle, and the process with it."""
        node = self._storing()
        if node is None:
            return None
        disk = node.disk
        disk.tear_next_write(self.chance.choice((0, 1, 7, 40, 300)))
        back = self._taken(node)

        def end() -> None:
            disk.tear_no_write()
            back()

        return node.host.name, end

    def _unflushed(self) -> tuple[str, End] | None:
        """A flush fails: the broker takes nothing more, and is started again."""
        node = self._storing()
        if node is None:
            return None
        node.disk.fail_syncs(1)
        self.busy.add(node.host.name)

        def end() -> None:
            node.host.end()
            self._up(node)

        return node.host.name, end

    def _slow_disk(self) -> tuple[str, End] | None:
        node = self._storing()
        if node is None or node.host.process is None:
            return None
        process = node.host.process
        process.slow_s = self.chance.choice((0.05, 0.5, 3.0))

        def end() -> None:
            process.slow_s = node.host.slow_s

        return f"{node.host.name} {process.slow_s} s", end


OF_CONTROLLERS = (
    "kill", "kill_controller", "kill_all", "power", "pause", "engine", "clock", "isolate", "split", "one_way",
    "ring", "from_controllers", "reset", "slow",
)  # fmt: skip
OF_BROKERS = ("brokers_apart", "blackout")
OF_POWER = ("power", "blackout")
OF_STATE = ("older",)  # of a controller with a file; with lost disks it needs people
OF_DISKS = ("wipe", "full", "torn", "unflushed", "slow_disk")
