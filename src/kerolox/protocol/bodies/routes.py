"""Routes of the name server: the brokers that serve each topic."""

from __future__ import annotations

from typing import Self

from kerolox.errors import ProtocolError
from kerolox.protocol.bodies.body import Body
from kerolox.protocol.bodies.queue_mapping import QueueMapping
from kerolox.protocol.limits import ROUTE_QUEUES_MAX


class BrokerData(Body, frozen=True, kw_only=True):
    """The addresses of one broker name, by broker id; 0 is the master."""

    broker_addrs: dict[int, str] = {}
    broker_name: str = ""
    cluster: str = ""
    enable_acting_master: bool = False
    zone_name: str | None = None


class QueueData(Body, frozen=True, kw_only=True):
    """The queues of a topic on one broker name."""

    broker_name: str = ""
    perm: int = 0
    read_queue_nums: int = 0
    topic_sys_flag: int = 0
    write_queue_nums: int = 0


class TopicRoute(Body, frozen=True, kw_only=True):
    """Everything that a client needs to use a topic."""

    broker_datas: tuple[BrokerData, ...] = ()
    filter_server_table: dict[str, tuple[str, ...]] = {}
    order_topic_conf: str | None = None  # broker:queues;broker:queues
    queue_datas: tuple[QueueData, ...] = ()
    topic_queue_mapping_by_broker: dict[str, QueueMapping] | None = None

    @classmethod
    def decode(cls, data: bytes | str) -> Self:
        """Decode JSON. The number of queues is limited: clients create an object for each queue."""
        route = super().decode(data)
        total = 0
        for queues in route.queue_datas:
            total += max(0, queues.read_queue_nums, queues.write_queue_nums)
        for item in (route.order_topic_conf or "").split(";"):
            count = item.rpartition(":")[2]
            if count.isascii() and count.isdigit():
                total += int(count) if len(count) < 10 else ROUTE_QUEUES_MAX + 1
        if total > ROUTE_QUEUES_MAX:
            raise ProtocolError(
                f"TopicRoute: {total} queues or more, the limit is ROUTE_QUEUES_MAX, {ROUTE_QUEUES_MAX}. A "
                "broker has registered such numbers: look at the topic's settings there"
            )
        return route


class ClusterInfo(Body, frozen=True, kw_only=True):
    """All brokers, by cluster."""

    broker_addr_table: dict[str, BrokerData] = {}
    cluster_addr_table: dict[str, tuple[str, ...]] = {}


class TopicList(Body, frozen=True, kw_only=True):
    """Names of topics."""

    broker_addr: str | None = None
    topic_list: tuple[str, ...] = ()


class KVTable(Body, frozen=True, kw_only=True):
    """Settings of one namespace; runtime figures of a broker."""

    table: dict[str, str] = {}


class KVConfig(Body, frozen=True, kw_only=True):
    """The name server's whole table of settings, as its file holds it: namespace → key → value."""

    config_table: dict[str, dict[str, str]] = {}


class BrokerMemberGroup(Body, frozen=True, kw_only=True):
    """The live brokers of one name."""

    broker_addrs: dict[int, str] = {}
    broker_name: str = ""
    cluster: str = ""


class BrokerMemberGroupAnswer(Body, frozen=True, kw_only=True):
    """Answer to GET_BROKER_MEMBER_GROUP."""

    broker_member_group: BrokerMemberGroup | None = None
