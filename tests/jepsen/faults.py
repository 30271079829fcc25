"""What happens to a cluster. Each fault is a generator: up to its ``yield`` it begins, and says how long it
is to last; behind it it ends. Two of them may last at the same time. Then the cluster has to heal."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import NamedTuple

from tests.rig.waiting import wait_until

from .cluster import (
    ACKED,
    BY_ETCD,
    EMBEDDED,
    HEALED_S,
    LEASE_S,
    LOG_FILE_BYTES,
    SYNC_FLUSH,
    Cluster,
)
from .nodes import Node
from .wires import CLIENTS, Link, between, both_ways

SHORT_S = (0.1, 0.6 * LEASE_S)  # nobody takes anybody for gone
LONG_S = (1.3 * LEASE_S, 2.0 * LEASE_S)  # everybody does, and every lease is over
HOUR_MS = 3_600_000
FLAP_S = (0.01, 0.2)
STORM_S = (3.0, 5.0)

Lasting = Iterator[float]


class Fault(NamedTuple):
    name: str
    kind: str
    run: Callable[[Cluster, random.Random], Lasting]
    solo: bool = False  # never together with another one: it destroys data, of which others must have a copy
    etcd: bool = False  # only where controllers have etcd
    embedded: bool = False  # only where a controller has a file
    powered: bool | None = None  # only where brokers can lose their power, or only where they cannot


def short_or_long(chance: random.Random) -> float:
    return chance.uniform(*chance.choice((SHORT_S, LONG_S)))


def long(chance: random.Random) -> float:
    return chance.uniform(*LONG_S)


# --- partitions ---------------------------------------------------------------------------------------------


def _parted(cluster: Cluster, chance: random.Random, links: Iterable[Link], what: str) -> Lasting:
    """These wires are cut: both ways as given, or one way of each."""
    cut = set(links)
    cluster.step(f"cut: {what}")
    cluster.wires.cut(cut)
    yield short_or_long(chance)
    cluster.wires.mend(cut)


def _one_way(chance: random.Random, links: Iterable[Link]) -> set[Link]:
    """All of them in one direction, whichever."""
    pairs = sorted({(min(link), max(link)) for link in links})
    return {chance.choice((pair, pair[::-1])) for pair in pairs}


def isolate_leader(cluster: Cluster, chance: random.Random) -> Lasting:
    leader = cluster.leader().name
    yield from _parted(
        cluster, chance, between([leader], cluster.places), f"the leader {leader} from everybody"
    )


def isolate_any(cluster: Cluster, chance: random.Random) -> Lasting:
    name = chance.choice(cluster.nodes).name
    yield from _parted(cluster, chance, between([name], cluster.places), f"{name} from everybody")


def leader_without_controllers(cluster: Cluster, chance: random.Random) -> Lasting:
    """Its followers and its clients reach it: it must stop by itself."""
    leader = cluster.leader().name
    links = between([leader], [one.name for one in cluster.controllers])
    yield from _parted(cluster, chance, links, f"the leader {leader} from the controllers")


def leader_without_followers(cluster: Cluster, chance: random.Random) -> Lasting:
    leader = cluster.leader()
    links = between([leader.name], [one.name for one in cluster.brokers])
    yield from _parted(cluster, chance, links, f"the leader {leader.name} from its followers")


def leader_without_one_follower(cluster: Cluster, chance: random.Random) -> Lasting:
    leader, follower = cluster.leader(), chance.choice(cluster.followers())
    links = both_ways([(leader.name, follower.name)])
    yield from _parted(cluster, chance, links, f"the leader {leader.name} from {follower.name}")


def leader_without_clients(cluster: Cluster, chance: random.Random) -> Lasting:
    leader = cluster.leader().name
    yield from _parted(cluster, chance, both_ways([(leader, CLIENTS)]), f"the leader {leader} from clients")


def leader_with_minority(cluster: Cluster, chance: random.Random) -> Lasting:
    """The leader and its clients here, all other servers there."""
    leader = cluster.leader().name
    others = [name for name in cluster.places if name not in (leader, CLIENTS)]
    links = between([leader, CLIENTS], others)
    yield from _parted(cluster, chance, links, f"{leader} and clients from everybody else")


def leader_with_minority_for_long(cluster: Cluster, chance: random.Random) -> Lasting:
    """So long that another one is elected, and clients find only the old one."""
    for lasts_s in leader_with_minority(cluster, chance):
        yield max(lasts_s, LONG_S[1])


def halves(cluster: Cluster, chance: random.Random) -> Lasting:
    names = chance.sample(cluster.places, len(cluster.places))
    some = names[: len(names) // 2]
    others = names[len(names) // 2 :]
    yield from _parted(cluster, chance, between(some, others), f"{some} from {others}")


def bridge(cluster: Cluster, chance: random.Random) -> Lasting:
    """Two sides that do not see each other, and one in the middle that sees both."""
    names = chance.sample(cluster.places, len(cluster.places))
    middle = len(names) // 2
    some, others = names[:middle], names[middle + 1 :]
    yield from _parted(
        cluster, chance, between(some, others), f"{some} from {others}, all see {names[middle]}"
    )


def ring(cluster: Cluster, chance: random.Random) -> Lasting:
    """Everybody sees two neighbours on each side, and nobody else."""
    names = chance.sample(cluster.places, len(cluster.places))
    count = len(names)
    near = {(names[at], names[(at + step) % count]) for at in range(count) for step in (-2, -1, 1, 2)}
    yield from _parted(cluster, chance, between(names, names) - near, f"a ring of {names}")


def random_links(cluster: Cluster, chance: random.Random) -> Lasting:
    links = sorted(between(cluster.places, cluster.places))
    cut = chance.sample(links, len(links) // chance.choice((2, 4, 8)))
    yield from _parted(cluster, chance, cut, f"{len(cut)} of {len(links)} wires, one way each")


def one_way_leader(cluster: Cluster, chance: random.Random) -> Lasting:
    """The leader hears everybody and is heard by nobody, or the other way round."""
    leader = cluster.leader().name
    others = [name for name in cluster.places if name != leader]
    links = [(leader, other) for other in others]
    if chance.random() < 0.5:
        links = [(other, leader) for other in others]
    yield from _parted(cluster, chance, links, f"one way: {links[0][0]}, ... to {links[0][1]}, ...")


def one_way_leader_to_controllers(cluster: Cluster, chance: random.Random) -> Lasting:
    leader = cluster.leader().name
    cut = _same_way(chance, [(leader, one.name) for one in cluster.controllers])
    yield from _parted(cluster, chance, cut, f"one way: {sorted(cut)}")


def one_way_leader_to_followers(cluster: Cluster, chance: random.Random) -> Lasting:
    leader = cluster.leader()
    cut = _same_way(chance, [(leader.name, one.name) for one in cluster.brokers if one is not leader])
    yield from _parted(cluster, chance, cut, f"one way: {sorted(cut)}")


def one_way_halves(cluster: Cluster, chance: random.Random) -> Lasting:
    names = chance.sample(cluster.places, len(cluster.places))
    some, others = names[: len(names) // 2], names[len(names) // 2 :]
    cut = {(one, other) for one in some for other in others}
    yield from _parted(cluster, chance, cut, f"one way, from {some} to {others}")


def one_way_mess(cluster: Cluster, chance: random.Random) -> Lasting:
    """Of each pair of brokers and controllers one does not hear the other."""
    names = [one.name for one in (*cluster.brokers, *cluster.controllers)]
    cut = _one_way(chance, between(names, names))
    yield from _parted(cluster, chance, cut, f"one way: {sorted(cut)}")


def _same_way(chance: random.Random, links: Sequence[Link]) -> set[Link]:
    return set(links) if chance.random() < 0.5 else {link[::-1] for link in links}


def flapping(cluster: Cluster, chance: random.Random) -> Lasting:
    """Wires of the leader come and go: packets get lost, and connections end at any moment."""
    leader = cluster.leader().name
    links = sorted(between([leader], cluster.places))
    cluster.step(f"the wires of {leader} flap")
    until_s = time.monotonic() + long(chance)
    while time.monotonic() < until_s:
        cut = chance.sample(links, chance.randrange(1, len(links) + 1))
        cluster.wires.cut(cut)
        time.sleep(chance.uniform(*FLAP_S))
        cluster.wires.mend(cut)
        time.sleep(chance.uniform(*FLAP_S))
    yield 0.0


def controllers_apart(cluster: Cluster, chance: random.Random) -> Lasting:
    """No broker hears any controller: nobody can be elected, and every lease runs out."""
    links = between([one.name for one in cluster.brokers], [one.name for one in cluster.controllers])
    yield from _parted(cluster, chance, links, "brokers from controllers")


def controller_without_etcd(cluster: Cluster, chance: random.Random) -> Lasting:
    leading = cluster.leading_controller().name
    links = between([leading], [one.name for one in cluster.etcd])
    if chance.random() < 0.5:
        links = _same_way(chance, [(leading, one.name) for one in cluster.etcd])
    yield from _parted(
        cluster, chance, links, f"the leading controller {leading} from etcd, {len(links)} ways"
    )


def etcd_apart(cluster: Cluster, chance: random.Random) -> Lasting:
    names = [one.name for one in cluster.etcd]
    yield from _parted(cluster, chance, between(names, names), "the members of etcd from each other")


# --- clocks -------------------------------------------------------------------------------------------------


def _clocked(
    cluster: Cluster, chance: random.Random, node: Node, what: str, change: Callable[[], None]
) -> Lasting:
    cluster.step(f"the clock of {node.name}: {what}")
    change()
    yield short_or_long(chance)


def _timed(cluster: Cluster, chance: random.Random) -> Node:
    """The leader, the leading controller, or anybody."""
    some: list[Node] = [
        cluster.leader(),
        cluster.leading_controller(),
        *cluster.brokers,
        *cluster.controllers,
    ]
    return chance.choice(some)


def wall_jump(cluster: Cluster, chance: random.Random) -> Lasting:
    """Of one, hours ahead or back; then it is right again."""
    node = _timed(cluster, chance)
    off_ms = int(chance.choice((-1, 1)) * chance.choice((1_500, 60_000, 5 * HOUR_MS, 240 * HOUR_MS)))
    yield from _clocked(cluster, chance, node, f"{off_ms} ms off", lambda: node.clock.wall(off_ms))
    node.clock.wall(0)


def steady_leap(cluster: Cluster, chance: random.Random) -> Lasting:
    """Of one, ahead: every lease and every time-out it counts is over at once."""
    node = _timed(cluster, chance)
    by_s = chance.choice((0.8, 1.5, 10.0, 3600.0))
    yield from _clocked(cluster, chance, node, f"leaps by {by_s} s", lambda: node.clock.leap(by_s))


def slow_clock(cluster: Cluster, chance: random.Random) -> Lasting:
    """The leader's runs so slowly that it takes its lease for good long after it is over."""
    node = chance.choice((cluster.leader(), _timed(cluster, chance)))
    rate = chance.choice((0.05, 0.2, 0.5))
    yield from _clocked(cluster, chance, node, f"runs at {rate}", lambda: node.clock.rate(rate))
    node.clock.rate(1.0)


