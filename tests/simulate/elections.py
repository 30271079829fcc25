"""Schedules without messages: controllers under faults, with brokers that only ask them; and what is
judged."""

from __future__ import annotations

import asyncio
import random
from dataclasses import dataclass

from kerolox.controller.state import ReplicaGroup

from .consensus import Engine
from .controllers import Commits, ControllerNode
from .faults import OF_CONTROLLERS, Faults
from .standins import GROUP, Heard, StandIn
from .world import world

FAULTS_S = 30.0
SETTLE_S = 25.0


@dataclass
class Elections:
    """What one schedule came to."""

    seed: int
    wrong: list[str]
    faults: dict[str, int]
    masters: int
    story: list[str]
    steps: int


def run_elections(seed: int, *, trace: bool = False) -> Elections:
    chance = random.Random(f"elections-{seed}")
    with world(seed, drift=chance.choice((0.0, 0.01)), trace=trace) as made:
        engine = Engine(made.network, "10.0.2.1") if chance.random() < 0.6 else None
        commits: Commits = []
        controllers = [
            ControllerNode(
                made.host(f"c{number}", f"10.0.1.{number}"),
                engine,
                commits,
                scan_not_active_broker_interval=500,
                scan_inactive_master_interval=500,
            )
            for number in range(1, 1 + (chance.choice((2, 3)) if engine else 1))
        ]
        heard = Heard()
        addresses = [node.address for node in controllers]
        brokers = [
            StandIn(made.host(f"b{number}", f"10.0.0.{number}"), addresses, heard, chance)
            for number in range(1, 1 + chance.choice((2, 3)))
        ]
        faults = Faults(
            made,
            chance,
            brokers=brokers,
            controllers=controllers,
            engine_ip=None if engine is None else engine.ip,
        )

        async def story() -> None:
            for node in (*controllers, *brokers):
                made.loop.call_later(chance.uniform(0, 3), node.start)
            await asyncio.sleep(4)
            await faults.run(OF_CONTROLLERS, 4 + FAULTS_S, chance.choice((0.5, 2.0, 5.0)))
            faults.all_over()
            await asyncio.sleep(SETTLE_S)

        made.run(story())
        history = [group for _, group in commits] if engine is None else [one[2] for one in engine.commits]
        wrong = judge(history, heard)
        last = next((group for group in reversed(history) if group is not None), None)
        wrong += made.loop.errors
        if last is None or last.master is None:
            wrong.append(f"nobody leads at the end: {last}")
        else:
            for broker in brokers:
                if (broker.epoch, broker.master) != (last.master_epoch, last.master):
                    wrong.append(
                        f"{broker.host.name} takes {broker.master} for the master, of epoch {broker.epoch}; "
                        f"it is {last.master} of epoch {last.master_epoch}"
                    )
        return Elections(
            seed,
            wrong,
            dict(faults.count),
            0 if last is None else last.master_epoch,
            made.story,
            made.loop.steps,
        )


def judge(history: list[ReplicaGroup | None], heard: Heard) -> list[str]:
    """What is wrong with what was committed, in order, and with what brokers were told."""
    wrong = []
    before: ReplicaGroup | None = None
    masters: dict[int, int | None] = {}
    sets: dict[tuple[int, int], frozenset[int]] = {}  # by both epochs
    for group in history:
        if group is None or group.name != GROUP:
            wrong.append(f"group {GROUP} was forgotten, or is another: {group}")
            continue
        if before is not None:
            wrong += _step(before, group)
        masters.setdefault(group.master_epoch, group.master)
        if masters[group.master_epoch] != group.master:
            wrong.append(
                f"epoch {group.master_epoch} has masters {masters[group.master_epoch]} and {group.master}"
            )
        sets[group.master_epoch, group.in_sync_epoch] = group.in_sync
        before = group
    for epoch, id in sorted(set(heard.masters)):
        if masters.get(epoch) != id:
            wrong.append(f"a broker was told that {id} is master of epoch {epoch}: {masters.get(epoch)} is")
    for epoch, id, in_sync, set_epoch in heard.altered:
        if masters.get(epoch) != id or sets.get((epoch, set_epoch)) != in_sync:
            wrong.append(
                f"broker {id} was told that {sorted(in_sync)} is the set {set_epoch} of its epoch {epoch}: "
                f"it is {sets.get((epoch, set_epoch))}"
            )
    return wrong


def _step(before: ReplicaGroup, after: ReplicaGroup) -> list[str]:
    """What is wrong with one change."""
    wrong = []
    if after.master_epoch not in (before.master_epoch, before.master_epoch + 1):
        wrong.append(f"the master's epoch went from {before.master_epoch} to {after.master_epoch}")
    if after.in_sync_epoch not in (before.in_sync_epoch, before.in_sync_epoch + 1):
        wrong.append(f"the set's epoch went from {before.in_sync_epoch} to {after.in_sync_epoch}")
    if after.in_sync != before.in_sync and after.in_sync_epoch == before.in_sync_epoch:
        wrong.append(f"the set {before.in_sync_epoch} was {set(before.in_sync)} and is {set(after.in_sync)}")
    if after.master != before.master and after.master_epoch == before.master_epoch:
        wrong.append(f"epoch {after.master_epoch} had master {before.master} and has {after.master}")
    if after.master not in (None, before.master) and before.in_sync and after.master not in before.in_sync:
        wrong.append(f"{after.master} was elected, and in sync were {set(before.in_sync)}")
    if after.master is not None and after.master not in after.in_sync:
        wrong.append(f"master {after.master} is not in sync: {set(after.in_sync)}")
    return wrong
