"""What each request needs, code by code, by example. Numbers are those of the protocol."""

from __future__ import annotations

from typing import NamedTuple

import pytest

from kerolox.errors import InvalidRequest, KeroloxError
from kerolox.protocol.bodies.body import MessageQueue
from kerolox.protocol.bodies.groups import GroupConfig, GroupConfigList, SetRequestMode
from kerolox.protocol.bodies.heartbeat import (
    CheckClient,
    ConsumerData,
    HeartbeatData,
    ProducerData,
    SubscriptionData,
)
from kerolox.protocol.bodies.members import LockRequest
from kerolox.protocol.bodies.pop import BatchAck, BatchAckRequest, QueryAssignment
from kerolox.protocol.bodies.topics import TopicConfig, TopicConfigList
from kerolox.protocol.codes import RequestCode as Code
from kerolox.protocol.codes import request_name
from kerolox.protocol.header import Header
from kerolox.protocol.headers import group, heartbeat, kv, offset, pop, query, route, topic
from kerolox.protocol.headers.pull import PullRequest
from kerolox.protocol.headers.registration import BrokerMemberGroupRequest
from kerolox.protocol.headers.send import RecallRequest, SendBackRequest, SendRequest, SendRequestV2
from kerolox.protocol.headers.transaction import EndTransactionRequest
from tests.access.needs_kit import SmallView, needs, needs_of_all_fields
from tests.broker.talk import send_fields
from tests.served import BROKER, CONTROLLER, NAMESERVER, Rules

LOOKING = "Get on Cluster:DefaultCluster"
CHANGING = "Update on Cluster:DefaultCluster"

THERE = SmallView(topics=("T",), groups=("G",))


class Example(NamedTuple):
    code: int
    header: Header | None = None
    body: bytes = b""
    expected: tuple[str, ...] = ()
    rules: Rules = BROKER
    fields: dict[str, str] | None = None


def pull(topic: str = "T", consumer_group: str = "G") -> PullRequest:
    return PullRequest(
        consumer_group=consumer_group, topic=topic, queue_id=0, queue_offset=0, max_msg_nums=1, sys_flag=0,
        commit_offset=0, suspend_timeout_millis=0, sub_version=0,
    )  # fmt: skip


def create(name: str) -> topic.CreateTopicRequest:
    return topic.CreateTopicRequest(topic=name, read_queue_nums=1, write_queue_nums=1, perm=6)


def end(topic: str | None) -> EndTransactionRequest:
    return EndTransactionRequest(
        producer_group="P", tran_state_table_offset=0, commit_log_offset=0, commit_or_rollback=8, topic=topic
    )


def heartbeats(**consumers: tuple[str, ...]) -> bytes:
    return HeartbeatData(
        client_id="c",
        consumer_data_set=tuple(
            ConsumerData(
                group_name=name,
                subscription_data_set=tuple(SubscriptionData(topic=topic) for topic in topics),
            )
            for name, topics in consumers.items()
        ),
        producer_data_set=(ProducerData(group_name="P"), ProducerData(group_name="CLIENT_INNER_PRODUCER")),
    ).encode()


def lock(*topics: str) -> bytes:
    queues = frozenset(MessageQueue(topic, "broker-a", 0) for topic in topics)
    return LockRequest(client_id="c", consumer_group="G", mq_set=queues).encode()


SEND = SendRequest(**send_fields("T"))
SEND_V2 = SendRequestV2(**send_fields("T"))
BOUNDS = ("Get/Sub on Topic:T",)
BOTH_SUB = ("Sub on Group:G", "Sub on Topic:T")
BOTH_GET = ("Get on Group:G", "Get on Topic:T")
BOTH_UPDATE = ("Update on Group:G", "Update on Topic:T")

