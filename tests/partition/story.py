"""The life of one pair: faults one after the other, and a verdict after each."""

from __future__ import annotations

import random
import shutil
import statistics
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from tests.peers.jars import Jars
from tests.rig.nursery import Nursery

from .faults import FAULTS, Fault
from .history import PairHistory
from .hub import Hub
from .node import ApacheNode, Node, OurNode
from .pair import MakeLoads, Pair, Violation
from .wires import Wires

FAULTS_PER_LIFE = 12
MIXED_FAULTS_PER_LIFE = 13
RELAYED_EVERY = 3  # lives
HOUR_MS = 3_600_000
CLOCKS_MS = (0, -HOUR_MS, HOUR_MS, -5 * HOUR_MS, 5 * HOUR_MS)
OURS, APACHES = "ours", "apache's"
MIXED = ((OURS, APACHES), (APACHES, OURS))


class Life(NamedTuple):
    """What happens to one pair. The same number and seed make the same life, as far as time allows."""

    seed: int
    number: int
    relayed: bool
    faults: tuple[Fault, ...]
    brokers: tuple[str, str] = (OURS, OURS)  # who leads, and who follows, at first
    settings: tuple[tuple[str, object], ...] = ()  # of both brokers, beside those every pair has
    clocks_ms: tuple[int, int] = (0, 0)  # how far the wall clock of each broker of ours is off


@dataclass
class Tally:
    faults: Counter[str] = field(default_factory=Counter)
    brokers: Counter[str] = field(default_factory=Counter)  # faults, by who led and who followed
    healed_s: dict[str, list[float]] = field(default_factory=dict)
    sends: Counter[tuple[str, str]] = field(default_factory=Counter)
    divergences: Counter[str] = field(default_factory=Counter)
    lives: int = 0
    made: Counter[str] = field(default_factory=Counter)  # tables that were acknowledged before a fault
    messages: int = 0  # in logs, as often as they were looked at
    compared_bytes: int = 0

    @property
    def total(self) -> int:
        return self.faults.total()

    def dump(self) -> dict[str, Any]:
        clients = sorted({client for client, _ in self.sends})
        return {
            "faults": self.total,
            "by_brokers": dict(sorted(self.brokers.items())),
            "by_name": {
                name: {
                    "faults": count,
                    "healed_s_median": round(statistics.median(self.healed_s[name]), 2),
                    "healed_s_max": round(max(self.healed_s[name]), 2),
                }
                for name, count in sorted(self.faults.items())
            },
            "pairs": self.lives,
            "sends": {
                client: dict(sorted((status, n) for (one, status), n in self.sends.items() if one == client))
                for client in clients
            },
            "made_before_faults": dict(sorted(self.made.items())),
            "refused_by_name": dict(sorted(self.divergences.items())),
            "messages_looked_up_in_logs": self.messages,
            "log_bytes_compared": self.compared_bytes,
            "violations": 0,  # the first one ends the run with an error
        }


