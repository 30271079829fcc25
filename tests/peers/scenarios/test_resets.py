"""Somebody turns a group back to a time, while it runs and while it does not."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from ..driver import JavaError
from .client import Client, Producer, body, wait_until
from .cluster import Cluster

Unique = Callable[[str], str]


def send_in_two_parts(producer: Producer, topic: str) -> int:
    """Ten messages, a moment, ten more; a time between the two."""
    last = [producer.send(topic, f"old {n}", selector="index", arg=n) for n in range(10)]
    assert len(last) == 10
    between = int(time.time() * 1000) + 2
    wait_until(lambda: time.time() * 1000 > between + 2, "the clock moves")
    for number in range(10):
        producer.send(topic, f"new {number}", selector="index", arg=number)
    return between


def reset(client: Client, how: str, topic: str, group: str, timestamp: int) -> None:
    if how == "mqadmin":
        printed = client.mqadmin("resetOffsetByTime", "-g", group, "-t", topic, "-s", str(timestamp))
        assert topic in printed or group in printed, printed
    else:
        client.admin().method("resetOffsetByTimestamp", topic, group, timestamp, True)


@pytest.fixture(autouse=True)
def _resets_at_the_broker(cluster: Cluster) -> None:
    if cluster.is_apache_4:
        pytest.skip("Apache's 4.9 broker asks the members of a group to reset themselves")


NEW = {f"new {n}" for n in range(10)}
OLD = {f"old {n}" for n in range(10)}


@pytest.mark.parametrize("how", ["mqadmin", "api"])
def test_back_to_a_time_while_consuming(cluster: Cluster, client: Client, unique: Unique, how: str) -> None:
    topic, group = cluster.create_topic(client.driver, unique("topic"), 2), unique("group")
    producer = client.producer(unique("pid"))
    between = send_in_two_parts(producer, topic)
    consumer = client.push(group, topic, body=True)
    assert {body(record).decode() for record in consumer.take(20)} == OLD | NEW
    reset(client, how, topic, group, between)
    # The pulls that wait at the broker learn of it when they are answered next.
    for number in range(2):
        producer.send(topic, f"after {number}", selector="index", arg=number)
    consumer.wait(32, distinct=False)
    again = [body(record).decode() for record in consumer.drain()]
    assert sorted(again) == sorted(NEW | {"after 0", "after 1"})


@pytest.mark.parametrize("how", ["mqadmin", "api"])
def test_back_to_a_time_while_nobody_consumes(
    cluster: Cluster, client: Client, unique: Unique, how: str
) -> None:
    topic, group = cluster.create_topic(client.driver, unique("topic"), 2), unique("group")
    between = send_in_two_parts(client.producer(unique("pid")), topic)
    consumer = client.push(group, topic, body=True)
    consumer.wait(20)
    consumer.stop()
    reset(client, how, topic, group, between)
    heir = client.push(group, topic, body=True)
    assert {body(record).decode() for record in heir.take(10)} == NEW


def test_forward_to_the_end(cluster: Cluster, client: Client, unique: Unique) -> None:
    topic, group = cluster.create_topic(client.driver, unique("topic"), 2), unique("group")
    producer = client.producer(unique("pid"))
    send_in_two_parts(producer, topic)
    consumer = client.push(group, topic)
    consumer.wait(20)
    consumer.stop()
    producer.send_many(topic, 10)
    client.admin().method("resetOffsetByTimestamp", topic, group, -1, True)
    for number in range(2):
        producer.send(topic, f"last {number}", selector="index", arg=number)
    heir = client.push(group, topic, body=True)
    assert {body(record) for record in heir.take(2)} == {b"last 0", b"last 1"}


def test_what_does_not_exist_is_not_reset(cluster: Cluster, client: Client, unique: Unique) -> None:
    topic = cluster.create_topic(client.driver, unique("topic"), 2)
    admin = client.admin()
    with pytest.raises(JavaError) as unknown:
        admin.method("resetOffsetByTimestamp", topic, unique("nobody"), 0, True)
    assert unknown.value.code == 26
    with pytest.raises(JavaError) as unknown:
        admin.method("resetOffsetByTimestamp", unique("nothing"), unique("nobody"), 0, True)
    assert unknown.value.code == 17