EXAMPLES = [
    # Messages in.
    Example(10, SEND, b"x", ("Pub on Topic:T",)),
    Example(310, SEND_V2, b"x", ("Pub on Topic:T",)),
    Example(310, SEND_V2, b"x", ("Pub on Topic:T",), fields={"topic": "other", "producerGroup": "other"}),
    Example(320, SEND_V2, b"x", ("Pub on Topic:T",)),
    Example(324, SEND, b"x", ("Pub on Topic:T",)),
    Example(325, SEND_V2, b"x", ("Pub on Topic:T",)),
    Example(
        36, SendBackRequest(offset=0, group="G", delay_level=0, origin_topic="X"), b"", ("Sub on Group:G",)
    ),
    Example(37, end("T"), b"", ("Pub on Topic:T",)),
    Example(37, end(None)),
    Example(
        37, end("RMQ_SYS_TRANS_HALF_TOPIC")
    ),  # the answer to a check: looked at when the message is found
    Example(370, RecallRequest(topic="T", recall_handle="h"), b"", ("Pub on Topic:T",)),
    # Messages out.
    Example(11, pull(), b"", BOTH_SUB),
    Example(361, pull(), b"", BOTH_SUB),
    Example(
        12,
        query.QueryMessageRequest(topic="T", key="k", max_num=1, begin_timestamp=0, end_timestamp=0),
        b"",
        BOUNDS,
    ),
    Example(33, query.ViewMessageRequest(offset=0, topic="T"), b"", BOUNDS),
    Example(33, query.ViewMessageRequest(offset=0)),
    Example(
        14,
        offset.QueryOffsetRequest(consumer_group="G", topic="T", queue_id=0),
        b"",
        ("Get/Sub on Group:G", "Get/Sub on Topic:T"),
    ),
    Example(
        15,
        offset.UpdateOffsetRequest(consumer_group="G", topic="T", queue_id=0, commit_offset=0),
        b"",
        ("Sub/Update on Group:G", "Sub/Update on Topic:T"),
    ),
    Example(29, offset.SearchOffsetRequest(topic="T", queue_id=0, timestamp=0), b"", BOUNDS),
    Example(30, offset.MaxOffsetRequest(topic="T", queue_id=0), b"", BOUNDS),
    Example(31, offset.MinOffsetRequest(topic="T", queue_id=0), b"", BOUNDS),
    Example(32, offset.EarliestStoreTimeRequest(topic="T", queue_id=0), b"", BOUNDS),
    Example(34, None, heartbeats()),
    Example(34, None, heartbeats(G=("T", "%RETRY%G")), BOTH_SUB),
    Example(
        34,
        None,
        heartbeats(G=("T",), H=("U", "%RETRY%G")),
        (*BOTH_SUB, "Sub on Group:H", "Sub on Topic:U"),
    ),
    Example(35, heartbeat.UnregisterClientRequest(client_id="c", producer_group="P")),
    Example(
        35, heartbeat.UnregisterClientRequest(client_id="c", consumer_group="G"), b"", ("Sub on Group:G",)
    ),
    Example(38, heartbeat.ConsumerListRequest(consumer_group="G"), b"", ("Get/Sub on Group:G",)),
    Example(41, None, lock("T", "%RETRY%G"), BOTH_SUB),
    Example(42, None, lock("T", "U"), (*BOTH_SUB, "Sub on Topic:U")),
    Example(
        46, None, CheckClient(group="G", subscription_data=SubscriptionData(topic="T")).encode(), BOTH_SUB
    ),
    Example(46),
    # POP.
    Example(200050, pop.PopRequest(consumer_group="G", topic="T"), b"", BOTH_SUB),
    Example(200052, pop.PeekRequest(consumer_group="G", topic="T"), b"", BOTH_SUB),
    Example(200054, pop.NotificationRequest(consumer_group="G", topic="T"), b"", BOTH_SUB),
    Example(
        200051,
        pop.AckRequest(consumer_group="G", topic="%RETRY%G_T", queue_id=0, extra_info="h", offset=0),
        b"",
        BOTH_SUB,
    ),
    Example(
        200053,
        pop.ChangeInvisibleTimeRequest(
            consumer_group="G", topic="%RETRY%G+T", queue_id=0, extra_info="h", offset=0, invisible_time=1
        ),
        b"",
        BOTH_SUB,
    ),
    Example(
        200151,
        None,
        BatchAckRequest(
            acks=(BatchAck(consumer_group="G", topic="T"), BatchAck(consumer_group="H", topic="U"))
        ).encode(),
        (*BOTH_SUB, "Sub on Group:H", "Sub on Topic:U"),
    ),
    Example(200055, pop.PollingInfoRequest(consumer_group="G", topic="T"), b"", BOTH_GET),
    Example(400, None, QueryAssignment(consumer_group="G", topic="T").encode(), BOTH_SUB),
    Example(401, None, SetRequestMode(consumer_group="G", topic="T").encode(), BOTH_UPDATE),
    # Topics and groups.
    Example(17, create("T"), b"", ("Update on Topic:T",)),
    Example(17, create("U"), b"", ("Create on Topic:U",)),
    Example(513, create("U"), b"{}", ("Create on Topic:U",)),
    Example(
        18,
        None,
        TopicConfigList(
            topic_config_list=(TopicConfig(topic_name="T"), TopicConfig(topic_name="U"))
        ).encode(),
        ("Update on Topic:T", "Create on Topic:U"),
    ),
    Example(215, topic.DeleteTopicRequest(topic="T"), b"", ("Delete on Topic:T",)),
    Example(351, topic.TopicConfigRequest(topic="T"), b"", ("Get on Topic:T",)),
    Example(202, topic.TopicStatsRequest(topic="T"), b"", ("Get on Topic:T",)),
    Example(300, topic.TopicConsumersRequest(topic="T"), b"", ("Get on Topic:T",)),
    Example(200, None, GroupConfig(group_name="G").encode(), ("Update on Group:G",)),
    Example(200, None, GroupConfig(group_name="H").encode(), ("Create on Group:H",)),
    Example(
        225,
        None,
        GroupConfigList(
            group_config_list=(GroupConfig(group_name="G"), GroupConfig(group_name="H"))
        ).encode(),
        ("Update on Group:G", "Create on Group:H"),
    ),
    Example(207, group.DeleteGroupRequest(group_name="G"), b"", ("Delete on Group:G",)),
    Example(352, group.GroupConfigRequest(group="G"), b"", ("Get on Group:G",)),
    Example(343, group.GroupTopicsRequest(group="G"), b"", ("Get on Group:G",)),
    Example(203, group.ConsumerConnectionRequest(consumer_group="G"), b"", ("Get on Group:G",)),
    Example(
        307, heartbeat.ConsumerRunningInfoRequest(consumer_group="G", client_id="c"), b"", ("Get on Group:G",)
    ),
    Example(345, group.GroupSubscriptionRequest(group="G", topic="T"), b"", BOTH_GET),
    Example(345, group.GroupSubscriptionRequest(group="G"), b"", ("Get on Group:G",)),
    Example(303, group.ConsumeTimeSpanRequest(group="G", topic="T"), b"", BOTH_GET),
    Example(223, offset.ConsumerStatusRequest(group="G", topic="T"), b"", BOTH_GET),
    Example(321, query.QueryConsumeQueueRequest(topic="T", consumer_group="G"), b"", BOTH_GET),
    Example(321, query.QueryConsumeQueueRequest(topic="T"), b"", ("Get on Topic:T",)),
    Example(308, offset.CorrectionOffsetRequest(topic="T", compare_group="G"), b"", BOTH_GET),
    Example(
        308,
        offset.CorrectionOffsetRequest(topic="T", compare_group="G", filter_groups="H"),
        b"",
        (*BOTH_GET, "Get on Group:H"),
    ),
    Example(208, group.ConsumeStatsRequest(consumer_group="G"), b"", ("Get on Group:G",)),
    Example(208, group.ConsumeStatsRequest(consumer_group="G", topic="T"), b"", BOTH_GET),
    Example(
        208,
        group.ConsumeStatsRequest(consumer_group="G", topic_list="T;U; "),
        b"",
        (*BOTH_GET, "Get on Topic:U"),
    ),
    Example(222, offset.ResetOffsetRequest(topic="T", group="G"), b"", BOTH_UPDATE),
    Example(353, group.GroupForbiddenRequest(topic="T", group="G"), b"", BOTH_UPDATE),
    Example(
        314,
        offset.CloneOffsetRequest(src_group="S", dest_group="G", topic="T"),
        b"",
        ("Get on Group:S", *BOTH_UPDATE),
    ),
    Example(
        314,
        offset.CloneOffsetRequest(src_group="S", dest_group="G"),
        b"",
        ("Get on Group:S", "Update on Group:G", CHANGING),
    ),
    Example(309, heartbeat.ConsumeDirectlyRequest(consumer_group="G", topic="T"), b"", BOTH_SUB),
    Example(309, heartbeat.ConsumeDirectlyRequest(consumer_group="G"), b"", ("Sub on Group:G",)),
    Example(25, None, b"fileReservedTime=48\n", (CHANGING,)),
    Example(25, None, b"authentication\\u0045nabled=false\n", (CHANGING, "All on Cluster:DefaultCluster")),
    # Name servers.
    Example(105, route.RouteRequest(topic="T"), b"", ("Get/Pub/Sub on Topic:T",), NAMESERVER),
    Example(105, route.RouteRequest(topic="%RETRY%G"), b"", ("Get/Sub on Group:G",), NAMESERVER),
    Example(105, route.RouteRequest(topic="TBW102"), b"", (), NAMESERVER),
    Example(105, route.RouteRequest(topic="SCHEDULE_TOPIC_XXXX"), b"", (LOOKING,), NAMESERVER),
    Example(106, None, b"", (), NAMESERVER),
    Example(101, kv.GetKvRequest(namespace="ORDER_TOPIC_CONFIG", key="T"), b"", (), NAMESERVER),
    Example(101, kv.GetKvRequest(namespace="other", key="T"), b"", (LOOKING,), NAMESERVER),
    Example(224, route.ClusterTopicsRequest(cluster="c2"), b"", ("Get on Cluster:c2",), NAMESERVER),
    Example(
        901,
        BrokerMemberGroupRequest(cluster_name="c2", broker_name="b"),
        b"",
        ("Get on Cluster:c2",),
        NAMESERVER,
    ),
    Example(
        216,
        route.DeleteTopicAtNameServerRequest(topic="T", cluster_name="c2"),
        b"",
        ("Update on Cluster:c2",),
        NAMESERVER,
    ),
    Example(216, route.DeleteTopicAtNameServerRequest(topic="T"), b"", (CHANGING,), NAMESERVER),
    Example(318, None, b"enableTopicList=false\n", (CHANGING,), NAMESERVER),
    Example(1009, None, b"accessAudit=none\n", (CHANGING, "All on Cluster:DefaultCluster"), CONTROLLER),
]

