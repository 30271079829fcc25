"""Apache's brokers under our controller: they get ids, one is elected, and another one when it is killed."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kerolox.controller.controller import Controller
from kerolox.controller.state import ReplicaGroup
from kerolox.nameserver.listings import cluster_info
from kerolox.nameserver.server import NameServer
from kerolox.testing.controller import running_controller
from kerolox.testing.nameserver import running_nameserver

from .conftest import Factory
from .driver import JavaDriver, JavaError
from .processes import JavaBroker

CLUSTER = "DefaultCluster"


class Story:
    """A controller and a name server of ours, brokers of Apache's."""

    def __init__(self, java: Factory, controller: Controller, nameserver: NameServer, name: str) -> None:
        self.java = java
        self.controller = controller
        self.nameserver = nameserver
        self.name = name

    @property
    def group(self) -> ReplicaGroup | None:
        return self.controller.groups.get(self.name)

    async def broker(self) -> JavaBroker:
        broker = self.java.broker(
            self.nameserver.address,
            start=False,
            name=self.name,
            cluster=CLUSTER,
            broker_id=-1,
            properties={
                "enableControllerMode": True,
                "controllerAddr": self.controller.address,
                "brokerRole": "SLAVE",
                "allAckInSyncStateSet": True,
                "registerNameServerPeriod": 10_000,
            },
        )
        await asyncio.to_thread(broker.start)
        return broker

    async def until(self, condition: Callable[[ReplicaGroup], object], timeout_s: float = 90.0) -> None:
        deadline = asyncio.get_running_loop().time() + timeout_s
        while self.group is None or not condition(self.group):
            assert asyncio.get_running_loop().time() < deadline, f"it stays {self.group}"
            await asyncio.sleep(0.05)

    async def serves(self, broker: JavaBroker) -> None:
        """Wait until clients are told that this one is the master."""
        deadline = asyncio.get_running_loop().time() + 60
        while True:
            told = cluster_info(self.nameserver.routes).broker_addr_table.get(self.name)
            if told is not None and told.broker_addrs.get(0) == broker.address:
                return
            assert asyncio.get_running_loop().time() < deadline, f"clients are told {told}"
            await asyncio.sleep(0.05)


async def test_two_brokers_under_our_controller(
    java: Factory, java_driver: JavaDriver, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    topic, name = unique("topic"), unique("group")

    async def admin(*words: str) -> str:
        printed = await asyncio.to_thread(java_driver.mqadmin_full, *words)
        return f"{printed['out']}\n{printed.get('err', '')}"

    async def send(count: int) -> None:
        asked: dict[str, Any] = {"handle": producer, "topic": topic, "count": count, "size": 100}
        sent = await asyncio.to_thread(java_driver.call, "producer.sendMany", threads=1, **asked)
        assert (sent["sent"], sent["failed"]) == (count, 0)

    async with (
        running_nameserver() as nameserver,
        running_controller(directory=tmp_path / "controller") as controller,
    ):
        story = Story(java, controller, nameserver, name)
        address = controller.address
        one = await story.broker()
        await story.until(lambda group: group.master == 1)
        two = await story.broker()
        await story.until(lambda group: group.in_sync == {1, 2})
        assert story.group is not None
        assert (story.group.master, story.group.master_epoch) == (1, 1)
        assert story.group.address(1) == one.address
        assert story.group.address(2) == two.address
        assert (one.store / "brokerIdentity").read_text() == f"{CLUSTER}#{name}#1"
        await story.serves(one)

        # What administrators are told.
        told = await admin("getControllerMetaData", "-a", address)
        assert (
            f"#ControllerGroup\tgroup1\n#ControllerLeaderId\tn0\n#ControllerLeaderAddress\t{address}" in told
        )
        assert f"#Peer:\tn0:{address}" in told
        told = await admin("getSyncStateSet", "-a", address, "-b", name)
        assert (
            f"#brokerName\t{name}\n#MasterBrokerId\t1\n#MasterAddr\t{one.address}\n#MasterEpoch\t1\n" in told
        )
        assert "#SyncStateSetNums\t2\n" in told
        for id, broker in ((1, one), (2, two)):
            assert (
                f"InSyncReplica:\tReplicaIdentity{{brokerName='{name}', brokerId={id}, "
                f"brokerAddress='{broker.address}', alive=true}}" in told
            )
        told = await admin("getControllerConfig", "-a", address)
        assert re.search(r"enableElectUncleanMaster +=  false", told)
        told = await admin(
            "updateControllerConfig", "-a", address, "-k", "scanInactiveMasterInterval", "-v", "2000"
        )
        assert "update controller config success!" in told
        assert controller.options.scan_inactive_master_interval == 2000
        with pytest.raises(JavaError, match=r"2009.*\[2\] are alive"):
            await admin("cleanBrokerMetadata", "-a", address, "-bn", name, "-b", "2", "-c", CLUSTER)

        # Messages that both have, and a switch by an administrator.
        await asyncio.to_thread(java_driver.create_topic, nameserver.address, one.address, topic)
        producer = await asyncio.to_thread(
            java_driver.call, "producer.start", group=unique("pid"), namesrv=nameserver.address
        )
        await send(50)
        told = await admin("electMaster", "-a", address, "-b", "2", "-bn", name, "-c", CLUSTER)
        assert f"#BrokerName\t{name}\n#BrokerMasterAddr\t{two.address}\n#MasterEpoch\t2\n" in told
        assert story.group.master == 2
        await story.serves(two)
        await story.until(lambda group: group.in_sync == {1, 2})
        told = await admin("getBrokerEpoch", "-n", nameserver.address, "-b", name)
        assert "#Epoch: EpochEntry{epoch=1, startOffset=0" in told
        assert "#Epoch: EpochEntry{epoch=2" in told

        # The master is killed: the other one takes over, with all messages.
        await asyncio.to_thread(two.kill)
        await story.until(lambda group: group.master == 1, 20)
        assert story.group.master_epoch == 3
        await story.serves(one)
        producer = await asyncio.to_thread(
            java_driver.call, "producer.start", group=unique("pid"), namesrv=nameserver.address
        )
        await send(50)
        told = await admin("topicStatus", "-n", nameserver.address, "-t", topic)
        rows = [line.split() for line in told.splitlines() if line.startswith(name[:30])]
        assert sum(int(row[3]) for row in rows) == 100, told
        told = await admin("getSyncStateSet", "-a", address, "-b", name)
        assert "#SyncStateSetNums\t1\n" in told
        assert f"NotInSyncReplica:\tReplicaIdentity{{brokerName='{name}', brokerId=2" in told
        assert "alive=false}" in told

        # It comes back and follows.
        await asyncio.to_thread(two.start)
        await story.until(lambda group: group.in_sync == {1, 2})
        assert (story.group.master, story.group.master_epoch) == (1, 3)

        # Forgotten when it is gone for good.
        await asyncio.to_thread(two.kill)
        await story.until(lambda group: group.in_sync == {1}, 40)
        told = await admin("cleanBrokerMetadata", "-a", address, "-bn", name, "-b", "2", "-c", CLUSTER)
        assert f"clear broker {name} metadata from controller success!" in told
        assert set(story.group.replicas) == {1}
