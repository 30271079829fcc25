"""Messages that come at any time, and those that are taken back before."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest

from ..driver import JavaError
from .client import Client, Record, body
from .cluster import Broker, Cluster

Unique = Callable[[str], str]
PRECISION_MS = 1000
SLACK_MS = 1500  # for two JVMs on a busy machine
EARLY_MS = 20  # a store time is that of the first message written together with this one


@pytest.fixture(autouse=True)
def only_later_ones(client: Client) -> None:
    if client.driver.jars.is_4x:
        pytest.skip("brokers and clients of 4.x have delay levels only")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def check_on_time(record: Record, due_ms: int) -> None:
    assert due_ms - EARLY_MS <= record["storeTimestamp"] <= due_ms + PRECISION_MS + SLACK_MS, (
        record["storeTimestamp"] - due_ms
    )


def test_each_comes_at_its_time(cluster: Cluster, client: Client, unique: Unique) -> None:
    topic = cluster.create_topic(client.driver, unique("topic"), queues=1)
    producer = client.producer(unique("pid"))
    due: dict[bytes, int] = {}
    start_ms = now_ms()
    for name, options, delay_ms in (
        ("ms", {"delayTimeMs": 2500}, 2500),
        ("s", {"delayTimeSec": 1}, 1000),
        ("at", {"deliverTimeMs": start_ms + 4300}, None),
        ("gone", {"deliverTimeMs": start_ms - 10_000}, None),
    ):
        before_ms = now_ms()
        sent = producer.send(topic, name, options=options, tags="timed", keys=f"key-{name}")
        assert sent["status"] == "SEND_OK"
        assert (sent["recallHandle"] is None) == (name == "gone")
        due[name.encode()] = before_ms + delay_ms if delay_ms is not None else max(start_ms, start_ms + 4300)
    got = client.push(unique("group"), topic, "timed", body=True).take(4)
    assert [body(record) for record in sorted(got, key=lambda each: each["queueOffset"])] == [
        b"gone", b"s", b"ms", b"at",
    ]  # fmt: skip
    for record in got:
        name = body(record)
        if name == b"gone":
            assert "TIMER_OUT_MS" not in record["properties"]
            continue
        check_on_time(record, due[name])
        properties = record["properties"]
        assert properties["REAL_TOPIC"] == topic
        assert int(properties["TIMER_OUT_MS"]) + PRECISION_MS >= due[name]
        assert properties.keys() >= {"REAL_QID", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "KEYS", "UNIQ_KEY"}
        assert record["keys"] == f"key-{name.decode()}"


def test_a_time_too_far_is_refused(cluster: Cluster, client: Client, unique: Unique) -> None:
    topic = cluster.create_topic(client.driver, unique("topic"))
    producer = client.producer(unique("pid"))
    with pytest.raises(JavaError, match="timer message illegal, the delay time should not be bigger than"):
        producer.send(topic, "far", options={"delayTimeSec": 259_201})


@pytest.mark.parametrize("clean", [True, False], ids=["stop", "kill"])
def test_what_waits_survives(
    cluster: Cluster, fragile: Broker, client: Client, unique: Unique, clean: bool
) -> None:
    topic = cluster.create_topic(client.driver, unique("topic"), queues=1, broker=fragile)
    producer = client.producer(unique("pid"))
    due: dict[bytes, int] = {}
    for number in range(60):
        delay_ms = 1500 + number * 400
        due[b"%d" % number] = now_ms() + delay_ms
        sent = producer.send(topic, str(number), options={"delayTimeMs": delay_ms})
        assert sent["status"] == "SEND_OK"
    consumer = client.push(unique("group"), topic, body=True)
    consumer.wait(4)
    fragile.restart(clean=clean)
    back_ms = now_ms()
    consumer.wait(60)
    got = {body(record): record for record in consumer.drain()}
    assert got.keys() == due.keys()  # none lost; some may come twice
    for name, record in got.items():
        assert record["storeTimestamp"] >= due[name] - EARLY_MS
        if due[name] > back_ms + 3000:
            check_on_time(record, due[name])


def test_what_is_recalled_does_not_come(cluster: Cluster, client: Client, unique: Unique) -> None:
    topic = cluster.create_topic(client.driver, unique("topic"), queues=1)
    producer = client.producer(unique("pid"))
    address = cluster.broker.address
    sent = producer.send(topic, "kept", options={"delayTimeMs": 7000})
    with pytest.raises(JavaError, match="recall failed, operation is forbidden"):
        producer.method("recallMessage", topic, sent["recallHandle"])
    client.mqadmin("updateBrokerConfig", "-b", address, "-k", "recallMessageEnable", "-v", "true")
    try:
        gone = producer.send(topic, "gone", options={"delayTimeMs": 6500})
        late = producer.send(topic, "late", options={"delayTimeMs": 1200})
        assert producer.method("recallMessage", topic, gone["recallHandle"]) == gone["msgId"]
        consumer = client.push(unique("group"), topic, body=True)
        consumer.wait(1)
        with pytest.raises(JavaError, match="recall failed, timestamp invalid"):
            producer.method("recallMessage", topic, late["recallHandle"])
        with pytest.raises(JavaError, match="recall"):
            producer.method("recallMessage", topic, "bm9uc2Vuc2U=")
        consumer.wait(2)
        time.sleep(1.5)
        assert [body(record) for record in consumer.drain()] == [b"late", b"kept"]
    finally:
        client.mqadmin("updateBrokerConfig", "-b", address, "-k", "recallMessageEnable", "-v", "false")
