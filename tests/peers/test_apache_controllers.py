"""Brokers of ours under Apache's controllers, whose known faults take nothing that was acknowledged.

Epochs of RocketMQ 5.5's DLedger controllers may fall back when another member leads (DLedger 0.3.2 applies
events more than once on followers), or when an old copy of their state is restored. Brokers then ignore
whoever is elected until the numbers have passed theirs; ours go on as they are, say so, and lose nothing.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kerolox.protocol.codes import RequestCode
from tests.rig.history import History

from .controlled import CLUSTER, OURS, ControlledSet, fail_over
from .controllers import DLEDGER, Controllers, JavaController, make_controllers
from .driver import JavaDriver
from .jars import Jars
from .lanes import JavaLanes, OurLanes
from .ours import OurBroker, OurNameServer
from .replicas import Replica, eventually
from .wire import request

pytestmark = [pytest.mark.timeout(600), pytest.mark.full]

TOPIC = "orders"
NAME = "set-a"
HEARTBEAT_TIMEOUT_MS = 3000


class Place:
    """What a story needs: a name server, a driver, a folder."""

    def __init__(self, home: Path, jars: Jars, driver: JavaDriver, nameserver: str) -> None:
        self.home = home
        self.jars = jars
        self.driver = driver
        self.nameserver = nameserver
        self.history = History()

    def brokers(self, controllers: Controllers, count: int = 2) -> ControlledSet:
        settings = {"controllerHeartBeatTimeoutMills": HEARTBEAT_TIMEOUT_MS, "syncBrokerMetadataPeriod": 500}
        return ControlledSet(
            controllers, self.nameserver, NAME, self.home, self.jars, [OURS] * count, properties=settings
        )

    def loads(self, group: ControlledSet) -> list[OurLanes | JavaLanes]:
        Replica(group.master).create_topic(TOPIC, "")
        eventually(lambda: group.has_route(TOPIC), group.tails)
        return [
            OurLanes(self.nameserver, TOPIC, self.history),
            JavaLanes(self.driver, self.nameserver, TOPIC, self.history),
        ]


@pytest.fixture
def place(tmp_path: Path, peers: Jars, java_driver: JavaDriver) -> Iterator[Place]:
    if peers.is_4x:
        pytest.skip("RocketMQ 4 has no controller")
    nameserver = OurNameServer(tmp_path / "nameserver")
    nameserver.start()
    yield Place(tmp_path, peers, java_driver, nameserver.address)
    nameserver.finish()


def elect(controllers: Controllers, id: int) -> int:
    """As an administrator does; the code of the answer."""
    fields = {
        "clusterName": CLUSTER, "brokerName": NAME, "brokerId": str(id), "designateElect": "true",
        "invokeTime": str(int(time.time() * 1000)),
    }  # fmt: skip
    return request(controllers.wait_leader().address, RequestCode.CONTROLLER_ELECT_MASTER, fields).code


def in_log(broker: OurBroker, text: str) -> bool:
    return text in (broker.home / "stderr.log").read_text()


def test_epochs_that_fall_back_take_nothing(place: Place) -> None:
    controllers = make_controllers(place.jars, DLEDGER, place.home)
    (controller,) = controllers.members
    assert isinstance(controller, JavaController)
    group = place.brokers(controllers)
    one, two = group.brokers
    try:
        controllers.start()
        group.start()
        # An old copy: broker 1 leads in epoch 1, both are in sync.
        controller.kill()
        shutil.copytree(controller.home / "state", place.home / "kept")
        controllers.start()
        group.wait_in_sync()
        loads = place.loads(group)
        for id, broker in ((2, two), (1, one)):
            assert elect(controllers, id) == 0
            eventually(lambda now=broker: group.told_master() == now.address, group.tails)
            group.wait_in_sync()
        assert (state := group.state()) is not None
        assert state.master_epoch == 3

        controller.kill()
        shutil.rmtree(controller.home / "state")
        shutil.copytree(place.home / "kept", controller.home / "state")
        controllers.start()
        group.wait(lambda state: state.master_epoch == 1)
        for broker in (one, two):
            assert isinstance(broker, OurBroker)
            eventually(lambda now=broker: in_log(now, "epoch_fell_back told=1 known=3"), broker.tail)
        # It is answered, and goes on for longer than its lease.
        until = time.monotonic() + 2 * HEARTBEAT_TIMEOUT_MS / 1000
        while time.monotonic() < until:
            for load in loads:
                load.wait_more(20)
        assert group.told_master() == one.address

        # The controller elects the other one, which takes no notice: 2 is less than 3.
        assert elect(controllers, 2) == 0
        for load in loads:
            load.wait_more(100)
        assert group.told_master() == one.address
        # It starts anew, and the numbers have passed those of before. It has all that was acknowledged:
        # broker 1 could not leave it out, for the controller does not count it as the master.
        two.kill()
        group.wait(lambda state: state.master_epoch > 3)
        two.start()
        eventually(lambda: group.told_master() == two.address, group.tails)
        for load in loads:
            load.wait_more(100)
        group.wait_in_sync()
        for load in loads:
            load.close()
        group.check(place.history, TOPIC)
    finally:
        group.finish()
        controllers.finish()


def test_leading_controllers_are_killed_one_after_the_other(place: Place) -> None:
    """Meanwhile no controller leads for seconds, so that the master's lease may end: it takes nothing then,
    and goes on when the next controller says that it leads."""
    controllers = make_controllers(place.jars, DLEDGER, place.home, count=3)
    group = place.brokers(controllers)
    try:
        controllers.start()
        group.start()
        loads = place.loads(group)
        for _ in range(3):
            for load in loads:
                load.wait_more(50)
            gone = controllers.wait_leader()
            gone.kill()
            controllers.wait_leader()
            for load in loads:
                load.wait_more(50)
            fail_over(group, loads)
            gone.start()
        for load in loads:
            load.close()
        group.check(place.history, TOPIC)
    finally:
        group.finish()
        controllers.finish()
