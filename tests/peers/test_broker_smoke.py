"""Apache's clients and tools against our name server and broker: the ways every application takes."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .driver import JavaDriver
from .ours import OurCluster

Unique = Callable[[str], str]


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OurCluster]:
    ours = OurCluster(tmp_path_factory.mktemp("ours"))
    ours.start()
    yield ours
    assert ours.stop() == 0, ours.tail()
    log = (ours.home / "stderr.log").read_text()
    assert "Traceback" not in log, log[-5000:]


@pytest.fixture(params=["json", "binary"])
def driver(request: pytest.FixtureRequest) -> JavaDriver:
    """Apache's client, in each of its header encodings."""
    name = "java_driver" if request.param == "json" else "java_driver_binary"
    found: JavaDriver = request.getfixturevalue(name)
    return found


def consume(
    driver: JavaDriver, cluster: OurCluster, group: str, topic: str, expression: str = "*", **args: Any
) -> str:
    handle: str = driver.call(
        "push.start",
        group=group,
        namesrv=cluster.nameserver,
        subscriptions=[{"topic": topic, "expression": expression}],
        options={"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"},
        **args,
    )
    return handle


def test_thousand_messages_to_a_new_topic_arrive_once(
    driver: JavaDriver, cluster: OurCluster, unique: Unique
) -> None:
    topic = unique("topic")
    producer = driver.call("producer.start", group=unique("pid"), namesrv=cluster.nameserver)
    sent = driver.call(
        "producer.sendMany", handle=producer, topic=topic, count=1000, size=200, threads=4, ids=True
    )
    assert (sent["sent"], sent["failed"], sent["errors"]) == (1000, 0, [])
    consumer = consume(driver, cluster, unique("group"), topic)
    assert driver.call("push.waitCount", handle=consumer, count=1000, distinct=True, timeoutMs=30000)[
        "reached"
    ]
    records = driver.call("push.drain", handle=consumer)
    assert sorted(record["msgId"] for record in records) == sorted(row[1] for row in sent["ids"])
    assert {record["bodySize"] for record in records} == {200}
    assert {record["queueId"] for record in records} == {0, 1, 2, 3}


def test_every_way_to_send_and_to_find_again(driver: JavaDriver, cluster: OurCluster, unique: Unique) -> None:
    topic, call = unique("topic"), driver.call
    driver.create_topic(cluster.nameserver, cluster.broker, topic)
    producer = call("producer.start", group=unique("pid"), namesrv=cluster.nameserver)
    first = call(
        "producer.send",
        handle=producer,
        message={"topic": topic, "text": "one", "tags": "A", "keys": "k1", "properties": {"colour": "red"}},
    )
    assert first["status"] == "SEND_OK"
    queue = first["queue"]
    message = {"topic": topic, "body": base64.b64encode(b"\x00\xff").decode(), "tags": "B"}
    assert call("producer.send", handle=producer, message=message, queue=queue)["queue"] == queue
    assert call("producer.send", handle=producer, message=message, mode="async")["status"] == "SEND_OK"
    assert call("producer.send", handle=producer, message=message, mode="oneway") is None
    large = {"topic": topic, "text": "x" * 100_000, "tags": "C"}  # the client compresses it
    assert call("producer.send", handle=producer, message=large)["status"] == "SEND_OK"
    batch = call("producer.sendBatch", handle=producer, messages=[message, message])
    assert len(batch["msgId"].split(",")) == 2

    consumer = consume(driver, cluster, unique("group"), topic, body=True)
    assert call("push.waitCount", handle=consumer, count=7, timeoutMs=20000)["reached"]
    records = call("push.drain", handle=consumer)
    assert len(records) == 7
    (one,) = [record for record in records if record["tags"] == "A"]
    assert base64.b64decode(one["body"]) == b"one"
    assert one["properties"]["colour"] == "red"
    assert one["msgId"] == first["msgId"]
    assert one["offsetMsgId"] == first["offsetMsgId"]
    (three,) = [record for record in records if record["tags"] == "C"]
    assert base64.b64decode(three["body"]) == b"x" * 100_000

    admin = call("admin.start", namesrv=cluster.nameserver)
    (found,) = call("query.byKey", handle=admin, topic=topic, key="k1")
    assert found["msgId"] == first["msgId"]
    by_id = call("query.byId", handle=admin, topic=topic, msgId=first["offsetMsgId"])
    assert by_id["queueOffset"] == first["queueOffset"]


