"""Three brokers of one name, their controllers, a name server, and the clients: how they are built, what can
be asked of them, and when they are well."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from kerolox.client.admin.calls import AdminCalls
from kerolox.client.messages import Message
from kerolox.client.nameservers import NameServers
from kerolox.client.send.producer import Producer
from kerolox.errors import KeroloxError
from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.topics import TopicConfig
from tests.peers.wire import request
from tests.rig.loads import Load, sent
from tests.rig.loop_thread import LoopThread
from tests.rig.nursery import Nursery
from tests.rig.tables import WITH_USERS, Tables
from tests.rig.waiting import wait_until

from .disks import Disks
from .history import ClusterHistory
from .nodes import (
    BrokerNode,
    ControllerNode,
    CopiedBroker,
    EtcdNode,
    NameServerNode,
    Node,
    PoweredBrokerNode,
)
from .reader import Reader
from .wires import CLIENTS, Wires

log = logging.getLogger(__name__)

BROKERS = ("b1", "b2", "b3")
CONTROLLERS = ("c1", "c2", "c3")
ETCD = ("e1", "e2", "e3")
NAMESERVER = "n1"
PLACES = (*BROKERS, *CONTROLLERS, *ETCD, NAMESERVER)
EMBEDDED, BY_ETCD = "embedded", "etcd"
ASYNC_FLUSH, SYNC_FLUSH = "ASYNC_FLUSH", "SYNC_FLUSH"

GROUP_NAME = "group-a"
QUEUES = 4
LOG_FILE_BYTES = 1 << 20
QUEUE_FILE_BYTES = 20 * 1000
LEASE_S = 1.0  # of the leader, and how long a silent broker counts as alive
STARTED_S = 30.0
ASKED_S = 0.3
HEALED_S = 45.0
ACKED = 5  # of each client's: then the cluster works

GET_SYNC_STATE_DATA = 1006
CLEAN_BROKER_DATA = 1011


class Violation(AssertionError):
    """A promise was broken."""


class Ground(NamedTuple):
    """What all clusters use, one after the other."""

    wires: Wires
    disks: Disks
    nursery: Nursery
    beside: LoopThread


class View(NamedTuple):
    """The brokers, as the leading controller has them."""

    leader: str = ""  # its address; empty: none
    epoch: int = 0
    in_sync: frozenset[str] = frozenset()  # addresses of those that live
    gone: tuple[int, ...] = ()  # ids of others that do not live


class Cluster:
    """``carrier`` says where controllers keep what they know, ``powered`` whether brokers can lose power."""

    def __init__(
        self,
        folder: Path,
        ground: Ground,
        carrier: str,
        *,
        powered: bool,
        flush: str,
        number: int = 0,
        more: Mapping[str, object] | None = None,
    ) -> None:
        self.folder = folder
        self.ground = ground
        self.carrier = carrier
        self.powered = powered
        self.topic = f"orders-{number}"
        self.history = ClusterHistory()
        self.steps: list[str] = []  # what was done, for whoever has to find out
        self.loads: Sequence[Load] = ()
        self.more_sends: dict[str, ClusterHistory] = {}  # what was sent to other topics
        self.tables = Tables()
        self.reader: Reader | None = None
        self.wires = ground.wires
        ips = ground.wires.ips
        names = CONTROLLERS if carrier == BY_ETCD else CONTROLLERS[:1]
        place = (folder, ground.wires, ground.disks, ground.nursery)
        self.nameserver = NameServerNode(NAMESERVER, *place, {})
        self.etcd = [EtcdNode(name, *place, {}) for name in ETCD] if carrier == BY_ETCD else []
        for member in self.etcd:
            member.members = {one.name: one.place for one in self.etcd}
        self.controllers = [
            ControllerNode(name, *place, self._controller_settings(name, names)) for name in names
        ]
        settings = {
            "brokerName": GROUP_NAME,
            "brokerClusterName": "jepsen",
            "enableControllerMode": "true",
            "controllerAddr": ";".join(one.address for one in self.controllers),
            "brokerHeartbeatInterval": 100,
            "sendHeartbeatTimeoutMillis": 400,
            "controllerHeartBeatTimeoutMills": int(LEASE_S * 1000),
            "syncBrokerMetadataPeriod": 300,
            "checkSyncStateSetPeriod": 200,
            "syncControllerMetadataPeriod": 300,
            "haMaxTimeSlaveNotCatchup": 800,
            "haSendHeartbeatInterval": 100,
            "haHousekeepingInterval": 800,
            "slaveTimeout": 600,
            "mappedFileSizeCommitLog": LOG_FILE_BYTES,
            "mappedFileSizeConsumeQueue": QUEUE_FILE_BYTES,
            "maxHashSlotNum": 1000,
            "maxIndexNum": 4000,
            "diskSpaceFreeEnough": 1 << 20,
            "cleanResourceInterval": 200,
            "cleanFileForciblyEnable": "false",  # a disk that is full takes no messages, and gives none up
            "fileReservedTime": 100_000,
            "autoCreateTopicEnable": "false",
            "flushDiskType": flush,
            "registerNameServerPeriod": 10_000,
            "namesrvAddr": self.nameserver.address,
            **WITH_USERS,
            **(more or {}),
        }
        kind = PoweredBrokerNode if powered else BrokerNode
        self.brokers = [kind(name, *place, settings) for name in BROKERS]
        self.flush = flush
        self._led = self.brokers[0]
        self._led_controllers = self.controllers[0]
        assert set(ips) >= {node.name for node in self.nodes}

    def _controller_settings(self, name: str, names: Sequence[str]) -> dict[str, object]:
        ips = self.ground.wires.ips
        peers = ";".join(f"{one}-{ips[one]}:{ControllerNode.port}" for one in names)
        settings: dict[str, object] = {
            "controllerDLegerGroup": "jepsen",
            "controllerDLegerPeers": peers,
            "controllerDLegerSelfId": name,
            "scanNotActiveBrokerInterval": 100,
            "scanInactiveMasterInterval": 200,
        }
        if self.carrier == BY_ETCD:
            settings |= {
                "controllerCarrier": "etcd",
                "etcdEndpoints": ",".join(member.client_url for member in self.etcd),
                "etcdLeaseSeconds": 2,
            }
        return settings

    @property
    def nodes(self) -> list[Node]:
        return [self.nameserver, *self.etcd, *self.controllers, *self.brokers]

    @property
    def places(self) -> list[str]:
        """Where somebody is, clients too."""
        return [node.name for node in self.nodes] + [CLIENTS]

    def node(self, name: str) -> Node:
        return next(node for node in self.nodes if node.name == name)

    # --- life -------------------------------------------------------------------------------------------

    def start(self, make_loads: Callable[[str, ClusterHistory], Sequence[Load]]) -> None:
        self.step(f"start, {self.carrier}, {self.flush}, powered={self.powered}")
        for node in (self.nameserver, *self.etcd):
            node.start()
        wait_until(lambda: all(one.is_healthy for one in self.etcd), lambda: "etcd has a leader", STARTED_S)
        for node in (*self.controllers, self.brokers[0]):
            node.start()
        wait_until(self._make_topic, lambda: f"the topic is made: {self.told()}", STARTED_S)
        for node in self.brokers[1:]:  # which ask for the leader's topics when they come
            node.start()
        self.reader = Reader(self.ground.beside, self.nameserver.address, self.topic, self.history)
        self.loads = make_loads(self.topic, self.history)
        self.resume()
        self.wait_healed()

    def _make_topic(self) -> bool:
        leader = self.view().leader
        if not leader:
            return False
        try:
            self.ground.beside.run(self._put_topic(leader, self.topic))
        except KeroloxError as error:
            self.step(f"no topic yet: {error}")
            return False
        return True

    async def _put_topic(self, leader: str, topic: str) -> None:
        config = TopicConfig(topic_name=topic, read_queue_nums=QUEUES, write_queue_nums=QUEUES)
        async with Dialer() as dialer:
            await AdminCalls(NameServers([self.nameserver.address], dialer), dialer).put_topic(leader, config)

    def send_to_new_topic(self, leader: str, count: int) -> None:
        """Make another topic, and send to it what has to be there from then on."""
        topic = f"{self.topic}-{len(self.more_sends)}"
        history = self.more_sends[topic] = ClusterHistory()

        async def send() -> None:
            await self._put_topic(leader, topic)
            async with Producer(self.nameserver.address, group="new-topics") as producer:
                for number in range(count):
                    body = b"new:%d" % number
                    began_s = time.time()
                    receipt = await producer.send(Message(topic, body))
                    if receipt.ok:
                        history.add(sent(self.topic, body, began_s, receipt))

        self.ground.beside.run(send())

    def close(self) -> None:
        """End everybody; the files stay."""
        if self.reader is not None:
            self.reader.close()
        for load in self.loads:
            load.close()
        for node in self.nodes:
            node.close()

    def step(self, text: str) -> None:
        now_s = time.time()
        self.steps.append(
            f"{time.strftime('%H:%M:%S', time.localtime(now_s))}.{int(now_s % 1 * 1000):03} {text}"
        )
        log.info("%s", text)

    # --- load -------------------------------------------------------------------------------------------

    def resume(self) -> None:
        for load in self.loads:
            load.resume()

    def pause(self) -> None:
        for load in self.loads:
            load.pause()

    def acked(self, client: str, since_s: float) -> int:
        for load in self.loads:
            load.collect()
        return self.history.count(client, since_s)

    # --- health -----------------------------------------------------------------------------------------

    def view(self) -> View:
        """What the leading controller says; nothing, if none leads or answers."""
        for controller in self.controllers:
            try:
                answer = request(
                    controller.address,
                    GET_SYNC_STATE_DATA,
                    body=json.dumps([GROUP_NAME]).encode(),
                    timeout=ASKED_S,
                )
                table = json.loads(answer.body)["replicasInfoTable"] if answer.code == 0 else None
            except (OSError, ValueError, KeyError):
                continue
            if table and (group := table.get(GROUP_NAME)):
                replicas = group["inSyncReplicas"] + group["notInSyncReplicas"]
                return View(
                    group.get("masterAddress") or "",
                    group["masterEpoch"],
                    frozenset(one["brokerAddress"] for one in group["inSyncReplicas"] if one["alive"]),
                    tuple(one["brokerId"] for one in replicas if not one["alive"]),
                )
        return View()

    def leader(self) -> BrokerNode:
        """Who leads; who did last, while that cannot be found out."""
        address = self.view().leader
        self._led = next((one for one in self.brokers if one.address == address), self._led)
        return self._led

    def wait_leader(self, other_than: BrokerNode) -> BrokerNode:
        """Until another one leads."""
        wait_until(
            lambda: self.leader() is not other_than,
            lambda: f"another one than {other_than.name} leads: {self.told()}",
            HEALED_S,
        )
        return self._led

    def followers(self) -> list[BrokerNode]:
        leader = self.leader()
        return [one for one in self.brokers if one is not leader]

    def leading_controller(self) -> ControllerNode:
        """The one that leads; the last that did, while none does."""
        for controller in self.controllers:
            try:
                answer = request(controller.address, GET_SYNC_STATE_DATA, body=b"[]", timeout=ASKED_S)
            except OSError:
                continue
            if answer.code == 0:
                self._led_controllers = controller
                break
        return self._led_controllers

    def wait_healed(self) -> float:
        """All wires are whole, and everybody runs: until every client's messages are acknowledged, and all
        brokers are in sync. How long it took."""
        since_s = time.time()
        all_brokers = {one.address for one in self.brokers}

        def lacks() -> list[str]:
            some = [one.client for one in self.loads if self.acked(one.client, since_s) < ACKED]
            if not some and not self.view().in_sync >= all_brokers:
                some.append("in sync")
            return some

        def healed() -> bool:
            for node in self.nodes:
                if node.has_ended:
                    self.judge([f"{node.name} has ended by itself:\n{node.last_words()}"])
            return not lacks()

        return wait_until(healed, lambda: f"{lacks()} are not well: {self.told()}", HEALED_S)

    @contextmanager
    def copy_of(self, broker: BrokerNode) -> Iterator[CopiedBroker]:
        """A second process with its identity, until the end."""
        copy = CopiedBroker(broker, self.nameserver, self.ground.wires, self.ground.nursery)
        try:
            copy.start()
            yield copy
        finally:
            copy.close()

    @property
    def group_key(self) -> str:
        """Of what controllers have in etcd about the brokers."""
        return f"/kerolox/jepsen/groups/{GROUP_NAME}"

    def clean_gone(self) -> None:
        """What an operator does after a disk was lost: the controller forgets the ids that are gone."""
        for id in self.view().gone:
            request(
                self.leading_controller().address, CLEAN_BROKER_DATA,
                {"clusterName": "jepsen", "brokerName": GROUP_NAME, "brokerControllerIdsToClean": str(id),
                 "isCleanLivingBroker": "false"},
            )  # fmt: skip

    def told(self) -> str:
        ends = {one.name: (one.log_end(), one.told().get("followerState")) for one in self.brokers}
        return f"{self.view()} {ends}"

    def judge(self, wrong: list[str]) -> None:
        if wrong:
            raise Violation("\n".join(wrong))
