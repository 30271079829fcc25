"""What names stand for: retries, dead letters, what brokers keep, light queues, namespaces."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.access.needs import names
from kerolox.access.policies import Policies
from kerolox.errors import InvalidRequest
from kerolox.front.needs import Need
from kerolox.front.requests import Request
from kerolox.protocol.codes import RequestCode as Code
from kerolox.protocol.header import Header
from kerolox.protocol.headers import heartbeat, offset, route
from kerolox.protocol.headers.send import SendBackRequest, SendRequestV2
from tests.access.needs_kit import EMPTY, SmallView, asked, needs
from tests.access.test_needs_requests import CHANGING, LOOKING, create, heartbeats, lock, pull
from tests.access.users_kit import policies
from tests.broker.talk import send_fields
from tests.served import BROKER, NAMESERVER, Rules


def texts(found: Iterable[Need]) -> set[str]:
    return set(map(str, found))


def send(topic: str, properties: dict[str, str] | None = None) -> set[str]:
    return needs(Code.SEND_MESSAGE_V2, SendRequestV2(**send_fields(topic, properties)), b"x")


# --- retries and dead letters ------------------------------------------------------------------------------


def test_retries_belong_to_their_group() -> None:
    assert needs(Code.PULL_MESSAGE, pull("%RETRY%G")) == {"Sub on Group:G"}
    # By the topic, not by the producer group of the request (apache/rocketmq#9910).
    assert send("%RETRY%victims") == {"Sub on Group:victims"}


def test_the_retries_of_another_group_need_a_right_to_that_group() -> None:
    assert needs(Code.PULL_MESSAGE, pull("%RETRY%victims")) == {"Sub on Group:G", "Sub on Group:victims"}
    told = heartbeats(G=("%RETRY%victims",))
    assert needs(Code.HEART_BEAT, None, told) == {"Sub on Group:G", "Sub on Group:victims"}
    told = lock("%RETRY%victims")
    assert needs(Code.LOCK_BATCH_MQ, None, told) == {"Sub on Group:G", "Sub on Group:victims"}


def test_dead_letters_are_read_with_a_right_to_their_group_and_written_by_nobody() -> None:
    assert needs(Code.PULL_MESSAGE, pull("%DLQ%G", "tools")) == {"Get/Sub on Group:G", "Sub on Group:tools"}
    assert needs(Code.GET_MAX_OFFSET, offset.MaxOffsetRequest(topic="%DLQ%G", queue_id=0)) == {
        "Get/Sub on Group:G"
    }
    assert send("%DLQ%G") == {CHANGING}


def test_topics_of_groups_are_made_and_deleted_with_a_right_to_the_group() -> None:
    assert needs(Code.UPDATE_AND_CREATE_TOPIC, create("%RETRY%G")) == {"Create on Group:G"}
    there = SmallView(topics=("%DLQ%G",))
    assert needs(Code.UPDATE_AND_CREATE_TOPIC, create("%DLQ%G"), view=there) == {"Update on Group:G"}


POP = SmallView(topics=("T", "a_T"), groups=("G",))


@pytest.mark.parametrize("form", ["%RETRY%G_T", "%RETRY%G+T"])
def test_retries_of_pop_need_their_group_and_their_topic(form: str) -> None:
    found = names.topic(form, names.SUB, POP, "G")
    assert texts(found) == {"Sub on Group:G", "Sub on Topic:T"}


def test_a_name_with_an_underline_is_that_of_pop_only_if_nothing_else_has_it() -> None:
    """%RETRY%G_T is the retry topic of a group G_T as well: who may consume T with G is nobody to it."""
    other = SmallView(topics=("T",), groups=("G", "G_T"))
    assert texts(names.topic("%RETRY%G_T", names.SUB, other, "G")) == {"Sub on Group:G_T"}
    # Without such a topic, and for a request of another group, or of none.
    assert texts(names.topic("%RETRY%G_T", names.SUB, EMPTY, "G")) == {"Sub on Group:G_T"}
    assert texts(names.topic("%RETRY%G_T", names.SUB, POP, "H")) == {"Sub on Group:G_T"}
    assert texts(names.topic("%RETRY%G_T", names.SUB, POP)) == {"Sub on Group:G_T"}
    # A group that is the beginning of another's name gets no further than its own.
    assert texts(names.topic("%RETRY%G_a_T", names.SUB, POP, "G")) == {"Sub on Group:G", "Sub on Topic:a_T"}


@pytest.mark.parametrize("odd", ["%RETRY%+T", "%RETRY%G+", "%RETRY%G+T+U", "%RETRY%", "%RETRY%+"])
def test_an_odd_retry_topic_is_that_of_a_group_with_an_odd_name(odd: str) -> None:
    assert texts(names.topic(odd, names.SUB, POP, "G")) == {f"Sub on Group:{odd.removeprefix('%RETRY%')}"}


# --- what brokers keep for themselves ----------------------------------------------------------------------

KEPT = [
    "SCHEDULE_TOPIC_XXXX", "RMQ_SYS_TRANS_HALF_TOPIC", "RMQ_SYS_TRANS_OP_HALF_TOPIC",
    "TRANS_CHECK_MAX_TIME_TOPIC", "OFFSET_MOVED_EVENT", "rmq_sys_wheel_timer", "rmq_sys_REVIVE_LOG_c",
    "rmq_sys_SYNC_BROKER_MEMBER_b", "rmq_sys_anything",
]  # fmt: skip


@pytest.mark.parametrize("name", KEPT)
def test_what_brokers_keep_is_for_those_who_look_after_the_cluster(name: str) -> None:
    assert needs(Code.PULL_MESSAGE, pull(name)) == {"Sub on Group:G", LOOKING}
    assert needs(Code.GET_ROUTEINFO_BY_TOPIC, route.RouteRequest(topic=name), rules=NAMESERVER) == {LOOKING}
    assert needs(Code.UPDATE_AND_CREATE_TOPIC, create(name)) == {CHANGING}
    assert send(name) == {CHANGING}


def test_replies_are_sent_by_their_topic_and_read_by_nobody_else() -> None:
    assert send("DefaultCluster_REPLY_TOPIC") == {"Pub on Topic:DefaultCluster_REPLY_TOPIC"}
    assert needs(Code.PULL_MESSAGE, pull("DefaultCluster_REPLY_TOPIC")) == {"Sub on Group:G", LOOKING}
    asking = route.RouteRequest(topic="DefaultCluster_REPLY_TOPIC")
    found = needs(Code.GET_ROUTEINFO_BY_TOPIC, asking, rules=NAMESERVER)
    assert found == {"Get/Pub/Sub on Topic:DefaultCluster_REPLY_TOPIC"}
    # Somebody's own topic.
    assert "Sub on Topic:my_REPLY_TOPIC" in needs(Code.PULL_MESSAGE, pull("my_REPLY_TOPIC"))


@pytest.mark.parametrize("name", ["RMQ_SYS_TRACE_TOPIC", "rmq_sys_TRACE_DATA_eu", "TBW102", "BenchmarkTest"])
def test_topics_that_clients_send_to_are_topics(name: str) -> None:
    assert send(name) == {f"Pub on Topic:{name}"}
    assert needs(Code.PULL_MESSAGE, pull(name)) == {"Sub on Group:G", f"Sub on Topic:{name}"}


# --- light queues ------------------------------------------------------------------------------------------


def test_light_queues_that_a_message_names_need_a_right_each() -> None:
    assert send("T", {"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b"}) == {
        "Pub on Topic:T",
        "Pub on Topic:%LMQ%a",
        "Pub on Topic:%LMQ%b",
    }
    assert send("%LMQ%a") == {"Pub on Topic:%LMQ%a"}
    assert send("T", {"KEYS": "INNER_MULTI_DISPATCH"}) == {"Pub on Topic:T"}


@pytest.mark.parametrize("name", ["T2", "%RETRY%G", "%LMQ%a,T2", " %LMQ%a", "../x"])
def test_other_queues_cannot_be_named(name: str) -> None:
    with pytest.raises(InvalidRequest, match="only light queues"):
        send("T", {"INNER_MULTI_DISPATCH": name})


def test_of_a_property_given_twice_the_one_counts_that_the_store_takes() -> None:
    mark = "INNER_MULTI_DISPATCH\x01"
    header = SendRequestV2(**(send_fields("T") | {"properties": f"{mark}%LMQ%mine\x02{mark}%LMQ%theirs\x02"}))
    assert needs(Code.SEND_MESSAGE_V2, header, b"x") == {"Pub on Topic:T", "Pub on Topic:%LMQ%theirs"}


# --- people with few rights --------------------------------------------------------------------------------


def allowed(
    rules: Policies, request: Request[object], table: Rules = BROKER, view: SmallView = EMPTY
) -> bool:
    rule = table[request.code]
    found = list(rule.needs(request, view))
    return bool(found or rule.for_everybody) and all(rules.decide(need, None).allowed for need in found)


FEW = policies({"Topic:T": "Pub,Sub", "Group:G": "Sub"})


def producer(topic: str) -> list[tuple[Rules, Request[object]]]:
    """What a Java producer asks, with transactions, of a topic that may still have to be made."""
    return [
        (NAMESERVER, asked(Code.GET_ROUTEINFO_BY_TOPIC, route.RouteRequest(topic=topic))),
        (NAMESERVER, asked(Code.GET_ROUTEINFO_BY_TOPIC, route.RouteRequest(topic="TBW102"))),
        (BROKER, asked(Code.HEART_BEAT, None, heartbeats())),
        (BROKER, asked(Code.SEND_MESSAGE_V2, SendRequestV2(**send_fields(topic)), b"x")),
        (BROKER, asked(Code.SEND_BATCH_MESSAGE, SendRequestV2(**send_fields(topic)), b"x")),
        (
            BROKER,
            asked(
                Code.UNREGISTER_CLIENT,
                heartbeat.UnregisterClientRequest(client_id="c", producer_group="CLIENT_INNER_PRODUCER"),
            ),
        ),
    ]


def consumer(topic: str, group: str) -> list[tuple[Rules, Request[object]]]:
    """What a Java consumer asks, in order or not, with retries."""
    retry = f"%RETRY%{group}"
    found: list[tuple[int, Header | None, bytes]] = [
        (Code.HEART_BEAT, None, heartbeats(**{group: (topic, retry)})),
        (Code.GET_CONSUMER_LIST_BY_GROUP, heartbeat.ConsumerListRequest(consumer_group=group), b""),
        (Code.CONSUMER_SEND_MSG_BACK, SendBackRequest(offset=0, group=group, delay_level=0), b""),
        (Code.SEND_MESSAGE_V2, SendRequestV2(**send_fields(retry)), b"x"),
        (
            Code.UNREGISTER_CLIENT,
            heartbeat.UnregisterClientRequest(client_id="c", consumer_group=group),
            b"",
        ),
    ]
    for name in (topic, retry):
        found += [
            (Code.QUERY_CONSUMER_OFFSET, _offset(name, group), b""),
            (Code.GET_MAX_OFFSET, offset.MaxOffsetRequest(topic=name, queue_id=0), b""),
            (Code.SEARCH_OFFSET_BY_TIMESTAMP, _at(name), b""),
            (Code.PULL_MESSAGE, pull(name, group), b""),
            (Code.UPDATE_CONSUMER_OFFSET, _commit(name, group), b""),
        ]
    return [
        *(
            (NAMESERVER, asked(Code.GET_ROUTEINFO_BY_TOPIC, route.RouteRequest(topic=name)))
            for name in (topic, retry)
        ),
        *((BROKER, asked(code, header, body)) for code, header, body in found),
    ]


def _offset(topic: str, group: str) -> offset.QueryOffsetRequest:
    return offset.QueryOffsetRequest(consumer_group=group, topic=topic, queue_id=0)


def _commit(topic: str, group: str) -> offset.UpdateOffsetRequest:
    return offset.UpdateOffsetRequest(consumer_group=group, topic=topic, queue_id=0, commit_offset=0)


def _at(topic: str) -> offset.SearchOffsetRequest:
    return offset.SearchOffsetRequest(topic=topic, queue_id=0, timestamp=0)


def test_clients_run_with_a_right_to_their_topic_and_their_group() -> None:
    for table, request in (*producer("T"), *consumer("T", "G")):
        assert allowed(FEW, request, table), request.code


def test_clients_of_others_do_not() -> None:
    for table, request in producer("U"):
        names_it = "U" in request.fields.values()
        assert allowed(FEW, request, table) != names_it, request.code
    for table, request in consumer("U", "H"):
        assert not allowed(FEW, request, table), request.code


# --- namespaces --------------------------------------------------------------------------------------------

NS1 = policies({"Topic:ns1%*": "All", "Group:ns1%*": "All"})


def test_namespaces_are_apart_by_rules_about_their_beginnings() -> None:
    """The first kind, in which clients write the namespace into every name."""
    for table, request in (*producer("ns1%T"), *consumer("ns1%T", "ns1%G")):
        assert allowed(NS1, request, table), request.code
    for table, request in (*producer("ns2%T"), *consumer("ns2%T", "ns2%G")):
        names_it = b"ns2%" in request.body or any("ns2%" in value for value in request.fields.values())
        assert allowed(NS1, request, table) != names_it, request.code
    for name in ("%RETRY%ns2%G", "%DLQ%ns2%G", "ns2%T", "T", "ns1T", "ns1"):
        assert not allowed(NS1, asked(Code.PULL_MESSAGE, pull(name, "ns1%G")))
    for name in ("%RETRY%ns1%G", "%DLQ%ns1%G"):
        assert allowed(NS1, asked(Code.PULL_MESSAGE, pull(name, "ns1%G")))


@given(name=st.text(max_size=40), of_group=st.text(max_size=10) | st.none())
def test_every_name_needs_something(name: str, of_group: str | None) -> None:
    """Whatever a name looks like: nothing that is asked about a topic needs nothing."""
    assert list(names.topic(name, names.SUB, POP, of_group))
    assert list(names.sending(name, POP))


@given(
    topic=st.text("%RETYDLQGT_+rmqsy", max_size=20) | st.sampled_from(KEPT),
    granted=st.sampled_from(["Topic:*", "Topic:%*", "Topic:R*", "Topic:rmq*"]),
)
def test_a_right_to_topics_opens_no_groups_and_nothing_of_the_brokers(topic: str, granted: str) -> None:
    rules = policies({granted: "All"})
    reads = all(rules.decide(need, None).allowed for need in names.topic(topic, names.SUB, POP, "G"))
    special = topic.startswith(("%RETRY%", "%DLQ%")) or topic in KEPT
    assert not (reads and special)
