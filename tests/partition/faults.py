"""What happens to a pair. Each fault begins and ends while clients send; then the pair has to heal by itself,
or to say by name why it cannot."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from typing import NamedTuple

from tests.rig.waiting import wait_until

from .pair import HEALED_S, SILENCE_MS, Pair
from .relay import Weather

SHORT_S = (0.1, 0.6 * SILENCE_MS / 1000)  # nobody takes anybody for gone
LONG_S = (1.2 * SILENCE_MS / 1000, 2.0 * SILENCE_MS / 1000)  # everybody does


class Fault(NamedTuple):
    name: str
    run: Callable[[Pair, random.Random], None]
    relayed: bool | None = None  # only with the relay, or only without; None: either
    mixed: bool = True  # also with Apache's broker, which does not notice that logs differ


def _pause(chance: random.Random, *ranges: tuple[float, float]) -> None:
    """Let it last: so long as one of these ranges says."""
    time.sleep(chance.uniform(*chance.choice(ranges)))


# --- wires --------------------------------------------------------------------------------------------------


def link_down(pair: Pair, chance: random.Random) -> None:
    pair.wires.cut_copy()
    with pair.alone("the link was down"):
        _pause(chance, SHORT_S, LONG_S)
    pair.wires.mend()


def deaf_follower(pair: Pair, chance: random.Random) -> None:
    pair.wires.cut_copy_from(pair.leader.number)
    with pair.alone("nothing of the leader's reached the follower"):
        _pause(chance, SHORT_S, LONG_S)
    pair.wires.mend()


def deaf_leader(pair: Pair, chance: random.Random) -> None:
    pair.wires.cut_copy_from(pair.follower.number)
    with pair.alone("nothing of the follower's reached the leader"):
        _pause(chance, SHORT_S, LONG_S)
    pair.wires.mend()


def follower_cut_off(pair: Pair, chance: random.Random) -> None:
    pair.wires.cut_off(pair.follower.number)
    with pair.alone("the follower was cut off"):
        _pause(chance, SHORT_S, LONG_S)
    pair.wires.mend()


def leader_cut_off(pair: Pair, chance: random.Random) -> None:
    pair.wires.cut_off(pair.leader.number)
    with pair.alone("the leader was cut off"):
        _pause(chance, SHORT_S, LONG_S)
    pair.wires.mend()


# --- a bad way ----------------------------------------------------------------------------------------------


def _weather(pair: Pair, weather: Weather) -> None:
    relay = pair.hub.relay
    pair.step(str(weather))
    pair.hub.call(lambda: setattr(relay, "weather", weather))


def slow_link(pair: Pair, chance: random.Random) -> None:
    _weather(pair, Weather(delay_s=chance.uniform(0.01, 0.2), bytes_per_s=chance.uniform(20e3, 200e3)))
    _pause(chance, SHORT_S, LONG_S)
    pair.hub.call(pair.hub.relay.clear)


def lossy_link(pair: Pair, chance: random.Random) -> None:
    _weather(
        pair,
        Weather(
            pause_chance=chance.uniform(0.05, 0.4), pause_s=chance.uniform(0.2, 0.5),
            cut_chance=chance.uniform(0.01, 0.2),
        ),
    )  # fmt: skip
    _pause(chance, LONG_S)
    pair.hub.call(pair.hub.relay.clear)


def resets(pair: Pair, chance: random.Random) -> None:
    for _ in range(chance.randrange(1, 6)):
        pair.step("reset")
        pair.hub.call(pair.hub.relay.reset)
        time.sleep(chance.uniform(0.01, 0.4))


def cut_in_frame(pair: Pair, chance: random.Random) -> None:
    for _ in range(chance.randrange(1, 4)):
        pair.step("cut in the next frame")
        pair.hub.call(pair.hub.relay.cut_in_frame)
        time.sleep(chance.uniform(0.05, 0.5))


def silent_link(pair: Pair, chance: random.Random) -> None:
    """The connection stays, and nothing passes: one way, or both."""
    ways = chance.choice(((True,), (False,), (True, False)))
    for to_follower in ways:
        pair.hub.call(lambda way=to_follower: pair.hub.relay.hold(to_follower=way))  # type: ignore[misc]
    with pair.alone(f"nothing passed, to the follower: {ways}"):
        _pause(chance, SHORT_S, LONG_S)
    pair.hub.call(pair.hub.relay.clear)


# --- processes ----------------------------------------------------------------------------------------------


def kill_follower(pair: Pair, chance: random.Random) -> None:
    pair.follower.kill()
    with pair.alone("the follower was killed"):
        time.sleep(chance.uniform(0, 0.4))
    pair.follow()


def kill_leader(pair: Pair, chance: random.Random) -> None:
    pair.leader.kill()
    pair.step("the leader was killed")
    time.sleep(chance.uniform(0, 0.4))
    pair.lead()


def kill_both(pair: Pair, chance: random.Random) -> None:
    pair.step("both are killed")
    pair.tables.forget_progress()
    for node in chance.sample(pair.nodes, 2):
        node.kill()
    with pair.alone("both were killed"):
        pair.lead()
    pair.follow()


def freeze_follower(pair: Pair, chance: random.Random) -> None:
    pair.follower.freeze()
    with pair.alone("the follower was frozen"):
        _pause(chance, SHORT_S, LONG_S)
    pair.follower.thaw()


def freeze_leader(pair: Pair, chance: random.Random) -> None:
    pair.leader.freeze()
    with pair.alone("the leader was frozen"):
        _pause(chance, SHORT_S, LONG_S)
    pair.leader.thaw()


def restart_follower(pair: Pair, chance: random.Random) -> None:
    pair.step("the follower is stopped")
    pair.follower.end()
    with pair.alone("the follower was stopped"):
        time.sleep(chance.uniform(0, 0.2))
    pair.follow()


def restart_leader(pair: Pair, chance: random.Random) -> None:
    pair.step("the leader is stopped")
    pair.leader.end()
    time.sleep(chance.uniform(0, 0.2))
    pair.lead()


def wipe_follower(pair: Pair, chance: random.Random) -> None:
    pair.follower.kill()
    with pair.alone("the follower lost its disk"):
        pair.follower.wipe()
        time.sleep(chance.uniform(0, 0.2))
    pair.follow()


# --- another one leads --------------------------------------------------------------------------------------


def _part(pair: Pair) -> None:
    """The follower hears nothing any more of the leader, which goes on."""
    if pair.relayed:
        for way in (True, False):
            pair.hub.call(lambda way=way: pair.hub.relay.hold(to_follower=way))  # type: ignore[misc]
    else:
        pair.wires.cut_copy()


def _join(pair: Pair) -> None:
    pair.hub.call(pair.hub.relay.clear)
    pair.wires.mend()


def swap_leaders(pair: Pair, chance: random.Random) -> None:
    """The leader dies with messages its follower never got; the follower leads, and takes others."""
    _part(pair)
    with pair.alone("the follower heard nothing"):
        pair.wait_sent(chance.randrange(1, 40))
        pair.leader.kill()
    pair.step("the leader was killed")
    _lead_on(pair, chance)


def lose_leader(pair: Pair, chance: random.Random) -> None:
    """The leader and its disk are gone, in the middle of sends: the follower has what was acknowledged."""
    pair.leader.kill()
    pair.leader.wipe()
    pair.step("the leader and its disk are lost")
    _lead_on(pair, chance)


def empty_leader(pair: Pair, chance: random.Random) -> None:
    """The leader comes back with an empty disk: its follower refuses it, keeps all, and leads instead."""
    mark = pair.follower.mark
    pair.leader.kill()
    with pair.alone("the leader had lost its disk"):
        pair.leader.wipe()
        pair.lead()
        pair.wait_refused(mark)
        mark = pair.follower.mark
        pair.follower.end()
        pair.follow()  # which finds that leader first of all
        pair.wait_refused(mark)
        pair.leader.kill()
        pair.leader.wipe()
    _lead_on(pair, chance)


def two_leaders(pair: Pair, chance: random.Random) -> None:
    """The leader freezes, another one leads, and it wakes up: for a while both lead."""
    pair.leader.freeze()
    with pair.alone("the leader was frozen, and another one led"):
        pair.swap()
    old = pair.follower
    with pair.alone("two led"):
        old.thaw()
        pair.wait_sent(chance.randrange(1, 40))
        old.kill()
    # What it stored when it woke up was told as stored, and is gone.
    pair.history.swapped_s = time.time()
    pair.come_back()


def hand_over(pair: Pair, chance: random.Random) -> None:
    """The leader is stopped, the follower leads, the old leader follows: nothing differs."""
    pair.pause()
    pair.wait_equal()
    pair.step("the leader is stopped")
    pair.leader.end()
    _lead_on(pair, chance)


def promote(pair: Pair, chance: random.Random) -> None:
    """The leader is killed in the middle of sends, and its follower, which runs, is promoted."""
    pair.leader.kill()
    pair.step("the leader was killed")
    with pair.alone("nobody followed"):
        pair.pause()
        pair.promote()
        pair.resume()
        pair.wait_sent(chance.choice((0, 1, 30, 250)))
        pair.pause()
    pair.come_back()


def promote_beside(pair: Pair, chance: random.Random) -> None:
    """The leader is cut off, its follower is promoted, and both lead when the wires are whole again: whatever
    their clocks say, the one that was promoted goes on."""
    old = pair.leader
    pair.wires.cut_off(old.number)
    with pair.alone("the leader was cut off, and another one promoted"):
        pair.promote()
        pair.wait_sent(chance.randrange(1, 40))
        pair.wires.mend()
        wait_until(lambda: "followerState" in old.told(), lambda: "the old leader gives way", HEALED_S)
        if "followerState" in pair.leader.told():
            raise AssertionError("the promoted leader gave way")
        old.kill()
    # What it stored until it gave way was told as stored, and is gone.
    pair.history.swapped_s = time.time()
    pair.come_back()


def _lead_on(pair: Pair, chance: random.Random) -> None:
    """The follower leads, takes a few messages or none, and the old leader comes back."""
    with pair.alone("nobody followed"):
        pair.pause()
        pair.swap()
        # Not before: what a dead process has written its kernel sends, as soon as it can.
        _join(pair)
        pair.resume()
        pair.wait_sent(chance.choice((0, 1, 30, 250)))
        pair.pause()
    pair.come_back()


FAULTS = (
    Fault("link-down", link_down, relayed=False),
    Fault("deaf-follower", deaf_follower, relayed=False),
    Fault("deaf-leader", deaf_leader, relayed=False),
    Fault("follower-cut-off", follower_cut_off),
    Fault("leader-cut-off", leader_cut_off),
    Fault("slow-link", slow_link, relayed=True),
    Fault("lossy-link", lossy_link, relayed=True),
    Fault("resets", resets, relayed=True),
    Fault("cut-in-frame", cut_in_frame, relayed=True),
    Fault("silent-link", silent_link, relayed=True),
    Fault("kill-follower", kill_follower),
    Fault("kill-leader", kill_leader),
    Fault("kill-both", kill_both),
    Fault("freeze-follower", freeze_follower),
    Fault("freeze-leader", freeze_leader),
    Fault("restart-follower", restart_follower),
    Fault("restart-leader", restart_leader),
    Fault("wipe-follower", wipe_follower),
    Fault("swap-leaders", swap_leaders, mixed=False),
    Fault("lose-leader", lose_leader, mixed=False),
    Fault("empty-leader", empty_leader, mixed=False),
    Fault("two-leaders", two_leaders, mixed=False),
    Fault("hand-over", hand_over, mixed=False),
    Fault("promote", promote, mixed=False),
    Fault("promote-beside", promote_beside, mixed=False),
)
