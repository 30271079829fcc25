"""What accounts may do."""

from __future__ import annotations

import pytest

from kerolox.access.needs.names import CREATE, GET, PUB, SUB, SUB_OR_GET, SUB_OR_UPDATE, UPDATE
from kerolox.access.plain.accounts import Account, Perm
from kerolox.access.plain.needs import PlainView, permits
from kerolox.front.needs import Action, Kind, Need, Resource
from kerolox.protocol.bodies.heartbeat import ConsumerData, HeartbeatData, SubscriptionData
from kerolox.protocol.codes import RequestCode as Code
from kerolox.protocol.headers.offset import UpdateOffsetRequest
from kerolox.protocol.headers.pull import PullRequest
from kerolox.protocol.headers.send import SendRequestV2
from kerolox.protocol.reserved import HALF_TOPIC, TRACE_TOPIC
from tests.access.needs_kit import EMPTY, asked
from tests.served import BROKER

ACCOUNT = Account(
    access_key="rocketmq1",
    secret_key="12345678",
    default_topic=Perm.DENY,
    default_group=Perm.DENY,
    topics={"in": Perm.SUB, "out": Perm.PUB, "both": Perm.PUB | Perm.SUB, "%DLQ%other": Perm.SUB},
    groups={"mine": Perm.SUB, "pub": Perm.PUB},
)


@pytest.mark.parametrize(
    ("name", "actions", "allowed"),
    [
        ("in", SUB, True),
        ("in", PUB, False),
        ("out", PUB, True),
        ("out", SUB, False),
        ("out", SUB_OR_GET, False),  # messages by key or id
        ("out", GET, True),  # figures
        ("both", PUB, True),
        ("both", SUB, True),
        ("unknown", SUB | PUB | GET, False),
        ("both", CREATE, False),
        ("both", UPDATE, False),
        ("both", SUB_OR_UPDATE, True),
        (TRACE_TOPIC, PUB, True),
        (TRACE_TOPIC, SUB, False),
        ("%RETRY%mine", PUB, True),
        ("%RETRY%mine", SUB, True),
        ("%RETRY%other", PUB, False),
        ("%RETRY%pub", PUB, False),
        ("%DLQ%other", SUB, True),
        ("%DLQ%mine", SUB, False),
    ],
)
def test_topics(name: str, actions: frozenset[Action], allowed: bool) -> None:
    assert permits(ACCOUNT, Need(Resource(Kind.TOPIC, name), actions)) is allowed


@pytest.mark.parametrize(
    ("name", "actions", "allowed"),
    [
        ("mine", SUB, True),
        ("mine", GET, True),
        ("mine", SUB_OR_UPDATE, True),
        ("mine", UPDATE, False),
        ("pub", SUB, False),
        ("other", SUB, False),
    ],
)
def test_groups(name: str, actions: frozenset[Action], allowed: bool) -> None:
    assert permits(ACCOUNT, Need(Resource(Kind.GROUP, name), actions)) is allowed


def test_defaults_and_administrators() -> None:
    open_one = Account(access_key="k", secret_key="s", default_topic=Perm.PUB, default_group=Perm.SUB)
    admin = Account(access_key="k", secret_key="s", admin=True)
    held = Account(access_key="k", secret_key="s", admin=True, topics={"in": Perm.SUB})
    topic, group = Resource(Kind.TOPIC, "any"), Resource(Kind.GROUP, "any")
    cluster = Resource(Kind.CLUSTER, "DefaultCluster")
    needs = [Need(topic, PUB), Need(topic, SUB), Need(topic, CREATE), Need(group, SUB), Need(cluster, GET)]
    assert [permits(open_one, need) for need in needs] == [True, False, False, True, False]
    assert [permits(admin, need) for need in needs] == [True, True, True, True, True]
    # As 4.x: topics that an administrator's account names count for it, and with them the default.
    assert [permits(held, need) for need in needs] == [False, False, True, False, True]


def _needs(code: int, header: object, body: bytes = b"") -> set[str]:
    request = asked(code, header, body)  # type: ignore[arg-type]
    return {str(need) for need in BROKER[code].needs(request, PlainView(EMPTY))}


def _send(topic: str) -> SendRequestV2:
    return SendRequestV2(
        producer_group="mine", topic=topic, default_topic="TBW102", default_topic_queue_nums=4, queue_id=0,
        sys_flag=0, born_timestamp=0, flag=0,
    )  # fmt: skip


def test_what_rocketmq_4_asks_for_is_asked_for() -> None:
    pull = PullRequest(
        consumer_group="mine", topic="in", queue_id=0, queue_offset=0, max_msg_nums=1, sys_flag=0,
        commit_offset=0, suspend_timeout_millis=0, sub_version=0,
    )  # fmt: skip
    assert _needs(Code.PULL_MESSAGE, pull) == {"Sub on Group:mine", "Sub on Topic:in"}
    assert _needs(Code.SEND_MESSAGE_V2, _send("out")) == {"Pub on Topic:out"}
    # By the topic's group; the sender's is whatever it says.
    assert _needs(Code.SEND_MESSAGE_V2, _send("%RETRY%other")) == {"Sub on Group:other"}
    commit = UpdateOffsetRequest(consumer_group="mine", topic="%DLQ%other", queue_id=0, commit_offset=1)
    assert _needs(Code.UPDATE_CONSUMER_OFFSET, commit) == {
        "Sub/Update on Group:mine", "Sub/Update on Topic:%DLQ%other"
    }  # fmt: skip
    wanted = tuple(SubscriptionData(topic=name) for name in ("in", "%RETRY%mine", HALF_TOPIC))
    told = HeartbeatData(
        client_id="c",
        consumer_data_set=(ConsumerData(group_name="mine", subscription_data_set=wanted),),
    )
    assert _needs(Code.HEART_BEAT, None, told.encode()) == {
        "Sub on Group:mine", "Sub on Topic:in", "Get on Cluster:DefaultCluster"
    }  # fmt: skip