def fast_clock(cluster: Cluster, chance: random.Random) -> Lasting:
    node = _timed(cluster, chance)
    rate = chance.choice((2.0, 10.0))
    yield from _clocked(cluster, chance, node, f"runs at {rate}", lambda: node.clock.rate(rate))
    node.clock.rate(1.0)


def slow_and_cut_off(cluster: Cluster, chance: random.Random) -> Lasting:
    """A leader whose lease does not end, because its clock hardly runs, is cut off from the controllers:
    another one is elected, and both believe that they lead. What keeps them apart is the in-sync set."""
    leader = cluster.leader()
    cut = between([leader.name], [one.name for one in cluster.controllers])
    cluster.step(
        f"the clock of the leader {leader.name} runs at 0.01, and it is cut off from the controllers"
    )
    leader.clock.rate(0.01)
    cluster.wires.cut(cut)
    yield long(chance) + LEASE_S
    cluster.wires.mend(cut)
    leader.clock.rate(1.0)


# --- pauses -------------------------------------------------------------------------------------------------


def _frozen(cluster: Cluster, chance: random.Random, nodes: Sequence[Node]) -> Lasting:
    """Longer than leases."""
    nodes = [node for node in nodes if node.is_running and not node.is_frozen]
    cluster.step(f"freeze {[node.name for node in nodes]}")
    for node in nodes:
        node.freeze()
    yield long(chance)
    for node in nodes:
        node.thaw()


