"""Brokers of one name under a controller, each of them ours or Apache's, and the checks after a failover."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from kerolox.protocol.bodies.controller import ReplicasInfo
from kerolox.protocol.bodies.routes import ClusterInfo
from kerolox.protocol.codes import RequestCode
from tests.rig import checker
from tests.rig.history import History
from tests.rig.logs import Record, read_log, records_of

from .controllers import Controllers
from .jars import Jars
from .lanes import Lanes, out_of_order
from .ours import OurBroker
from .processes import JavaBroker
from .replicas import Replica
from .wire import GET_BROKER_CLUSTER_INFO, request

CLUSTER = "DefaultCluster"
WAIT_S = 90.0
OURS, APACHE = "ours", "apache"
SETTINGS: dict[str, object] = {
    "enableControllerMode": True,
    "allAckInSyncStateSet": True,  # Apache's default loses what was acknowledged, and says so
    "brokerIP2": "127.0.0.1",
    # A new follower of Apache's learns from a name server only where to copy from.
    "registerNameServerPeriod": 10_000,
}


class ControlledSet:
    """Brokers that a controller gives their roles; ours need no jars."""

    def __init__(
        self,
        controllers: Controllers,
        nameserver: str,
        name: str,
        home: Path,
        jars: Jars | None,
        kinds: Sequence[str],
        *,
        properties: Mapping[str, object] | None = None,
    ) -> None:
        self.controllers = controllers
        self.nameserver = nameserver
        self.name = name
        settings = {**SETTINGS, "controllerAddr": controllers.addresses, **(properties or {})}
        self.brokers = [
            self._broker(kind, jars, home / f"{at}-{kind}", settings) for at, kind in enumerate(kinds)
        ]

    def _broker(
        self, kind: str, jars: Jars | None, home: Path, settings: dict[str, object]
    ) -> OurBroker | JavaBroker:
        if kind == OURS:
            return OurBroker(home, self.nameserver, name=self.name, cluster=CLUSTER, properties=settings)
        assert jars is not None
        java = {"brokerRole": "SLAVE", **settings}  # else Apache's refuses to start
        made = JavaBroker(
            jars, home, self.nameserver, name=self.name, cluster=CLUSTER, broker_id=-1, properties=java
        )
        made.heap = (64, 256)
        return made

    def start(self) -> None:
        """All brokers, one after the other: the first leads, and all are in sync."""
        for at, broker in enumerate(self.brokers):
            broker.start()
            self.wait(lambda found, count=at + 1: len(found.in_sync_replicas) == count)
        self.wait_served()

    def finish(self) -> None:
        for broker in self.brokers:
            broker.finish()

    # --- who leads ------------------------------------------------------------------------------------

    def state(self) -> ReplicasInfo | None:
        return self.controllers.replicas(self.name)

    def wait(self, condition: Callable[[ReplicasInfo], object], timeout_s: float = WAIT_S) -> ReplicasInfo:
        """Until the controller says something. Raises AssertionError."""
        deadline = time.monotonic() + timeout_s
        while (found := self.state()) is None or not condition(found):
            assert time.monotonic() < deadline, f"it stays {found}\n{self.tails()}"
            time.sleep(0.05)
        return found

    def broker_at(self, address: str | None) -> OurBroker | JavaBroker | None:
        return next((broker for broker in self.brokers if broker.address == address), None)

    @property
    def master(self) -> OurBroker | JavaBroker:
        found = self.state()
        broker = None if found is None else self.broker_at(found.master_address)
        assert broker is not None, f"nobody leads: {found}"
        return broker

    def wait_master(self, *, other_than: OurBroker | JavaBroker) -> OurBroker | JavaBroker:
        """Until another one is elected."""
        found = self.wait(lambda state: state.master_address not in (None, other_than.address))
        broker = self.broker_at(found.master_address)
        assert broker is not None, found
        return broker

    def wait_in_sync(self) -> None:
        """Until all that run are in the in-sync set."""
        running = {broker.address for broker in self.brokers if broker.running}
        self.wait(lambda state: {each.broker_address for each in state.in_sync_replicas} == running)

    def wait_served(self, timeout_s: float = WAIT_S) -> None:
        """Until clients are told of the master that the controller names."""
        deadline = time.monotonic() + timeout_s
        while (told := self.told_master()) is None or told != self.master.address:
            assert time.monotonic() < deadline, f"clients are told {told}\n{self.tails()}"
            time.sleep(0.02)

    def told_master(self) -> str | None:
        """Who is the master, by the name server."""
        answer = request(self.nameserver, GET_BROKER_CLUSTER_INFO)
        told = ClusterInfo.decode(answer.body).broker_addr_table.get(self.name)
        return None if told is None else told.broker_addrs.get(0)

    def has_route(self, topic: str) -> bool:
        """Whether clients can find a topic."""
        return request(self.nameserver, RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": topic}).code == 0

    def tails(self) -> str:
        processes = (*self.controllers.members, *self.brokers)
        return "\n".join(f"=== {process}\n{process.tail()}" for process in processes)

    # --- what they have -------------------------------------------------------------------------------

    def wait_same_end(self) -> int:
        """Until all that run end at one place, which nobody writes behind."""
        deadline = time.monotonic() + WAIT_S
        running = [Replica(broker) for broker in self.brokers if broker.running]
        while len(ends := {replica.end for replica in running}) != 1:
            assert time.monotonic() < deadline, f"they end at {ends}\n{self.tails()}"
            time.sleep(0.1)
        return ends.pop()

    def check(self, history: History, topic: str) -> list[Record]:
        """After the loads have ended: nothing acknowledged is lost, no offset is given twice, lanes are in
        order, and all brokers have the same bytes. Ends the brokers."""
        self.wait_in_sync()
        end = self.wait_same_end()
        running = [broker for broker in self.brokers if broker.running]
        for broker in running:
            broker.kill()
        logs = [read_log(broker.store, end) for broker in running]
        wrong: list[str] = []
        for other in logs[1:]:
            wrong += checker.not_equal(logs[0], other)
        records = records_of(logs[0])
        acknowledged = [send for send in history.sends if send.ok]
        wrong += checker.missing(acknowledged, records, topic)
        wrong += checker.acknowledged_twice(history.sends)
        wrong += checker.invented(history.sends, records, topic)
        wrong += checker.gaps(records, topic)
        wrong += out_of_order(record.body for record in records if record.topic == topic)
        assert wrong == [], "\n".join(wrong)
        return records


def fail_over(group: ControlledSet, loads: Sequence[Lanes]) -> OurBroker | JavaBroker:
    """Kill the master under load: another one is elected, clients go on by themselves, and the killed one
    comes back and follows. Returns the new master."""
    for load in loads:
        load.wait_more(50)
    killed = group.master
    killed.kill()
    new = group.wait_master(other_than=killed)
    for load in loads:
        load.wait_more(50)
    killed.start()
    group.wait_in_sync()
    for load in loads:
        load.wait_more(20)
    return new