# Those for which the header does not matter.
LOOKS = {
    *(21, 201, 204, 26, 28, 305, 315, 317, 328, 354, 355, 907, 2003, 402),
    *(43, 45, 60, 61, 1007),  # what followers copy
    *(3004, 3005, 3009, 3010, 52, 54),
    *(200070, 200071, 200072, 200073, 200074, 200075, 200076, 200077, 200078),
}
CHANGES = {
    *(306, 316, 323, 329, 2001, 2002, 2004, 5001, 200056, 200079),
    *(3001, 3002, 3003, 3006, 3007, 3008, 50, 51, 53),
    *(902, 903, 905, 906, 908, 1008, 910_001),  # what servers tell each other
}
OTHERS = [
    *(Example(code, None, b"", (LOOKING,)) for code in sorted(LOOKS)),
    *(Example(code, None, b"", (CHANGING,)) for code in sorted(CHANGES)),
    *(Example(code, None, b"", (LOOKING,), NAMESERVER) for code in (206, 219, 304, 311, 312, 313, 319, 322)),
    *(Example(code, None, b"", (CHANGING,), NAMESERVER) for code in (100, 102, 103, 104, 205, 217, 327, 904)),
    *(Example(code, None, b"", (LOOKING,), CONTROLLER) for code in (1004, 1005, 1006, 1010, 1012)),
    *(Example(code, None, b"", (CHANGING,), CONTROLLER) for code in (1001, 1002, 1003, 1011, 1013, 904)),
]