def freeze_leader(cluster: Cluster, chance: random.Random) -> Lasting:
    yield from _frozen(cluster, chance, [cluster.leader()])


def freeze_follower(cluster: Cluster, chance: random.Random) -> Lasting:
    yield from _frozen(cluster, chance, [chance.choice(cluster.followers())])


def freeze_followers(cluster: Cluster, chance: random.Random) -> Lasting:
    yield from _frozen(cluster, chance, cluster.followers())


def freeze_controller(cluster: Cluster, chance: random.Random) -> Lasting:
    yield from _frozen(cluster, chance, [cluster.leading_controller()])


def freeze_leader_and_controller(cluster: Cluster, chance: random.Random) -> Lasting:
    yield from _frozen(cluster, chance, [cluster.leader(), cluster.leading_controller()])


def freeze_etcd(cluster: Cluster, chance: random.Random) -> Lasting:
    yield from _frozen(cluster, chance, chance.sample(cluster.etcd, chance.randrange(1, 4)))


# --- kills --------------------------------------------------------------------------------------------------


def _killed(cluster: Cluster, chance: random.Random, nodes: Sequence[Node]) -> Lasting:
    nodes = [node for node in nodes if node.is_running]
    cluster.step(f"kill {[node.name for node in nodes]}")
    for node in nodes:
        node.kill()
    yield chance.choice((0.0, short_or_long(chance)))
    for node in chance.sample(nodes, len(nodes)):
        node.start()


