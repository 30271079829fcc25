"""The life of one cluster: faults one after the other, now and then two at once, and verdicts."""

from __future__ import annotations

import random
import shutil
import statistics
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.rig.loads import Load
from tests.rig.waiting import TooLate

from .cluster import ASYNC_FLUSH, BY_ETCD, EMBEDDED, SYNC_FLUSH, Cluster, Ground, Violation
from .faults import FAULTS, KINDS, Fault, fits
from .history import ClusterHistory
from .verdict import check, check_offsets, check_queues, check_tables, lost_at_leader

FAULTS_PER_LIFE = 12
CHECK_EVERY = 4  # faults
TOGETHER_CHANCE = 0.25
EMBEDDED_EVERY = 3  # lives

MakeLoads = Callable[[str, ClusterHistory], Sequence[Load]]


class Life(NamedTuple):
    """What happens to one cluster. The same number and seed make the same life, as far as time allows."""

    seed: int
    number: int
    carrier: str
    powered: bool
    turns: tuple[tuple[Fault, ...], ...]  # one after the other; those of one turn together
    settings: tuple[tuple[str, object], ...] = ()  # of all brokers, beside those every cluster has

    @property
    def faults(self) -> list[Fault]:
        return [fault for turn in self.turns for fault in turn]


@dataclass
class Tally:
    faults: Counter[str] = field(default_factory=Counter)
    carriers: Counter[str] = field(default_factory=Counter)
    together: int = 0  # faults that lasted at the same time as another one
    healed_s: dict[str, list[float]] = field(default_factory=dict)
    sends: Counter[tuple[str, str]] = field(default_factory=Counter)
    lives: int = 0
    made: Counter[str] = field(default_factory=Counter)  # tables that were acknowledged before faults
    elections: int = 0
    reads: int = 0
    messages: int = 0  # in logs, as often as they were looked at
    compared_bytes: int = 0

    @property
    def total(self) -> int:
        return self.faults.total()

    def dump(self) -> dict[str, Any]:
        clients = sorted({client for client, _ in self.sends})
        kinds = {fault.name: fault.kind for fault in FAULTS}
        return {
            "faults": self.total,
            "by_carrier": dict(sorted(self.carriers.items())),
            "by_kind": {
                kind: sum(count for name, count in self.faults.items() if kinds[name] == kind)
                for kind in KINDS
            },
            "at_the_same_time_as_another": self.together,
            "by_name": {
                name: {
                    "faults": count,
                    "healed_s_median": round(statistics.median(self.healed_s[name]), 2),
                    "healed_s_max": round(max(self.healed_s[name]), 2),
                }
                for name, count in sorted(self.faults.items())
            },
            "clusters": self.lives,
            "elections": self.elections,
            "sends": {
                client: dict(sorted((status, n) for (one, status), n in self.sends.items() if one == client))
                for client in clients
            },
            "made_before_faults": dict(sorted(self.made.items())),
            "messages_read": self.reads,
            "messages_looked_up_in_logs": self.messages,
            "log_bytes_compared": self.compared_bytes,
            "violations": 0,  # the first one ends the run with an error
        }


def plan(
    seed: int, faults: int, only: Sequence[str] = (), carriers: Sequence[str] = (BY_ETCD, EMBEDDED)
) -> list[Life]:
    """Lives with so many faults in all, each about as often as the others."""
    chance = random.Random(f"jepsen-{seed}")
    wanted = [fault for fault in FAULTS if not only or fault.name in only or fault.kind in only]
    used: Counter[str] = Counter()
    lives: list[Life] = []
    left = faults
    while left > 0:
        number = len(lives)
        carrier = carriers[-1] if number % EMBEDDED_EVERY == EMBEDDED_EVERY - 1 else carriers[0]
        powered = number % 2 == 1
        fitting = [fault for fault in wanted if fits(fault, carrier, powered=powered)]
        if not fitting:
            powered = not powered
            fitting = [fault for fault in wanted if fits(fault, carrier, powered=powered)]
        if not fitting:
            carrier = EMBEDDED if all(fault.embedded for fault in wanted) else BY_ETCD
            fitting = [fault for fault in wanted if fits(fault, carrier, powered=powered)]
        turns: list[tuple[Fault, ...]] = []
        count = min(left, FAULTS_PER_LIFE)
        while count > 0:
            turn = [_rarest(fitting, used, chance)]
            if count > 1 and not turn[0].solo and chance.random() < TOGETHER_CHANCE:
                others = [fault for fault in fitting if not fault.solo and fault is not turn[0]]
                turn += [_rarest(others, used, chance)] if others else []
            turns.append(tuple(turn))
            count -= len(turn)
            left -= len(turn)
        lives.append(Life(seed, number, carrier, powered, tuple(turns)))
    return lives