def plan(seed: int, faults: int, only: Sequence[str] = (), mixed: int = 0) -> list[Life]:
    """Lives with so many faults in all, each kind about as often as the others; then as many as ``mixed``
    says of pairs with one of Apache's brokers."""
    chance = random.Random(f"partition-{seed}")
    decks: dict[bool, list[Fault]] = {True: [], False: []}
    lives: list[Life] = []
    left = faults
    while left > 0:
        relayed = len(lives) % RELAYED_EVERY == RELAYED_EVERY - 1
        fitting = _fitting(relayed, only)
        if not fitting:
            relayed = not relayed
            fitting = _fitting(relayed, only)
        chosen = []
        for _ in range(min(left, FAULTS_PER_LIFE)):
            if not decks[relayed]:
                decks[relayed] = chance.sample(fitting, len(fitting))
            chosen.append(decks[relayed].pop())
        left -= len(chosen)
        clocks_ms = (chance.choice(CLOCKS_MS), chance.choice(CLOCKS_MS))
        lives.append(Life(seed, len(lives), relayed, tuple(chosen), clocks_ms=clocks_ms))
    fitting = [fault for fault in _fitting(False, only) if fault.mixed]
    for turn in range(0, mixed, MIXED_FAULTS_PER_LIFE):
        count = min(mixed - turn, MIXED_FAULTS_PER_LIFE)
        chosen = [
            fault for _ in range(0, count, len(fitting)) for fault in chance.sample(fitting, len(fitting))
        ]
        brokers = MIXED[turn // MIXED_FAULTS_PER_LIFE % len(MIXED)]
        lives.append(Life(seed, len(lives), False, tuple(chosen[:count]), brokers))
    return lives


def _fitting(relayed: bool, only: Sequence[str]) -> list[Fault]:
    return [
        fault for fault in FAULTS if fault.relayed in (None, relayed) and (not only or fault.name in only)
    ]


class Stage(NamedTuple):
    """What all pairs use, one after the other."""

    wires: Wires
    hub: Hub
    nursery: Nursery
    jars: Jars | None  # for pairs with Apache's broker
    make_loads: MakeLoads

    def make_nodes(self, life: Life, folder: Path, settings: Mapping[str, object]) -> list[Node]:
        settings = {**settings, **dict(life.settings)}
        nodes: list[Node] = []
        for number, kind in enumerate(life.brokers):
            home = folder / f"node-{number}"
            if kind == OURS:
                off_ms = life.clocks_ms[number]
                nodes.append(OurNode(home, number, self.wires, self.nursery, settings, off_ms=off_ms))
            else:
                assert self.jars is not None
                nodes.append(ApacheNode(home, number, self.wires, self.jars, settings))
        return nodes


def live(life: Life, folder: Path, stage: Stage, tally: Tally) -> None:
    """Raises Violation, with all that is known, and leaves the files; else nothing is left."""
    wires, hub = stage.wires, stage.hub
    chance = random.Random(f"life-{life.seed}-{life.number}")
    hub.call(lambda: hub.relay.seed(chance.randrange(1 << 30)))
    pair = Pair(
        folder, life.number, wires, hub, chance,
        lambda settings: stage.make_nodes(life, folder, settings), relayed=life.relayed,
        makes_tables=life.brokers == (OURS, OURS),
    )  # fmt: skip
    fault_name = "start"
    try:
        pair.start(stage.make_loads)
        for fault in life.faults:
            fault_name = fault.name
            pair.step(f"--- {fault.name}")
            pair.wait_sent(chance.randrange(120))
            if pair.makes_tables:
                pair.tables.make(pair.leader.client_address)
            fault.run(pair, chance)
            pair.step("it has to heal")
            healed_s = pair.wait_healed()
            pair.pause()
            pair.step(f"healed in {healed_s:.2f} s")
            messages, size = pair.check()
            pair.resume()
            tally.faults[fault.name] += 1
            tally.brokers[" and ".join(life.brokers)] += 1
            tally.healed_s.setdefault(fault.name, []).append(healed_s)
            tally.messages += messages
            tally.compared_bytes += size
        fault_name = "end"
        pair.pause()
        pair.check()
        pair.check_queues()
    except AssertionError as error:
        _keep(folder / "history.txt", pair.history)
        raise Violation(_told(life, fault_name, pair, error)) from error
    finally:
        pair.close()
        wires.mend()
        hub.call(hub.relay.clear)
        tally.sends.update(pair.history.statuses())
        tally.divergences.update(pair.divergences)
        tally.made.update(part for made in pair.tables.made for part in made.parts)
    shutil.rmtree(folder)
    tally.lives += 1


def _told(life: Life, fault: str, pair: Pair, error: Exception) -> str:
    tails = "\n".join(f"--- {node.home.name}\n{node.last_words()}" for node in pair.nodes)
    return (
        f"seed {life.seed} life {life.number} fault {fault} in {pair.folder}:\n"
        f"{type(error).__name__}: {error}\n" + "\n".join(pair.steps[-40:]) + f"\n{tails}"
    )


def _keep(path: Path, history: PairHistory) -> None:
    with suppress(OSError), open(path, "w", encoding="utf-8") as file:
        for send in sorted(history.sends, key=lambda one: one.began_s):
            file.write(
                f"{send.began_s:.3f} {send.ended_s:.3f} {send.client} {send.body[:24]!r} {send.status} "
                f"{send.queue} {send.offset} {send.place}\n"
            )
        for alone in history.alone:
            file.write(f"alone {alone}\n")
