"""Somebody asks, through the broker, what consumers do, and lets one consume a message once more."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from ..driver import JavaError
from .client import Client, Handle, Push, body, wait_until
from .cluster import Cluster

Unique = Callable[[str], str]


class Story:
    """A group with one member that has consumed three messages."""

    def __init__(self, cluster: Cluster, client: Client, unique: Unique) -> None:
        self.client = client
        self.topic = cluster.create_topic(client.driver, unique("topic"), 1)
        self.group = unique("group")
        producer = client.producer(unique("pid"))
        self.ids = [producer.send(self.topic, f"m{n}")["offsetMsgId"] for n in range(3)]
        self.consumer: Push = client.push(self.group, self.topic, body=True)
        self.consumer.take(3)
        self.client_id = str(self.consumer.method("buildMQClientId"))
        self.admin: Handle = client.admin()

    def consume(self, number: int, client_id: str = "") -> dict[str, object]:
        return dict(
            self.admin.method(
                "consumeMessageDirectly",
                self.group,
                client_id or self.client_id,
                self.topic,
                self.ids[number],
            )
        )


@pytest.fixture
def story(cluster: Cluster, client: Client, unique: Unique) -> Story:
    return Story(cluster, client, unique)


def test_what_a_consumer_does(story: Story) -> None:
    info = story.admin.method("getConsumerRunningInfo", story.group, story.client_id, False)
    assert info["properties"]["PROP_CONSUME_TYPE"] == "CONSUME_PASSIVELY"
    assert [each["topic"] for each in info["subscriptionSet"] if story.topic in each["topic"]] == [
        story.topic
    ]
    assert any(story.topic in key for key in info["mqTable"])
    assert not info.get("jstack")
    threads = story.admin.method("getConsumerRunningInfo", story.group, story.client_id, True)
    assert "Thread" in threads["jstack"]


def test_how_far_consumers_are(story: Story) -> None:
    def offsets(client_id: str) -> dict[str, dict[str, int]]:
        return dict(story.admin.method("getConsumeStatus", story.topic, story.group, client_id))

    wait_until(lambda: 3 in offsets("").get(story.client_id, {}).values(), "the member is at the end")
    assert offsets(story.client_id) == offsets("")
    assert offsets("somebody@1") == {}
    with pytest.raises(JavaError):
        story.admin.method("getConsumeStatus", story.topic, "nobody", "")


def test_consume_once_more(story: Story) -> None:
    result = story.consume(1)
    assert (result["consumeResult"], result["order"]) == ("CR_SUCCESS", False)
    (again,) = story.consumer.drain()
    assert body(again) == b"m1"
    story.consumer.do("push.outcome", failTimes=1)
    assert story.consume(2)["consumeResult"] == "CR_LATER"
    story.consumer.do("push.outcome", failTimes=1, failure="throw")
    thrown = story.consume(0)
    assert thrown["consumeResult"] == "CR_THROW_EXCEPTION"
    assert "told to throw" in str(thrown["remark"])
    assert [body(record) for record in story.consumer.drain()] == [b"m2", b"m0"]


def test_by_mqadmin(story: Story) -> None:
    of_topic = [] if story.client.driver.jars.is_4x else ["-t", story.topic]
    said = story.client.mqadmin(
        "queryMsgById", *of_topic, "-g", story.group, "-d", story.client_id, "-i", story.ids[0]
    )
    assert "CR_SUCCESS" in said
    status = story.client.mqadmin("consumerStatus", "-g", story.group, "-i", story.client_id)
    assert "#Consumer MQ Detail#" in status
    assert re.search(rf"^{re.escape(story.topic)} +broker-a +0 ", status, re.MULTILINE), status


def test_who_is_not_there_is_not_asked(story: Story) -> None:
    for ask in (
        lambda: story.consume(0, "somebody@1"),
        lambda: story.admin.method("getConsumerRunningInfo", story.group, "somebody@1", False),
    ):
        with pytest.raises(JavaError) as absent:
            ask()
        assert absent.value.code == 1
        assert "not online" in str(absent.value)
