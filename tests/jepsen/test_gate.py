"""A part of ``make jepsen``: faults of each kind with a controller that keeps a file, and a story with etcd.
And a cluster that breaks its word, which has to be found out."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest

from kerolox.supervise.etcd import find_etcd
from tests.rig.loads import Load

from .cluster import BY_ETCD, EMBEDDED, NAMESERVER, Ground, Violation
from .faults import FAULTS, KINDS, TORN, Fault
from .history import ClusterHistory
from .nodes import NAMESERVER_PORT
from .stage import our_load
from .story import Life, Tally, live, plan

SEED = 7
# Three of each kind, most of them two at a time; those that destroy data alone.
GATE = (
    ("leader-without-controllers", "wall-jump"), ("leader-with-clients-only", "steady-leap"),
    ("one-way-leader-controllers", "slow-clock"), ("one-way-leader-followers", "freeze-controller"),
    ("one-way-mess", "kill-leader"), ("freeze-leader", "full-disk-follower"),
    ("freeze-followers", "kill-controller"), ("ring", "kill-brokers"),
    ("full-disk-leader",), ("full-disk-controller",),
    ("wipe-leader",), ("wipe-follower",), ("wipe-leader",),
    ("restore-controller",), ("copy-identity",), ("restore-controller",),
)  # fmt: skip
TORN_GATE = (("power-of-leader",), ("power-of-follower",), ("power-of-follower-twice",))
ETCD_GATE = (
    ("kill-leader-and-controller",), ("controller-without-etcd", "kill-leader"), ("restore-etcd",),
)  # fmt: skip


def turns(*names: Sequence[str]) -> tuple[tuple[Fault, ...], ...]:
    by_name = {fault.name: fault for fault in FAULTS}
    return tuple(tuple(by_name[name] for name in turn) for turn in names)


def kinds(tally: Tally) -> set[tuple[str, int]]:
    told = tally.dump()["by_kind"]
    return {(kind, count) for kind, count in told.items() if count}


def run(life: Life, ground: Ground, folder: Path) -> Tally:
    tally = Tally()
    nameserver = f"{ground.wires.ips[NAMESERVER]}:{NAMESERVER_PORT}"

    def make_loads(topic: str, history: ClusterHistory) -> Sequence[Load]:
        return our_load(ground, nameserver, topic, history, SEED)

    live(life, folder / "cluster", ground, make_loads, tally)
    return tally


@pytest.mark.timeout(240)
def test_a_group_keeps_its_word_under_faults_of_every_kind(ground: Ground, tmp_path: Path) -> None:
    tally = run(Life(SEED, 0, EMBEDDED, False, turns(*GATE)), ground, tmp_path)
    assert kinds(tally) == {(kind, 3) for kind in KINDS if kind != TORN}
    assert tally.elections > 5
    assert tally.sends["ours", "SEND_OK"] > 100
    assert set(tally.made) == {"topic", "group", "user", "rule", "message"}
    assert min(tally.made.values()) > len(GATE) // 2


@pytest.mark.timeout(120)
def test_power_that_takes_pages_with_it_takes_nothing_acknowledged(ground: Ground, tmp_path: Path) -> None:
    tally = run(Life(SEED, 1, EMBEDDED, True, turns(*TORN_GATE)), ground, tmp_path)
    assert kinds(tally) == {(TORN, 3)}


@pytest.mark.timeout(120)
def test_controllers_with_etcd_go_on_when_one_dies_and_when_etcd_does(ground: Ground, tmp_path: Path) -> None:
    if find_etcd() is None:
        message = "NO ETCD: CONTROLLERS THAT SHARE THEIR STATE ARE NOT TESTED"
        if os.environ.get("KEROLOX_REQUIRE_ETCD") == "1":
            pytest.fail(message, pytrace=False)
        pytest.skip(message)
    tally = run(Life(SEED, 2, BY_ETCD, False, turns(*ETCD_GATE)), ground, tmp_path)
    assert tally.total == 4


@pytest.mark.timeout(120)
def test_a_leader_that_does_not_wait_is_found_out(ground: Ground, tmp_path: Path) -> None:
    """It acknowledges what it has alone, also when another one was elected meanwhile: that is cut off."""
    hasty = (("allAckInSyncStateSet", "false"), ("inSyncReplicas", 1), ("controllerLeaseEnable", "false"))
    life = Life(SEED, 3, EMBEDDED, False, turns(["leader-with-clients-only-for-long"]), settings=hasty)
    with pytest.raises(Violation) as found:
        run(life, ground, tmp_path)
    assert "is missing" in str(found.value) or "is another message" in str(found.value)


def test_a_plan_is_the_same_each_time_and_has_every_fault() -> None:
    lives = plan(3, 500)
    assert lives == plan(3, 500)
    assert lives != plan(4, 500)
    done = Counter(fault.name for life in lives for fault in life.faults)
    assert done.total() == 500
    assert set(done) == {fault.name for fault in FAULTS}
    assert min(done.values()) >= 5
    assert {fault.kind for fault in FAULTS} == set(KINDS)
    assert all(life.powered for life in lives for fault in life.faults if fault.kind == TORN)
    assert all(life.carrier == BY_ETCD for life in lives for fault in life.faults if fault.etcd)
    assert all(len(turn) == 1 for life in lives for turn in life.turns if any(fault.solo for fault in turn))
    assert {fault.kind for life in plan(3, 40, [TORN]) for fault in life.faults} == {TORN}