def kill_leader(cluster: Cluster, chance: random.Random) -> Lasting:
    yield from _killed(cluster, chance, [cluster.leader()])


def kill_follower(cluster: Cluster, chance: random.Random) -> Lasting:
    yield from _killed(cluster, chance, [chance.choice(cluster.followers())])


def kill_two_brokers(cluster: Cluster, chance: random.Random) -> Lasting:
    yield from _killed(cluster, chance, chance.sample(cluster.brokers, 2))


def kill_brokers(cluster: Cluster, chance: random.Random) -> Lasting:
    yield from _killed(cluster, chance, cluster.brokers)


def kill_controller(cluster: Cluster, chance: random.Random) -> Lasting:
    yield from _killed(cluster, chance, [cluster.leading_controller()])


def kill_controllers(cluster: Cluster, chance: random.Random) -> Lasting:
    yield from _killed(cluster, chance, cluster.controllers)


def kill_leader_and_controller(cluster: Cluster, chance: random.Random) -> Lasting:
    yield from _killed(cluster, chance, [cluster.leader(), cluster.leading_controller()])


def kill_nameserver(cluster: Cluster, chance: random.Random) -> Lasting:
    yield from _killed(cluster, chance, [cluster.nameserver])


def kill_etcd(cluster: Cluster, chance: random.Random) -> Lasting:
    yield from _killed(cluster, chance, chance.sample(cluster.etcd, chance.randrange(1, 4)))


