"""Three faults of ``make partition``, with our client: a link that is down, a leader that is killed, and one
that comes back after another one led; and one that was promoted while the other led."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.rig.history import History
from tests.rig.loads import Load, OurLoad
from tests.rig.netns import NoNamespaces
from tests.rig.nursery import Nursery
from tests.rig.servers import BROKER

from .faults import FAULTS, Fault
from .hub import Hub
from .pair import Violation
from .story import Life, Stage, Tally, live, plan
from .wires import Wires

GATE = ("link-down", "kill-leader", "swap-leaders")
SEED = 7


@pytest.fixture
def wires() -> Iterator[Wires]:
    """Where networks cannot be made, skip loudly or fail as asked."""
    try:
        made = Wires()
    except NoNamespaces as missing:
        message = f"NO NETWORK NAMESPACES: {missing}"
        if os.environ.get("KEROLOX_REQUIRE_NETNS") == "1":
            pytest.fail(message, pytrace=False)
        pytest.skip(message)
    with made:
        yield made


def run(life: Life, wires: Wires, folder: Path) -> Tally:
    tally = Tally()
    with ExitStack() as stack:
        hub = stack.enter_context(Hub(wires.hub_ip, folder / "nameserver"))
        nursery = stack.enter_context(Nursery(BROKER))

        def make_loads(topic: str, history: History) -> Sequence[Load]:
            return [OurLoad(hub, hub.nameserver, topic, history, SEED)]

        live(life, folder / "pair", Stage(wires, hub, nursery, None, make_loads), tally)
    return tally


def faults(*names: str) -> tuple[Fault, ...]:
    by_name = {fault.name: fault for fault in FAULTS}
    return tuple(by_name[name] for name in names)


def test_nothing_acknowledged_is_lost_in_three_faults(wires: Wires, tmp_path: Path) -> None:
    tally = run(Life(SEED, 0, relayed=False, faults=faults(*GATE)), wires, tmp_path)
    told = tally.dump()
    assert list(told["by_name"]) == sorted(GATE)
    assert told["sends"]["ours"]["SEND_OK"] > 15
    assert told["sends"]["ours"]["SLAVE_NOT_AVAILABLE"] > 0  # nobody pretends while the follower is away
    assert tally.divergences.total() == 1  # the old leader was refused, by name


def test_what_was_made_last_survives_promotions_whatever_the_clocks_say(wires: Wires, tmp_path: Path) -> None:
    hour_ms = 3_600_000
    life = Life(SEED, 2, relayed=False, faults=faults("promote-beside"), clocks_ms=(5 * hour_ms, -hour_ms))
    tally = run(life, wires, tmp_path)
    assert tally.made == {"topic": 1, "group": 1, "user": 1, "rule": 1, "message": 1, "progress": 1}


def test_a_leader_that_does_not_wait_is_found_out(wires: Wires, tmp_path: Path) -> None:
    """It acknowledges what it has alone, and takes it with it when it dies."""
    hasty = (("inSyncReplicas", 1),)
    life = Life(SEED, 1, relayed=False, faults=faults("swap-leaders"), settings=hasty)
    with pytest.raises(Violation) as found:
        run(life, wires, tmp_path)
    assert "is missing" in str(found.value) or "is another message" in str(found.value)
    assert "was acknowledged while the follower heard nothing" in str(found.value)


def test_networks_leave_nothing_behind(wires: Wires) -> None:
    """Neither a name on the machine, nor this thread inside."""
    inside = os.readlink("/proc/thread-self/ns/net")
    with wires.nodes[0].inside():
        assert os.readlink("/proc/thread-self/ns/net") != inside
    assert os.readlink("/proc/thread-self/ns/net") == inside
    names = Path("/run/netns")
    inodes = {os.fstat(one.fd).st_ino for one in (wires.hub, *wires.nodes)}
    assert len(inodes) == 3
    assert not names.exists() or not inodes & {path.stat().st_ino for path in names.iterdir()}


def test_a_plan_is_the_same_each_time_and_has_every_fault() -> None:
    lives = plan(3, 300)
    assert lives == plan(3, 300)
    assert lives != plan(4, 300)
    done = [fault.name for life in lives for fault in life.faults]
    assert len(done) == 300
    assert set(done) == {fault.name for fault in FAULTS}
    assert all(fault.relayed in (None, life.relayed) for life in lives for fault in life.faults)
    assert [life.brokers for life in plan(3, 0, mixed=26)] == [("ours", "apache's"), ("apache's", "ours")]
    assert {fault.name for life in plan(3, 40, ["resets"]) for fault in life.faults} == {"resets"}
