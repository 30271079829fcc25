"""A schedule: a cluster, its load and its faults, all made from one number; then everything heals, and is
judged."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kerolox.controller.state import ReplicaGroup
from kerolox.protocol.broker_identity import IDENTITY_FILE, decode_identity
from kerolox.protocol.epoch_file import EPOCH_FILE, decode_epochs
from kerolox.store.options import FlushMode
from tests.rig import checker as of_one
from tests.rig.logs import read_log, read_queue, records_of

from . import checker
from .brokers import NAME, BrokerNode
from .clients import TOPIC, Client, Told
from .consensus import Engine
from .controllers import Commits, ControllerNode
from .faults import OF_BROKERS, OF_CONTROLLERS, OF_DISKS, OF_POWER, OF_STATE, Faults, Node
from .loop import Stuck
from .world import World, world

BEGIN_S = 4.0  # before the first fault
SETTLE_S = 90.0  # at most, after the last one
STOP_S = 30.0
REFUSALS_MAX = 20  # starts of one broker that came to nothing
LOOK_S = 0.1
SILENCE_MS = 3000
OLDER_CHANCE = 0.5  # that an older copy of a controller's file is restored, where it can be


@dataclass
class Shape:
    """What the number decides before anything happens."""

    brokers: int
    controllers: int  # 1 has a file of its own, more have a consensus engine
    flush: FlushMode
    drift: float  # of clocks
    disk_s: float  # a flush, or another thing that a thread does, takes up to so much longer on each broker
    replicas_min: int
    senders: int
    pause_s: float  # between two sends
    gap_s: float  # between two faults
    faults_s: float
    kinds: tuple[str, ...]


def shape_of(seed: int) -> Shape:
    chance = random.Random(f"shape-{seed}")
    flush = chance.choice((FlushMode.SYNC, FlushMode.ASYNC))
    kinds = [*OF_CONTROLLERS, *OF_BROKERS, *OF_DISKS]
    controllers = chance.choice((1, 1, 2, 3))
    if flush is FlushMode.ASYNC:
        kinds = [kind for kind in kinds if kind not in OF_POWER]  # what is only in memory is not promised
    if controllers == 1:
        kinds.remove("engine")
    # Few kinds at a time find what many drown.
    chosen = chance.sample(kinds, chance.choice((1, 2, 3, 5, len(kinds))))
    if "unflushed" in chosen and not set(OF_POWER).isdisjoint(chosen):
        # What a failed flush covered is in memory, and counts as flushed after the next start. A broker that
        # loses it by a loss of power refuses to start, by name, and needs people.
        chosen.remove("unflushed")
    if controllers == 1 and "wipe" not in chosen and random.Random(f"older-{seed}").random() < OLDER_CHANCE:
        chosen += OF_STATE
    return Shape(
        brokers=chance.choice((2, 3, 3)),
        controllers=controllers,
        flush=flush,
        drift=chance.choice((0.0, 0.0, 0.01)),
        disk_s=chance.choice((0.0, 0.0, 0.1)),
        replicas_min=chance.choice((1, 1, 2)),
        senders=chance.choice((1, 1, 3)),
        pause_s=chance.choice((0.15, 0.4, 1.0)),
        gap_s=chance.choice((0.4, 1.0, 3.0)),
        faults_s=chance.choice((4.0, 8.0, 12.0, 25.0)),
        kinds=tuple(sorted(chosen)),
    )


def seeds_with(kind: str | None, count: int) -> list[int]:
    """The first seeds whose schedules are about this kind of fault, on slow disks; of any kind."""
    found: list[int] = []
    for seed in itertools.count():
        if len(found) == count:
            return found
        shape = shape_of(seed)
        if kind is None or (kind in shape.kinds and len(shape.kinds) <= 5 and shape.disk_s):
            found.append(seed)
    raise AssertionError("not reached")


@dataclass
class Outcome:
    """What one schedule came to."""

    seed: int
    wrong: list[str] = field(default_factory=list)
    faults: Counter[str] = field(default_factory=Counter)
    sends: Counter[str] = field(default_factory=Counter)
    needs_people: bool = False  # it cannot go on by itself, and should not
    seen: int = 0
    elections: int = 0
    steps: int = 0
    virtual_s: float = 0.0
    settled_s: float = 0.0  # after the last fault
    cpu_s: float = 0.0
    story: list[str] = field(default_factory=list)


class Cluster:
    """The servers and clients of one schedule."""

    def __init__(self, made: World, shape: Shape) -> None:
        self.world = made
        self.shape = shape
        self.chance = random.Random(f"cluster-{made.seed}")
        self.commits: Commits = []
        self.engine = Engine(made.network, "10.0.2.1") if shape.controllers > 1 else None
        self.controllers = [
            ControllerNode(
                made.host(f"c{number}", f"10.0.1.{number}"),
                self.engine,
                self.commits,
                scan_not_active_broker_interval=500,
                scan_inactive_master_interval=500,
            )
            for number in range(1, 1 + shape.controllers)
        ]
        self.brokers = [
            BrokerNode(made.host(f"b{number}", f"10.0.0.{number}"), **self._options())
            for number in range(1, 1 + shape.brokers)
        ]
        for node in self.brokers:
            node.host.slow_s = self.chance.uniform(0, shape.disk_s)
        self.told = Told()
        addresses = [node.address for node in self.brokers]
        self.client = Client(made, made.host("client", "10.0.3.1"), addresses, self.told, self.chance)
        self.faults = Faults(
            made,
            self.chance,
            brokers=self.brokers,
            controllers=self.controllers,
            others=[self.client.host.ip],
            engine_ip=None if self.engine is None else self.engine.ip,
            may_lose=self._others_have_it,
        )
        self.wrong: list[str] = []
        self.ids: dict[str, set[int]] = {}  # that each address has had
        # At the end:
        self.ends: dict[str, int] = {}  # of the logs, by broker
        self.leader = ""
        self.offsets: dict[int, int] = {}  # how far readers are, at the leader

    def _options(self) -> dict[str, Any]:
        return {
            "controlled": True,
            "controllers": ";".join(node.address for node in self.controllers),
            "flush_mode": self.shape.flush,
            "controller_silence_ms": SILENCE_MS,
            "alive_ms": 500,
            "who_leads_ms": 2000,
            "in_sync_check_ms": 1000,
            "controllers_check_ms": 2000,
            "ha_catch_up_ms": 3000,
            "ha_silence_ms": 5000,
            "ha_heartbeat_ms": 1000,
            "replica_timeout_ms": 1000,
            "replicas_min": self.shape.replicas_min,
            "slave_read": True,
            "nameservers": "",
        }

    # --- what controllers have ------------------------------------------------------------------------

    @property
    def history(self) -> list[ReplicaGroup | None]:
        if self.engine is None:
            return [group for name, group in self.commits if name == NAME]
        return [group for _, name, group in self.engine.commits if name == NAME]

    @property
    def group(self) -> ReplicaGroup | None:
        history = self.history
        return history[-1] if history else None

    def _others_have_it(self, node: Node) -> bool:
        """Whether a disk may be lost: somebody else is in sync, and runs; and no disk was lost that the
        controller still counts on."""
        group = self.group
        ids = {self.id_on_disk(other): other for other in self.brokers}
        others = {id for id, other in ids.items() if other is not node and other.host.is_up}
        return group is not None and group.in_sync <= ids.keys() and bool(group.in_sync & others)

    @property
    def needs_people(self) -> bool:
        """All who may lead have lost their disks: one lost its own, and was elected before the controller
        could know. Only an unclean election helps."""
        group = self.group
        ids = {self.id_on_disk(node) for node in self.brokers}
        return group is not None and not group.in_sync & ids

    def id_on_disk(self, node: BrokerNode) -> int:
        try:
            return decode_identity((Path(node.store_path) / IDENTITY_FILE).read_bytes()).id
        except FileNotFoundError:
            return 0

    # --- looking, meanwhile ---------------------------------------------------------------------------------

    async def watch(self) -> None:
        """Things that hold at every moment."""
        while True:
            await asyncio.sleep(LOOK_S)
            for wrong in self.look():
                if len(self.wrong) < 5:
                    self.wrong.append(f"at {self.world.loop.time():.3f} s {wrong}")

    def look(self) -> list[str]:
        wrong = []
        leaders: dict[int, str] = {}
        group = self.group
        by_id: dict[int, BrokerNode] = {}
        for node in self.brokers:
            if not node.serves:
                continue
            id, epoch = node.id, node.epoch
            if id:
                self.ids.setdefault(node.address, set()).add(id)
                by_id[id] = node
            if node.leads:
                other = leaders.setdefault(epoch, node.host.name)
                if other != node.host.name:
                    wrong.append(f"{other} and {node.host.name} lead in epoch {epoch}")
        for node in self.brokers:
            if group is None or group.is_doubted or not node.serves or not node.leads:
                continue  # by an older copy of the state nobody is elected
            if (node.id, node.epoch) != (group.master, group.master_epoch):
                continue  # it does not know yet that it was replaced
            for id in group.in_sync - {node.id}:
                member = by_id.get(id)
                if member is not None and member.end < node.confirmed and not member.is_cutting:
                    wrong.append(
                        f"{member.host.name} is in sync with {node.host.name} and ends at {member.end}: "
                        f"{node.confirmed} is confirmed"
                    )
        return wrong

    # --- the story ------------------------------------------------------------------------------------------

    async def run(self, outcome: Outcome) -> None:
        shape, loop, faults = self.shape, self.world.loop, self.faults
        for node in (*self.controllers, *self.brokers):
            loop.call_later(self.chance.uniform(0, 1), node.start)
        watching = loop.create_task(self.watch())
        await asyncio.sleep(2)
        self.client.start(senders=shape.senders, readers=2, pause_s=shape.pause_s)
        await asyncio.sleep(BEGIN_S - 2)
        await faults.run(shape.kinds, BEGIN_S + shape.faults_s, shape.gap_s)
        faults.all_over()
        over_s = loop.time()
        self.world.tell("ALL FAULTS OVER")
        await self._settle(over_s)
        outcome.settled_s = loop.time() - over_s
        watching.cancel()
        self._note()
        await self._stop()

    async def _settle(self, over_s: float) -> None:
        """Until the cluster takes messages again, and then until all have everything."""
        loop = self.world.loop
        why = "nothing was acknowledged any more"
        while loop.time() - over_s < SETTLE_S:
            await asyncio.sleep(0.5)
            for node in self.brokers:
                if len(node.refusals) > REFUSALS_MAX:
                    self.wrong.append(f"{node.host.name} does not start: {node.refusals[-1]}")
                    return
                if not node.host.is_up and node.host.name not in self.faults.busy:
                    node.start()  # one that ended by itself is started again
            if not self.client.is_over and self.told.history.count(since_s=over_s) > 3:
                self.client.is_over = True
            if self.client.is_over:
                why = self._unsettled()
                if not why:
                    return
            if self.needs_people:
                return
        self.wrong.append(f"not settled after {SETTLE_S:.0f} s: {why}")

    def _note(self) -> None:
        """What is asked of brokers that run."""
        for node in self.brokers:
            if node.serves:
                self.ends[node.host.name] = node.end
                if node.leads:
                    self.leader = node.host.name
                    self.offsets = node.offsets(TOPIC)

    async def _stop(self) -> None:
        """Let the brokers stop by themselves, with nobody there to elect another."""
        self.world.tell("STOP")
        self.faults.is_over = True
        for host in (*(node.host for node in self.controllers), self.client.host):
            host.end()
        for node in self.brokers:
            node.stop()
        began_s = self.world.loop.time()
        while any(node.host.is_up for node in self.brokers):
            if self.world.loop.time() - began_s > STOP_S:
                up = [node.host.name for node in self.brokers if node.host.is_up]
                self.wrong.append(f"{up} have not stopped after {STOP_S:.0f} s")
                return
            await asyncio.sleep(0.1)

    def _unsettled(self) -> str:
        group = self.group
        leading = [node for node in self.brokers if node.serves and node.leads]
        if group is None or len(leading) != 1:
            return f"{[node.host.name for node in leading]} lead"
        (leader,) = leading
        ids = {node.id for node in self.brokers if node.serves}
        if group.in_sync != ids:
            return f"in sync are {sorted(group.in_sync)}, there are {sorted(ids)}"
        states = [(node.host.name, node.end, node.confirmed) for node in self.brokers if node.serves]
        if len(states) < len(self.brokers):
            return f"only {[state[0] for state in states]} serve"
        if any(state[1:] != (leader.end, leader.end) for state in states):
            return f"ends and confirmed: {states}"
        return ""

    # --- judging --------------------------------------------------------------------------------------------

    def judge(self) -> list[str]:
        """By the files alone, when nothing runs any more."""
        stores = {node.host.name: Path(node.store_path) for node in self.brokers}
        ends = self.ends
        if ends.keys() != stores.keys():
            return [f"only {sorted(ends)} run at the end"]
        logs = {name: read_log(path, ends[name]) for name, path in stores.items()}
        without = [name for name, path in stores.items() if not (path / EPOCH_FILE).exists()]
        if without:
            return [f"{without} have no file of epochs"]
        epochs = {name: decode_epochs((path / EPOCH_FILE).read_bytes()) for name, path in stores.items()}
        wrong = checker.logs_differ(logs) + checker.epochs_differ(epochs, logs)
        name = self.leader
        if not name:
            return [*wrong, f"nobody leads at the end: {self.group}"]
        records = records_of(logs[name])
        sends: list[Any] = self.told.history.sends
        masters = checker.masters_of(self.history)
        wrong += of_one.missing([send for send in sends if send.ok], records, TOPIC)
        wrong += of_one.acknowledged_twice(sends)
        wrong += of_one.invented(sends, records, TOPIC)
        wrong += of_one.gaps(records, TOPIC)
        wrong += checker.twice(records, TOPIC)
        wrong += checker.unread(self.told.seen, records, TOPIC)
        wrong += checker.epochs_unknown(epochs[name], masters)
        wrong += checker.wrong_leader(sends, epochs[name], masters, self.ids)
        wrong += checker.two_leaders(sends, epochs[name])
        counts = Counter(record.queue for record in records if record.topic == TOPIC)
        wrong += checker.offsets_beyond(self.offsets, counts, name)
        wrong += checker.offsets_beyond(self.told.committed, counts, "clients")
        for whose, path in stores.items():
            queues = {queue: read_queue(path, TOPIC, queue, count) for queue, count in counts.items()}
            there = [one for one in records if one.place >= logs[whose].begin]
            wrong += of_one.queues_not_equal(there, TOPIC, queues, whose)
        return wrong


def run_schedule(seed: int, *, trace: bool = False) -> Outcome:
    outcome = Outcome(seed)
    shape = shape_of(seed)
    began_s = time.process_time()
    with world(seed, drift=shape.drift, trace=trace) as made:
        made.story.append(f"{shape}")
        cluster = Cluster(made, shape)
        try:
            made.run(cluster.run(outcome))
            outcome.wrong = cluster.wrong + made.loop.errors
            outcome.needs_people = cluster.needs_people
            if not outcome.needs_people:
                outcome.wrong += cluster.judge()
        except Stuck as error:
            outcome.wrong = [*cluster.wrong, *made.loop.errors, f"stuck: {error}"]
        except Exception as error:
            outcome.wrong = [*cluster.wrong, *made.loop.errors, f"not judged: {error!r}"]
        outcome.faults = cluster.faults.count
        outcome.sends = Counter(send.status for send in cluster.told.history.sends)
        outcome.seen = len(cluster.told.seen)
        group = cluster.group
        outcome.elections = 0 if group is None else group.master_epoch
        outcome.steps, outcome.virtual_s = made.loop.steps, made.loop.time()
        outcome.story = made.story
    outcome.cpu_s = time.process_time() - began_s
    return outcome
