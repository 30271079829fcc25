"""Failover: the master of two brokers under a controller is killed under load, ours and Apache's, taking
turns.

Our client and Apache's send all the time. What is measured is how long nothing was acknowledged to a client:
from the last acknowledgement before the kill to the first one after it. After each block the logs are
compared with what was acknowledged: a failover that loses something is no failover.
"""

from __future__ import annotations

import argparse
import shutil
import tempfile
import time
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import pairwise
from pathlib import Path

from tests.peers.controlled import APACHE as APACHES
from tests.peers.controlled import OURS as OUR_OWN
from tests.peers.controlled import ControlledSet
from tests.peers.controllers import DLEDGER, make_controllers
from tests.peers.driver import JavaDriver
from tests.peers.jars import Jars, PeersUnavailable, get_jars
from tests.peers.java import find_java
from tests.peers.lanes import SEND_TIMEOUT_S, JavaLanes, OurLanes
from tests.peers.ours import OurNameServer
from tests.peers.replicas import Replica, eventually
from tests.rig.history import History

from bench import machine
from bench.broker_peers import APACHE, OURS
from bench.results import Result, Table, number, ratio
from bench.rounds import percentile, take_turns

TOPIC = "failover"
LANES = 4
BEFORE, AFTER = 100, 100  # acknowledgements of each client before the kill, and until a failover is over
LOOK_BACK_S = 0.1  # what was sent before the kill may be acknowledged a little later, or not be
CLIENTS = {"ours": "kerolox's client", "java": "Apache's client"}
SETTINGS: dict[str, object] = {
    "controllerHeartBeatTimeoutMills": 10_000,
    "brokerHeartbeatInterval": 1000,
    "syncBrokerMetadataPeriod": 5000,
    "checkSyncStateSetPeriod": 5000,
    "haMaxTimeSlaveNotCatchup": 15_000,
}


@dataclass(frozen=True)
class Failover:
    """One kill of a master."""

    gaps_s: dict[str, float]  # by client
    back_s: float  # from the start of the killed broker until it is in sync


@dataclass
class Block:
    """Some failovers of one set of brokers, from its start to its end."""

    failovers: list[Failover] = field(default_factory=list)
    acknowledged: int = 0
    failed: dict[str, int] = field(default_factory=dict)  # tries by client and what came of them


def longest_gap_s(history: History, client: str, killed_s: float) -> float:
    """The longest time without an acknowledgement since a little before the kill."""
    ends = sorted(send.ended_s for send in list(history.sends) if send.client == client and send.ok)
    return max(b - a for a, b in pairwise(ends) if b >= killed_s - LOOK_BACK_S)


def run_block(kind: str, jars: Jars, driver: JavaDriver, count: int, poll_ms: int) -> Block:
    home = Path(tempfile.mkdtemp(prefix=f"kerolox-bench-failover-{kind.lower()}-"))
    nameserver = OurNameServer(home / "nameserver")
    nameserver.start()
    controllers = make_controllers(jars, OUR_OWN if kind == OURS else DLEDGER, home)
    kinds = [OUR_OWN if kind == OURS else APACHES] * 2
    group = ControlledSet(controllers, nameserver.address, "broker-a", home, jars, kinds, properties=SETTINGS)
    try:
        controllers.start()
        group.start()
        Replica(group.master).create_topic(TOPIC, "")
        eventually(lambda: group.has_route(TOPIC), group.tails)
        block, history = Block(), History()
        java = JavaLanes(
            driver, nameserver.address, TOPIC, history, lanes=LANES, pollNameServerInterval=poll_ms
        )
        ours = OurLanes(nameserver.address, TOPIC, history, lanes=LANES)
        for _ in range(count):
            block.failovers.append(fail_over(group, ours, java, history))
            shown = ", ".join(
                f"{name} {gap * 1000:.0f} ms" for name, gap in block.failovers[-1].gaps_s.items()
            )
            print(f"{kind}: {shown}, back after {block.failovers[-1].back_s:.1f} s", flush=True)
        for load in (ours, java):
            load.close()
        block.acknowledged = history.count()
        block.failed = {f"{client} {status}": times for (client, status), times in history.statuses().items()}
        group.check(history, TOPIC)
        return block
    finally:
        group.finish()
        controllers.finish()
        nameserver.finish()
        driver.call("stopAll")
        shutil.rmtree(home, ignore_errors=True)


def fail_over(group: ControlledSet, ours: OurLanes, java: JavaLanes, history: History) -> Failover:
    for load in (ours, java):
        load.wait_more(BEFORE)
    killed = group.master
    killed_s = time.time()
    killed.kill()
    for load in (ours, java):
        load.wait_more(AFTER)
    java.collect()
    gaps = {client: longest_gap_s(history, client, killed_s) for client in CLIENTS}
    began_s = time.monotonic()
    killed.start()
    group.wait_in_sync()
    return Failover(gaps, time.monotonic() - began_s)


