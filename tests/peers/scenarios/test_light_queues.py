"""Light queues (LMQ): messages name the queues they go into beside their topic; nobody has to make them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .client import Client, Handle, Producer, body, wait_until
from .cluster import Broker, Cluster

Unique = Callable[[str], str]
SETTINGS = {"enableLmq": True, "enableMultiDispatch": True}


@pytest.fixture(scope="module")
def broker(cluster: Cluster) -> Iterator[Broker]:
    if cluster.kind == "ledger":
        pytest.skip("messages of DLedger logs go into no light queues, as with Apache's brokers")
    made = cluster.new_broker("broker-light", cluster="LightCluster", properties=SETTINGS)
    yield made
    made.finish()


class Story:
    """A topic whose messages go into light queues, and somebody who pulls from them."""

    def __init__(self, cluster: Cluster, broker: Broker, client: Client, unique: Unique) -> None:
        self.broker = broker
        self.client = client
        self.topic = cluster.create_topic(client.driver, unique("topic"), 2, broker=broker)
        self.producer: Producer = client.producer(unique("pid"))
        self.names = [f"%LMQ%{unique(letter)}" for letter in "abc"]
        self.group = f"%LMQ%{unique('group')}"
        self.puller: Handle = client.pull(self.group)
        self.bodies(self.topic)  # so that it knows the broker: nobody tells the route of a light queue

    def send(self, text: str, *names: str, **message: Any) -> Any:
        return self.producer.send(
            self.topic, text, properties={"INNER_MULTI_DISPATCH": ",".join(names)}, **message
        )

    def queue(self, name: str) -> dict[str, Any]:
        return {"topic": name, "brokerName": "broker-light", "queueId": 0}

    def pull(self, name: str, offset: int = 0, tags: str = "*") -> Any:
        return self.puller.method("pull", self.queue(name), tags, offset, 32)

    def bodies(self, name: str, offset: int = 0, tags: str = "*") -> list[bytes]:
        return [body(message) for message in self.pull(name, offset, tags)["messages"] or []]


@pytest.fixture
def story(cluster: Cluster, broker: Broker, client: Client, unique: Unique) -> Story:
    return Story(cluster, broker, client, unique)


def test_a_message_goes_into_all_it_names(story: Story) -> None:
    first, second, third = story.names
    story.send("1", first, second)
    story.send("2", second)
    story.send("3", second, third, tags="red")
    story.producer.send(story.topic, "none")
    wait_until(lambda: story.bodies(second) == [b"1", b"2", b"3"], "all are in the second")
    assert story.bodies(first) == [b"1"]
    assert story.bodies(third) == [b"3"]
    assert story.bodies(second, 1) == [b"2", b"3"]
    assert story.bodies(second, 0, "red") == [b"3"]
    found = story.pull(second)
    assert (found["minOffset"], found["maxOffset"], found["nextBeginOffset"]) == (0, 3, 3)
    last = found["messages"][2]
    assert last["topic"] == story.topic
    assert last["properties"]["INNER_MULTI_DISPATCH"] == f"{second},{third}"
    assert last["properties"]["INNER_MULTI_QUEUE_OFFSET"] == "2,0"
    assert story.puller.method("maxOffset", story.queue(second)) == 3
    assert story.pull(second, 3)["status"] == "NO_NEW_MSG"
    assert story.pull(f"{second}-never", 0)["status"] == "NO_NEW_MSG"


def test_a_pull_waits_for_a_message(story: Story) -> None:
    name = story.names[0]
    story.send("0", name)
    wait_until(lambda: story.bodies(name) == [b"0"], "the first is there")
    waiting = story.client.later(
        lambda: story.puller.method("pullBlockIfNotFound", story.queue(name), "*", 1, 32)
    )
    time.sleep(0.5)  # it has to be held by then, or it proves nothing
    assert not waiting.done()
    sent_s = time.monotonic()
    story.send("1", name)
    assert [body(message) for message in waiting.result(30)["messages"]] == [b"1"]
    assert time.monotonic() - sent_s < 4.0  # Apache looks every five seconds, whatever came


def test_progress_is_kept(story: Story) -> None:
    name = story.names[0]
    for number in range(3):
        story.send(str(number), name)
    wait_until(lambda: len(story.bodies(name)) == 3, "all are there")
    admin = story.client.admin()
    admin.method("updateConsumeOffset", story.broker.address, story.group, story.queue(name), 2)
    assert story.puller.method("fetchConsumeOffset", story.queue(name), True) == 2