def _rarest(some: Sequence[Fault], used: Counter[str], chance: random.Random) -> Fault:
    """One of those that were used least so far."""
    least = min(used[fault.name] for fault in some)
    fault = chance.choice([fault for fault in some if used[fault.name] == least])
    used[fault.name] += 1
    return fault


def live(life: Life, folder: Path, ground: Ground, make_loads: MakeLoads, tally: Tally) -> None:
    """Raises Violation, with all that is known, and leaves the files; else nothing is left."""
    chance = random.Random(f"life-{life.seed}-{life.number}")
    flush = chance.choice((ASYNC_FLUSH, SYNC_FLUSH))
    cluster = Cluster(
        folder,
        ground,
        life.carrier,
        powered=life.powered,
        flush=flush,
        number=life.number,
        more=dict(life.settings),
    )
    what = "start"
    try:
        cluster.start(make_loads)
        for number, turn in enumerate(life.turns, 1):
            what = " and ".join(fault.name for fault in turn)
            cluster.step(f"--- {what}")
            time.sleep(chance.uniform(0.0, 0.3))
            # Progress is saved by time: what was not is consumed again when all brokers are killed.
            cluster.tables.make(cluster.leader().address, progress=False)
            _happen(cluster, chance, turn)
            cluster.step("it has to heal")
            healed_s = cluster.wait_healed()
            cluster.step(f"healed in {healed_s:.2f} s")
            check_offsets(cluster)
            check_tables(cluster)
            if number % CHECK_EVERY == 0:
                _count(tally, check(cluster))
            for fault in turn:
                tally.faults[fault.name] += 1
                tally.carriers[life.carrier] += 1
                tally.together += len(turn) > 1
                tally.healed_s.setdefault(fault.name, []).append(healed_s)
        what = "end"
        _count(tally, check(cluster))
        tally.elections += cluster.view().epoch
        check_queues(cluster)
    except AssertionError as error:
        _keep(cluster, folder)
        found = lost_at_leader(cluster) if isinstance(error, TooLate) else []
        raise Violation(_told(life, what, cluster, error, found)) from error
    finally:
        ground.wires.mend()
        cluster.close()
        tally.sends.update(cluster.history.statuses())
        tally.reads += len(cluster.history.reads)
        tally.made.update(part for made in cluster.tables.made for part in made.parts)
    shutil.rmtree(folder)
    tally.lives += 1


def _happen(cluster: Cluster, chance: random.Random, turn: Sequence[Fault]) -> None:
    """Begin them all, let them last as long as the longest, and end them all."""
    began = [fault.run(cluster, random.Random(chance.random())) for fault in turn]
    time.sleep(max(next(one) for one in began))
    for one in began:
        for _ in one:
            raise AssertionError("a fault lasts once")


def _count(tally: Tally, checked: tuple[int, int]) -> None:
    tally.messages += checked[0]
    tally.compared_bytes += checked[1]


def _told(life: Life, what: str, cluster: Cluster, error: Exception, found: Sequence[str]) -> str:
    tails = "\n".join(f"--- {node.name}\n{node.last_words()}" for node in cluster.nodes)
    return (
        f"seed {life.seed} life {life.number} fault {what} in {cluster.folder}:\n"
        f"{type(error).__name__}: {error}\n" + "\n".join((*found, *cluster.steps[-40:])) + f"\n{tails}"
    )


def _keep(cluster: Cluster, folder: Path) -> None:
    """What is on disks in memory would go with this process."""
    with suppress(OSError):
        shutil.copytree(ground_of(cluster), folder / "disks", dirs_exist_ok=True)
    with suppress(OSError), open(folder / "history.txt", "w", encoding="utf-8") as file:
        for send in sorted(cluster.history.sends, key=lambda one: one.began_s):
            file.write(
                f"{send.began_s:.3f} {send.ended_s:.3f} {send.client} {send.body[:24]!r} {send.status} "
                f"{send.queue} {send.offset} {send.place} {send.host}\n"
            )
        for read in cluster.history.reads:
            file.write(f"{read.at_s:.3f} read {read.queue} {read.offset} {read.body[:24]!r}\n")
        file.write("\n".join(cluster.steps))


def ground_of(cluster: Cluster) -> Path:
    return cluster.brokers[0].disk.parent