def kill_leaders_in_a_row(cluster: Cluster, chance: random.Random) -> Lasting:
    """Whoever leads is killed, and the next one, too; the first is back by then."""
    first = cluster.leader()
    cluster.step(f"kill the leader {first.name}, and the next one")
    first.kill()
    time.sleep(chance.uniform(0.0, 0.3))
    first.start()
    second = cluster.wait_leader(first)
    second.kill()
    yield chance.uniform(*SHORT_S)
    second.start()


def kill_leader_of_new_topic(cluster: Cluster, chance: random.Random) -> Lasting:
    """Of a topic that was made a moment ago, with the first messages in it."""
    leader = cluster.leader()
    cluster.step(f"make a topic at {leader.name}, send to it, and kill it")
    cluster.send_to_new_topic(leader.address, chance.randrange(1, 20))
    leader.kill()
    yield short_or_long(chance)
    leader.start()


def stop_leader(cluster: Cluster, chance: random.Random) -> Lasting:
    """The clean way, as for an upgrade."""
    leader = cluster.leader()
    cluster.step(f"stop {leader.name}")
    leader.end()
    yield chance.uniform(*SHORT_S)
    leader.start()


def storm(cluster: Cluster, chance: random.Random) -> Lasting:
    """Everything at once, and nobody waits until anything is well: processes are killed and started, frozen
    and thawed, wires are cut and mended, clocks leap."""
    cluster.step("a storm")
    movable: list[Node] = [*cluster.brokers, *cluster.controllers, *cluster.etcd]
    links = sorted(between(cluster.places, cluster.places))
    until_s = time.monotonic() + chance.uniform(*STORM_S)
    while time.monotonic() < until_s:
        node = chance.choice(movable)
        match chance.randrange(6):
            case 0:
                node.kill()
            case 1:
                node.start()
            case 2 if node.is_running and not node.is_frozen:
                node.freeze()
            case 3:
                node.thaw()
            case 4:
                cluster.wires.mend()
                cluster.wires.cut(chance.sample(links, chance.randrange(len(links) // 2)))
            case 5:
                node.clock.leap(chance.uniform(0.0, 2 * LEASE_S))
        time.sleep(chance.uniform(*FLAP_S))
    yield 0.0
    cluster.wires.mend()
    for node in movable:
        node.thaw()
        node.start()


# --- disks --------------------------------------------------------------------------------------------------


def _wiped(cluster: Cluster, chance: random.Random, node: Node) -> Lasting:
    cluster.step(f"{node.name} loses its disk")
    node.kill()
    node.wipe()
    yield chance.choice((0.0, short_or_long(chance)))
    node.start()
    cluster.wait_healed()
    cluster.clean_gone()


def wipe_leader(cluster: Cluster, chance: random.Random) -> Lasting:
    yield from _wiped(cluster, chance, cluster.leader())


def wipe_follower(cluster: Cluster, chance: random.Random) -> Lasting:
    yield from _wiped(cluster, chance, chance.choice(cluster.followers()))


def wipe_controller(cluster: Cluster, chance: random.Random) -> Lasting:
    """What controllers know is in etcd."""
    controller = cluster.leading_controller()
    cluster.step(f"{controller.name} loses its disk")
    controller.kill()
    controller.wipe()
    yield chance.uniform(*SHORT_S)
    controller.start()


def wipe_etcd(cluster: Cluster, chance: random.Random) -> Lasting:
    """A member loses its disk: it is taken out, and a new one comes in its place."""
    member = chance.choice(cluster.etcd)
    other = next(one for one in cluster.etcd if one is not member)
    cluster.step(f"{member.name} loses its disk")
    member.kill()
    member.wipe()
    known = other.call("cluster/member/list", {})["members"]
    id = next(one["ID"] for one in known if one.get("name") == member.name)
    _until_done(lambda: other.call("cluster/member/remove", {"ID": id}))
    yield chance.uniform(*SHORT_S)
    _until_done(lambda: other.call("cluster/member/add", {"peerURLs": [member.peer_url]}))
    member.is_new = False
    member.start()


def _until_done(ask: Callable[[], object]) -> None:
    """Etcd refuses changes of its members while some were not heard for a moment."""
    for _ in range(100):
        try:
            ask()
        except OSError:
            time.sleep(0.1)
        else:
            return
    ask()


def _filled(cluster: Cluster, chance: random.Random, node: Node) -> Lasting:
    leave = chance.choice((0, 4096, LOG_FILE_BYTES // 2))
    cluster.step(f"the disk of {node.name} is full but for {leave} bytes")
    node.fill_disk(leave)
    yield long(chance)
    node.make_room()


def full_disk_leader(cluster: Cluster, chance: random.Random) -> Lasting:
    yield from _filled(cluster, chance, cluster.leader())


def full_disk_follower(cluster: Cluster, chance: random.Random) -> Lasting:
    yield from _filled(cluster, chance, chance.choice(cluster.followers()))


def full_disk_controller(cluster: Cluster, chance: random.Random) -> Lasting:
    """While somebody has to be elected."""
    controller, leader = cluster.leading_controller(), cluster.leader()
    cluster.step(f"the disk of {controller.name} is full, and {leader.name} is killed")
    controller.fill_disk(0)
    leader.kill()
    yield chance.uniform(*SHORT_S)
    controller.make_room()
    leader.start()


def full_disk_etcd(cluster: Cluster, chance: random.Random) -> Lasting:
    """A member ends by itself, then; it is started again when there is room."""
    member = chance.choice(cluster.etcd)
    cluster.step(f"the disk of {member.name} is full")
    member.fill_disk(0)
    cluster.leader().kill()
    yield short_or_long(chance)
    member.make_room()
    member.kill()
    for node in (member, *cluster.brokers):
        node.start()


def full_disk_and_kill(cluster: Cluster, chance: random.Random) -> Lasting:
    """It comes back while its disk is full."""
    broker = chance.choice((cluster.leader(), chance.choice(cluster.followers())))
    cluster.step(f"the disk of {broker.name} is full, and it is killed")
    broker.fill_disk(chance.choice((0, 4096)))
    time.sleep(chance.uniform(*SHORT_S))
    broker.kill()
    yield chance.uniform(*SHORT_S)
    broker.make_room()
    broker.start()


def _powerless(cluster: Cluster, chance: random.Random, node: Node) -> Lasting:
    """Of what it has not flushed a part is gone, in pages: records are torn."""
    cluster.step(f"{node.name} loses its power")
    node.lose_power(chance.randrange(1 << 30))  # type: ignore[attr-defined]
    yield chance.choice((0.0, short_or_long(chance)))
    node.start()


def power_of_leader(cluster: Cluster, chance: random.Random) -> Lasting:
    yield from _powerless(cluster, chance, cluster.leader())


def power_of_follower(cluster: Cluster, chance: random.Random) -> Lasting:
    yield from _powerless(cluster, chance, chance.choice(cluster.followers()))


def power_of_many(cluster: Cluster, chance: random.Random) -> Lasting:
    """All at once, if what is acknowledged is on their disks; else all but the leader."""
    nodes = cluster.brokers if cluster.flush == SYNC_FLUSH else cluster.followers()
    nodes = chance.sample(nodes, len(nodes))
    cluster.step(f"{[node.name for node in nodes]} lose their power")
    for node in nodes:
        node.lose_power(chance.randrange(1 << 30))
    yield chance.choice((0.0, short_or_long(chance)))
    for node in chance.sample(nodes, len(nodes)):
        node.start()


def power_under_load(cluster: Cluster, chance: random.Random) -> Lasting:
    """A follower, twice: the second time while it copies what it lacks."""
    node = chance.choice(cluster.followers())
    cluster.step(f"{node.name} loses its power, twice")
    node.lose_power(chance.randrange(1 << 30))
    time.sleep(chance.uniform(*SHORT_S))
    node.start()
    time.sleep(chance.uniform(0.0, 0.2))
    node.lose_power(chance.randrange(1 << 30))
    yield 0.0
    node.start()


# --- older copies -------------------------------------------------------------------------------------------


def _shrink_the_set(cluster: Cluster, chance: random.Random) -> Node:
    """Kill a follower, and wait until messages are acknowledged that it lacks."""
    follower = chance.choice(cluster.followers())
    cluster.step(f"kill {follower.name}: it lacks what is acknowledged from now on")
    follower.kill()
    since_s = time.time()
    wait_until(
        lambda: (
            follower.address not in cluster.view().in_sync
            and all(cluster.acked(load.client, since_s) >= ACKED for load in cluster.loads)
        ),
        lambda: f"messages that {follower.name} lacks: {cluster.told()}",
        HEALED_S,
    )
    return follower


def restore_controller(cluster: Cluster, chance: random.Random) -> Lasting:
    """The controller's file is taken from an older copy, in which a follower is in sync that lacks messages
    by now. It comes first, the others later."""
    controller = cluster.controllers[0]
    copy = controller.state_file.read_bytes()
    follower = _shrink_the_set(cluster, chance)
    others = [one for one in cluster.brokers if one is not follower and chance.random() < 0.7]
    cluster.step(f"restore the state of {controller.name}, and kill {[one.name for one in others]}")
    for node in (*others, controller):
        node.kill()
    controller.state_file.write_bytes(copy)
    controller.start()
    follower.start()
    yield short_or_long(chance)
    for node in others:
        node.start()


def restore_etcd(cluster: Cluster, chance: random.Random) -> Lasting:
    """The same with a key in etcd, as of a snapshot that was restored. The brokers stay up: nobody else knows
    that it is an older one."""
    member = cluster.etcd[0]
    copy = member.value(cluster.group_key)
    follower = _shrink_the_set(cluster, chance)
    cluster.step("restore what controllers have in etcd")
    for node in cluster.controllers:
        node.kill()
    _until_done(lambda: member.put(cluster.group_key, copy))
    for node in cluster.controllers:
        node.start()
    follower.start()
    yield short_or_long(chance)


def copy_identity(cluster: Cluster, chance: random.Random) -> Lasting:
    """The store of a broker is copied, and both run: the copy must not lead, nor be in sync."""
    broker = chance.choice((cluster.leader(), chance.choice(cluster.followers())))
    cluster.step(f"copy the store of {broker.name}, and start the copy where {cluster.nameserver.name} is")
    with cluster.copy_of(broker) as copy:
        yield max(LONG_S[0], short_or_long(chance))
        cluster.judge(copy.wrong())


PARTITION, ONE_WAY, CLOCK, PAUSE, KILL, WIPE, FULL, TORN, OLD = (
    "partition", "one-way cut", "clock", "pause", "kill", "wiped disk", "disk full", "torn writes",
    "older copy",
)  # fmt: skip

FAULTS = (
    Fault("isolate-leader", PARTITION, isolate_leader),
    Fault("isolate-any", PARTITION, isolate_any),
    Fault("leader-without-controllers", PARTITION, leader_without_controllers),
    Fault("leader-without-followers", PARTITION, leader_without_followers),
    Fault("leader-without-one-follower", PARTITION, leader_without_one_follower),
    Fault("leader-without-clients", PARTITION, leader_without_clients),
    Fault("leader-with-clients-only", PARTITION, leader_with_minority),
    Fault("leader-with-clients-only-for-long", PARTITION, leader_with_minority_for_long),
    Fault("halves", PARTITION, halves),
    Fault("bridge", PARTITION, bridge),
    Fault("ring", PARTITION, ring),
    Fault("flapping", PARTITION, flapping),
    Fault("controllers-apart", PARTITION, controllers_apart),
    Fault("controller-without-etcd", PARTITION, controller_without_etcd, etcd=True),
    Fault("etcd-apart", PARTITION, etcd_apart, etcd=True),
    Fault("random-links", ONE_WAY, random_links),
    Fault("one-way-leader", ONE_WAY, one_way_leader),
    Fault("one-way-leader-controllers", ONE_WAY, one_way_leader_to_controllers),
    Fault("one-way-leader-followers", ONE_WAY, one_way_leader_to_followers),
    Fault("one-way-halves", ONE_WAY, one_way_halves),
    Fault("one-way-mess", ONE_WAY, one_way_mess),
    Fault("wall-jump", CLOCK, wall_jump),
    Fault("steady-leap", CLOCK, steady_leap),
    Fault("slow-clock", CLOCK, slow_clock),
    Fault("fast-clock", CLOCK, fast_clock),
    Fault("slow-and-cut-off", CLOCK, slow_and_cut_off),
    Fault("freeze-leader", PAUSE, freeze_leader),
    Fault("freeze-follower", PAUSE, freeze_follower),
    Fault("freeze-followers", PAUSE, freeze_followers),
    Fault("freeze-controller", PAUSE, freeze_controller),
    Fault("freeze-leader-and-controller", PAUSE, freeze_leader_and_controller),
    Fault("freeze-etcd", PAUSE, freeze_etcd, etcd=True),
    Fault("kill-leader", KILL, kill_leader),
    Fault("kill-follower", KILL, kill_follower),
    Fault("kill-two-brokers", KILL, kill_two_brokers),
    Fault("kill-brokers", KILL, kill_brokers),
    Fault("kill-leaders-in-a-row", KILL, kill_leaders_in_a_row, solo=True),
    Fault("kill-controller", KILL, kill_controller),
    Fault("kill-controllers", KILL, kill_controllers),
    Fault("kill-leader-and-controller", KILL, kill_leader_and_controller),
    Fault("kill-nameserver", KILL, kill_nameserver),
    Fault("kill-etcd", KILL, kill_etcd, etcd=True),
    Fault("kill-leader-of-new-topic", KILL, kill_leader_of_new_topic, solo=True),
    Fault("storm", KILL, storm, solo=True),
    Fault("stop-leader", KILL, stop_leader, solo=True),
    Fault("wipe-leader", WIPE, wipe_leader, solo=True),
    Fault("wipe-follower", WIPE, wipe_follower, solo=True),
    Fault("wipe-controller", WIPE, wipe_controller, solo=True, etcd=True),
    Fault("wipe-etcd", WIPE, wipe_etcd, solo=True, etcd=True),
    Fault("full-disk-leader", FULL, full_disk_leader, powered=False),
    Fault("full-disk-follower", FULL, full_disk_follower, powered=False),
    Fault("full-disk-controller", FULL, full_disk_controller, solo=True),
    Fault("full-disk-etcd", FULL, full_disk_etcd, solo=True, etcd=True),
    Fault("full-disk-and-kill", FULL, full_disk_and_kill, solo=True, powered=False),
    Fault("power-of-leader", TORN, power_of_leader, solo=True, powered=True),
    Fault("power-of-follower", TORN, power_of_follower, solo=True, powered=True),
    Fault("power-of-many", TORN, power_of_many, solo=True, powered=True),
    Fault("power-of-follower-twice", TORN, power_under_load, solo=True, powered=True),
    Fault("restore-controller", OLD, restore_controller, solo=True, embedded=True),
    Fault("restore-etcd", OLD, restore_etcd, solo=True, etcd=True),
    Fault("copy-identity", OLD, copy_identity, solo=True),
)
KINDS = (PARTITION, ONE_WAY, CLOCK, PAUSE, KILL, WIPE, FULL, TORN, OLD)


def fits(fault: Fault, carrier: str, *, powered: bool) -> bool:
    if carrier != BY_ETCD if fault.etcd else carrier != EMBEDDED if fault.embedded else False:
        return False
    return fault.powered in (None, powered)