def test_tags_choose_messages(driver: JavaDriver, cluster: OurCluster, unique: Unique) -> None:
    topic, call = unique("topic"), driver.call
    driver.create_topic(cluster.nameserver, cluster.broker, topic)
    consumer = consume(driver, cluster, unique("group"), topic, "A || C")
    producer = call("producer.start", group=unique("pid"), namesrv=cluster.nameserver)
    for number in range(30):
        message = {"topic": topic, "text": "x", "tags": "ABC"[number % 3], "properties": {"n": str(number)}}
        assert call("producer.send", handle=producer, message=message)["status"] == "SEND_OK"
    assert call("push.waitCount", handle=consumer, count=20, timeoutMs=20000)["reached"]
    records = call("push.drain", handle=consumer)
    assert sorted(int(record["properties"]["n"]) for record in records) == [
        n for n in range(30) if n % 3 != 1
    ]


def test_an_orderly_consumer_sees_each_queue_in_order(
    driver: JavaDriver, cluster: OurCluster, unique: Unique
) -> None:
    topic, call = unique("topic"), driver.call
    driver.create_topic(cluster.nameserver, cluster.broker, topic)
    producer = call("producer.start", group=unique("pid"), namesrv=cluster.nameserver)
    for number in range(100):
        message = {"topic": topic, "text": str(number)}
        call("producer.send", handle=producer, message=message, selector="index", arg=number % 4)
    consumer = consume(driver, cluster, unique("group"), topic, orderly=True)
    assert call("push.waitCount", handle=consumer, count=100, timeoutMs=30000)["reached"]
    offsets: dict[int, list[int]] = {}
    for record in call("push.drain", handle=consumer):
        offsets.setdefault(record["queueId"], []).append(record["queueOffset"])
    assert offsets == {queue: list(range(25)) for queue in range(4)}


def test_a_group_goes_on_where_it_stopped_after_the_broker_was_killed(
    java_driver: JavaDriver, unique: Unique, tmp_path_factory: pytest.TempPathFactory
) -> None:
    topic, group, call = unique("topic"), unique("group"), java_driver.call
    cluster = OurCluster(tmp_path_factory.mktemp("killed"))
    cluster.start()
    try:
        producer = call("producer.start", group=unique("pid"), namesrv=cluster.nameserver)
        assert call("producer.sendMany", handle=producer, topic=topic, count=200, size=50)["sent"] == 200
        ports = [int(address.rpartition(":")[2]) for address in (cluster.nameserver, cluster.broker)]
        cluster.kill()
        cluster = OurCluster(cluster.home, *ports)
        cluster.start()
        assert call("producer.sendMany", handle=producer, topic=topic, count=100, size=50)["sent"] == 100
        consumer = consume(java_driver, cluster, group, topic)
        assert call("push.waitCount", handle=consumer, count=300, timeoutMs=30000)["reached"]
        assert len(call("push.drain", handle=consumer)) == 300
        assert cluster.stop() == 0
    finally:
        cluster.kill()


def test_mqadmin_sees_the_broker(java_driver: JavaDriver, cluster: OurCluster, unique: Unique) -> None:
    topic = unique("topic")
    assert cluster.broker in java_driver.mqadmin("clusterList", "-n", cluster.nameserver)
    java_driver.mqadmin("updateTopic", "-n", cluster.nameserver, "-c", "DefaultCluster", "-t", topic)
    assert topic in java_driver.mqadmin("topicList", "-n", cluster.nameserver)
    producer = java_driver.call("producer.start", group=unique("pid"), namesrv=cluster.nameserver)
    java_driver.call("producer.sendMany", handle=producer, topic=topic, count=16, size=50)
    status = java_driver.mqadmin("topicStatus", "-n", cluster.nameserver, "-t", topic)
    assert "broker-a" in status
