"""Delayed messages: every level in its time, through stops, kills and a change of hands of the store."""

from __future__ import annotations

import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from kerolox.broker.later.delay_levels import restore
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.properties import unpack
from kerolox.protocol.record import decode_record
from kerolox.protocol.reserved import SCHEDULE_TOPIC

from ..store_views import BrokerView
from .client import Client, Record, body, wait_until
from .cluster import OTHER, Broker, Cluster

Unique = Callable[[str], str]

# Eighteen of them, as usual, but so that a story can wait for all.
SECONDS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15, 16, 18, 20)
LEVELS = {"messageDelayLevel": " ".join(f"{seconds}s" for seconds in SECONDS)}
# Apache's broker looks every 100 ms, and first a second after its start. The rest is for a busy machine.
LATE_MS_MAX = 700
STARTING_MS = 2500


@pytest.fixture(scope="module")
def delaying(cluster: Cluster) -> Iterator[Broker]:
    """A broker with short delays that may be killed."""
    made = cluster.new_broker("broker-delaying", cluster="DelayCluster", properties=LEVELS)
    yield made
    made.finish()


def send(client: Client, topic: str, levels: range) -> dict[str, int]:
    """A message of each level; the texts with their delays in ms."""
    producer = client.producer()
    sent: dict[str, int] = {}
    for level in levels:
        text = f"level {level}"
        answer = producer.send(topic, text, delayLevel=level, keys=[f"key{level}"], tags="A")
        assert answer["status"] == "SEND_OK"
        sent[text] = SECONDS[min(level, 18) - 1] * 1000
    producer.stop()
    return sent


def delivered(broker: Broker, topic: str, queues: int = 2) -> list[StoredMessage]:
    view = BrokerView(broker.address)
    return [decode_record(record) for number in range(queues) for record in view.records((topic, number))]


def texts(messages: list[StoredMessage]) -> Counter[str]:
    return Counter(message.body.decode() for message in messages)


def check_times(
    messages: list[StoredMessage], sent: dict[str, int], down: list[tuple[float, float]]
) -> dict[str, int]:
    """Nothing early; nothing late but for the time the broker was down. How late each was, in ms."""
    late = {}
    for message in sorted(messages, key=lambda message: message.store_timestamp, reverse=True):
        due_ms = message.born_timestamp + sent[message.body.decode()]
        late[message.body.decode()] = message.store_timestamp - due_ms
    assert min(late.values()) >= 0, late
    for text, late_ms in late.items():
        due_ms = next(m.born_timestamp for m in messages if m.body.decode() == text) + sent[text]
        limit_ms = LATE_MS_MAX
        for began_s, ended_s in down:
            if began_s * 1000 - LATE_MS_MAX <= due_ms <= ended_s * 1000 + STARTING_MS:
                limit_ms = max(limit_ms, int(ended_s * 1000) + STARTING_MS - due_ms)
        assert late_ms <= limit_ms, (text, late_ms, limit_ms, late)
    return late


def again(broker: Broker, *, clean: bool) -> tuple[float, float]:
    """Stop or kill, and start; from when to when it was away."""
    began_s = time.time()
    broker.restart(clean=clean)
    return began_s, time.time()


@pytest.mark.timeout(180)
def test_every_level_through_a_restart_and_a_kill(
    cluster: Cluster, delaying: Broker, client: Client, unique: Unique
) -> None:
    topic = cluster.create_topic(client.driver, unique("topic"), 2, broker=delaying)
    push = client.push(unique("group"), topic, body=True)
    received: list[Record] = []
    sent = send(client, topic, range(1, 19)) | send(client, topic, range(99, 100))
    sent["level 99"] = SECONDS[-1] * 1000
    wait_until(lambda: len(delivered(delaying, topic)) >= 2, "two messages")
    down = [again(delaying, clean=True)]
    wait_until(lambda: len(texts(delivered(delaying, topic))) >= 12, "twelve messages")
    down.append(again(delaying, clean=False))
    wait_until(lambda: len(texts(delivered(delaying, topic))) == len(sent), "all messages")
    found = delivered(delaying, topic)
    assert set(texts(found)) == set(sent)
    check_times(found, sent, down)
    # Apache's broker saves its progress every ten seconds: what it delivered since comes again after a kill.
    twice = [text for text, count in texts(found).items() if count > 1]
    assert len(twice) <= (12 if cluster.kind == "apache" else 0), twice

    def complete() -> bool:
        received.extend(push.drain())
        return {body(record).decode() for record in received} == set(sent)

    wait_until(complete, "all consumed")
    for record in received:
        level = body(record).decode().removeprefix("level ")
        assert record["topic"] == topic
        assert record["properties"]["DELAY"] == ("18" if level == "99" else level)
        assert record["properties"]["REAL_TOPIC"] == topic
    push.stop()