# --- tables ---------------------------------------------------------------------------------------------


def table(found: dict[str, list[Block]], kinds: list[str]) -> Table:
    rows = []
    for client, name in CLIENTS.items():
        cells: list[str] = []
        for share in (0.5, 0.99, 1.0):
            values = [
                percentile(
                    [each.gaps_s[client] * 1000 for block in found[kind] for each in block.failovers], share
                )
                for kind in kinds
            ]
            cells += [number(value) for value in values]
            if len(values) == 2:
                cells.append(ratio(values[1] / values[0]))
        rows.append([name, *cells])
    columns = ["load of"]
    for share in ("p50", "p99", "longest"):
        columns += [f"{kind}, {share} ms" for kind in kinds]
        columns += ["ratio"] if len(kinds) == 2 else []
    count = sum(len(block.failovers) for block in found[kinds[0]])
    told = [
        f"{kind}: {sum(block.acknowledged for block in found[kind]):,} messages were acknowledged"
        for kind in kinds
    ]
    return Table(
        f"How long nothing is acknowledged after kill -9 of the master, {count} times each",
        columns,
        rows,
        [
            "; ".join(told)
            + ". After each block both logs had the same bytes, and each acknowledged message "
            "at the offset that was told, each sender's in their order.",
            "Apache's client asks for routes every pollNameServerInterval, whatever fails; 30 s unless it is "
            "set. Ours asks when a broker fails.",
        ],
    )


def main(argv: list[str] | None = None) -> Result | None:
    parser = argparse.ArgumentParser(prog="python -m bench failover", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="four failovers each")
    parser.add_argument("--failovers", type=int, help="of each kind")
    parser.add_argument("--block", type=int, default=10, help="failovers of one kind in a row")
    parser.add_argument("--poll", type=int, default=100, help="pollNameServerInterval of Apache's client, ms")
    parser.add_argument("--only", choices=("ours", "apache"), help="one kind")
    parser.add_argument("--no-save", action="store_true", help="print the results only")
    arguments = parser.parse_args(argv)
    failovers = arguments.failovers or (4 if arguments.quick else 50)
    try:
        java, jars = find_java(), get_jars()
    except PeersUnavailable as missing:
        print(f"no failovers without Apache's client: {missing}")
        return None
    kinds = {"ours": [OURS], "apache": [APACHE]}.get(arguments.only, [OURS, APACHE])
    size = min(arguments.block, failovers)
    facts = machine.describe(java.path)
    flags = {
        "processes": "two brokers, one controller, a name server, both clients; the other kind does not run "
        "meanwhile. The name server is ours at both",
        "controllers": "kerolox controller, with one file; Apache's DLedger controller of one member",
        "brokers": "allAckInSyncStateSet=true, registerNameServerPeriod=10000, "
        + ", ".join(f"{key}={value}" for key, value in SETTINGS.items())
        + "; ASYNC_FLUSH, small files",
        "clients": f"{LANES} senders each, 200 B, each with 5 ms between an answer and the next send; send "
        f"time-out {SEND_TIMEOUT_S:g} s; what failed is sent again after 20 ms; ours with its default "
        f"options, Apache's with pollNameServerInterval={arguments.poll}",
        "failovers": f"{failovers} of each kind, in blocks of {size}, taking turns; the killed broker is "
        "back and in sync before the next one",
        "Apache RocketMQ": jars.version,
        "JVM flags of the brokers": "-Xmx256m -XX:+UseSerialGC -XX:TieredStopAtLevel=1: they start often",
    }
    machine.show(facts | flags)
    home = Path(tempfile.mkdtemp(prefix="kerolox-bench-driver-"))
    driver = JavaDriver(jars, home)
    driver.start()
    try:
        turns = {kind: partial(run_block, kind, jars, driver, size, arguments.poll) for kind in kinds}
        found = take_turns(turns, max(1, failovers // size))
    finally:
        driver.kill()
        shutil.rmtree(home, ignore_errors=True)
    result = Result(
        "failover",
        "Failover",
        [
            "Two brokers of one name under a controller: the master is killed with SIGKILL while clients "
            "send. The gap is the longest time without an acknowledgement.",
        ],
        facts,
        flags,
        [table(found, kinds)],
        {kind: [asdict(block) for block in blocks] for kind, blocks in found.items()},
    )
    result.show()
    if not arguments.no_save:
        result.save()
    return result


if __name__ == "__main__":
    main()