def example_needs(code: int, rules: Rules) -> tuple[str, ...]:
    """The needs of the first example that has any; by default of a request whose header has all fields."""
    shown = [each.expected for each in (*EXAMPLES, *OTHERS) if each.code == code and each.rules is rules]
    return next(filter(None, shown), ()) if shown else tuple(sorted(needs_of_all_fields(code, rules)))


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda one: f"{one.code}-{'+'.join(one.expected)}")
def test_what_a_request_needs(example: Example) -> None:
    found = needs(
        example.code, example.header, example.body, rules=example.rules, view=THERE, fields=example.fields
    )
    assert found == set(example.expected)


def test_what_requests_about_the_whole_server_need() -> None:
    for example in OTHERS:
        found = needs(example.code, None, b"", rules=example.rules, view=THERE)
        assert found == set(example.expected), request_name(example.code)


@pytest.mark.parametrize(
    "rules", [BROKER, NAMESERVER, CONTROLLER], ids=["broker", "nameserver", "controller"]
)
def test_every_rule_has_an_example(rules: Rules) -> None:
    """A rule that reads the header has one of itself: the header with all fields."""
    shown = {example.code for example in (*EXAMPLES, *OTHERS) if example.rules is rules}
    assert {request_name(code) for code in shown - set(rules)} == set()
    lacking = {code for code in set(rules) - shown if not needs_of_all_fields(code, rules)}
    assert {request_name(code) for code in lacking} == set()