@pytest.mark.timeout(120)
def test_what_is_parked_and_what_is_delivered(
    cluster: Cluster, delaying: Broker, client: Client, unique: Unique
) -> None:
    """Our own restoring, held against what this broker's delivery stored."""
    topic = cluster.create_topic(client.driver, unique("topic"), 2, broker=delaying)
    view = BrokerView(delaying.address)
    before = view.max_offset((SCHEDULE_TOPIC, 1))
    producer = client.producer()
    more: dict[str, Any] = {"properties": {"colour": "grün", "empty": "x"}, "keys": ["a", "b"], "tags": "T"}
    for wait in (True, False):
        how = {"waitStoreMsgOK": wait}
        assert producer.send(topic, "later", delayLevel=2, options=how, **more)["status"] == "SEND_OK"
    wait_until(lambda: len(delivered(delaying, topic)) == 2, "both")
    parked = [decode_record(record) for record in view.records((SCHEDULE_TOPIC, 1))][before:]
    found = sorted(delivered(delaying, topic), key=lambda message: message.physical_offset)
    for was, now in zip(parked, found, strict=True):
        expected = restore(was)
        assert (now.topic, now.queue_id) == (expected.topic, expected.queue_id) == (topic, now.queue_id)
        assert (now.body, now.flag, now.sys_flag) == (was.body, was.flag, was.sys_flag)
        assert now.packed_properties == expected.properties
        assert (now.born_timestamp, now.born_host) == (was.born_timestamp, was.born_host)
        assert (now.store_host, now.reconsume_times) == (was.store_host, was.reconsume_times)
        assert (now.prepared_offset, now.body_crc) == (0, was.body_crc)
        table = unpack(was.packed_properties)
        assert (table["DELAY"], table["REAL_TOPIC"], table["REAL_QID"]) == ("2", topic, str(now.queue_id))
    assert {table["WAIT"] for table in (unpack(now.packed_properties) for now in found)} == {"true", "false"}
    names = [set(unpack(now.packed_properties)) for now in found]
    ours_and_5x = set() if cluster.is_apache_4 else {"MSG_REGION", "TRACE_ON"}
    assert names[0] == names[1] == {
        "KEYS", "TAGS", "WAIT", "DELAY", "UNIQ_KEY", "REAL_TOPIC", "REAL_QID", "CLUSTER", "colour", "empty",
        *ours_and_5x,
    }  # fmt: skip
    producer.stop()


@pytest.mark.timeout(240)
@pytest.mark.parametrize("clean", [True, False], ids=["stopped", "killed"])
def test_a_store_changes_hands_while_messages_wait(
    cluster: Cluster, client: Client, unique: Unique, clean: bool
) -> None:
    name, group = unique("broker").replace("_", "-"), f"Cluster{unique('c')}"
    first = cluster.new_broker(name, cluster=group, properties=LEVELS)
    second = cluster.new_broker(name, kind=OTHER[cluster.kind], cluster=group, properties=LEVELS)
    second.stop()
    first.restart()  # the name server knows the address of who came last
    topic = cluster.create_topic(client.driver, unique("topic"), 2, broker=first)
    sent = send(client, topic, range(1, 19))
    wait_until(lambda: len(delivered(first, topic)) >= 2, "two messages")
    began_s = time.time()
    if clean:
        first.stop()
    else:
        first.kill()
    shutil.rmtree(second.store)
    shutil.copytree(first.store, second.store, copy_function=shutil.copy2)
    second.start()
    down = [(began_s, time.time())]
    wait_until(lambda: len(texts(delivered(second, topic))) == len(sent), "all messages")
    found = delivered(second, topic)
    assert set(texts(found)) == set(sent)
    if clean:
        assert max(texts(found).values()) == 1
    check_times(found, sent, down)
    second.stop()
