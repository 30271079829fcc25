"""Somebody asks by a message, and somebody's reply comes back to the one who asked."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator

import pytest

from ..driver import JavaError
from .client import Client, Handle, body, wait_until
from .cluster import Broker, Cluster

Unique = Callable[[str], str]
REPLY_TOPIC = "ReplyCluster_REPLY_TOPIC"


@pytest.fixture(scope="module")
def broker(cluster: Cluster) -> Iterator[Broker]:
    """Alone in its cluster: a reply goes to any broker of the cluster, and only one to which who asked is
    connected can bring it."""
    made = cluster.new_broker("broker-replies", cluster="ReplyCluster")
    yield made
    made.finish()


def replier(client: Client, topic: str, group: str) -> Handle:
    return client.replier(topic, group, "you said ")


def text(message: dict[str, str]) -> str:
    return base64.b64decode(message["body"]).decode()


def test_replies_come_back_to_who_asked(
    cluster: Cluster, broker: Broker, client: Client, unique: Unique
) -> None:
    topic, group = cluster.create_topic(client.driver, unique("topic"), 2, broker=broker), unique("group")
    answering = replier(client, topic, group)
    first, second = client.producer(unique("pid")), client.producer(unique("pid"))
    # The first question may come before the group reads the topic: it waits for it.
    for asking, question in [(first, "a"), (second, "b"), (first, "c"), (first, "grün")]:
        answer = asking.method("request", {"topic": topic, "text": question}, 30_000)
        assert text(answer) == f"you said {question}"
        assert answer["topic"] == REPLY_TOPIC
        properties = answer["properties"]
        assert properties["MSG_TYPE"] == "reply"
        assert {"CORRELATION_ID", "REPLY_TO_CLIENT", "TTL", "PUSH_REPLY_TIME", "ARRIVE_TIME"} <= set(
            properties
        )
    wait_until(lambda: len(answering.do("replier.sent")) == 4, "all replies are acknowledged")
    sent = answering.do("replier.sent")
    assert [each["status"] for each in sent] == ["SEND_OK"] * 4
    # Each was stored too, and is found by the id its sender was told.
    found = client.admin().method("viewMessage", REPLY_TOPIC, sent[0]["offsetMsgId"])
    assert body(found) == b"you said a"
    assert "PUSH_REPLY_TIME" not in found["properties"]


def test_large_replies(cluster: Cluster, broker: Broker, client: Client, unique: Unique) -> None:
    """Java's client compresses these on the way."""
    topic, group = cluster.create_topic(client.driver, unique("topic"), 1, broker=broker), unique("group")
    answering = replier(client, topic, group)
    question = "many words " * 5000
    answer = client.producer(unique("pid")).method("request", {"topic": topic, "text": question}, 30_000)
    assert text(answer) == f"you said {question}"
    wait_until(lambda: len(answering.do("replier.sent")) == 1, "the reply is acknowledged")


def test_a_reply_to_somebody_who_left_fails(
    cluster: Cluster, broker: Broker, client: Client, unique: Unique
) -> None:
    topic, group = cluster.create_topic(client.driver, unique("topic"), 1, broker=broker), unique("group")
    asking = client.producer(unique("pid"))
    with pytest.raises(JavaError) as late:
        asking.method("request", {"topic": topic, "text": "anybody?"}, 300)
    assert late.value.code == 10006
    asking.stop()
    answering = replier(client, topic, group)
    wait_until(lambda: len(answering.do("replier.sent")) == 1, "the reply is refused")
    (refused,) = answering.do("replier.sent")
    assert refused["code"] == 1
    assert "not found" in refused["stack"]