# --- requests that nobody serves, or that do not read ------------------------------------------------------


def test_a_code_that_is_not_served_is_read_by_its_rule() -> None:
    """Its handler looks at no header: the rule does, or anybody could ask."""
    header = pop.PopRequest(consumer_group="G", topic="T")
    assert needs(Code.POP_MESSAGE, header, read=False) == set(BOTH_SUB)
    assert needs(Code.UPDATE_AND_CREATE_STATIC_TOPIC, create("U"), read=False) == {"Create on Topic:U"}
    with pytest.raises(InvalidRequest, match="PopRequest"):
        needs(Code.POP_MESSAGE, None)


BODIES = [18, 34, 41, 42, 46, 200, 225, 400, 401, 200151]


@pytest.mark.parametrize("code", BODIES, ids=request_name)
@pytest.mark.parametrize("body", [b"{", b"[]", b'"text"', b"\xff\xfe", b'{"a":' * 100])
def test_a_body_that_does_not_read_is_refused(code: int, body: bytes) -> None:
    with pytest.raises(KeroloxError):
        needs(code, None, body)


@pytest.mark.parametrize("code", [41, 42, 400, 401, 200151], ids=request_name)
def test_a_body_without_its_names_is_refused(code: int) -> None:
    body = b'{"acks":[{"t":"T"}]}' if code == Code.BATCH_ACK_MESSAGE else b"{}"
    with pytest.raises(InvalidRequest, match="names no consumerGroup"):
        needs(code, None, body)


def test_a_heartbeat_that_names_too_much_is_refused() -> None:
    most = tuple(f"T{number}" for number in range(5000))
    with pytest.raises(InvalidRequest, match="more than 5000"):
        needs(Code.HEART_BEAT, None, heartbeats(G=most))
    assert len(needs(Code.HEART_BEAT, None, heartbeats(G=most[:4999]))) == 5000
    assert len(needs(Code.HEART_BEAT, None, heartbeats(G=("T",) * 20_000))) == 2
