"""A broker is stopped, or killed, and comes back: messages, topics and the progress of groups are there."""

from __future__ import annotations

import re
from collections.abc import Callable

import pytest

from kerolox.protocol.codes import RequestCode

from ..wire import request
from .client import Client, body, wait_until
from .cluster import Broker, Cluster

Unique = Callable[[str], str]


def progress(broker: Broker, topic: str, *groups: str) -> list[int]:
    """How far these groups are in each of the four queues, as the broker knows it; -1 if it does not."""
    found = []
    for group in groups:
        for queue_id in range(4):
            asked = {"consumerGroup": group, "topic": topic, "queueId": str(queue_id)}
            answer = request(broker.address, RequestCode.QUERY_CONSUMER_OFFSET, asked)
            found.append(int(answer.ext_fields.get("offset", -1)))
    return found


@pytest.mark.parametrize("clean", [True, False], ids=["stop", "kill"])
def test_progress_survives(
    cluster: Cluster, fragile: Broker, client: Client, unique: Unique, clean: bool
) -> None:
    topic = cluster.create_topic(client.driver, unique("topic"), broker=fragile)
    concurrent, orderly, fresh = unique("concurrent"), unique("orderly"), unique("fresh")
    producer = client.producer(unique("pid"))
    producer.send_many(topic, 100)
    consumers = {
        concurrent: client.push(concurrent, topic),
        orderly: client.push(orderly, topic, orderly=True),
    }
    for group, consumer in consumers.items():
        consumer.wait(100)
        # Before its stop: a consumer that stops may leave out messages whose listener has just returned.
        wait_until(lambda group=group: progress(fragile, topic, group) == [25] * 4, f"{group} has told it")
        consumer.stop()
    wait_until(lambda: progress(fragile, topic, concurrent, orderly) == [25] * 8, "the broker has heard")
    if not clean:
        # What a group told the broker is on disk a moment later, in both brokers' files.
        file = fragile.store / "config" / "consumerOffset.json"

        def saved() -> bool:
            # Keys are bare numbers in Apache's file.
            text = re.sub(r'[\s"]', "", file.read_text()) if file.exists() else ""
            return all(f"{topic}@{group}:{{0:25,1:25,2:25,3:25}}" in text for group in (concurrent, orderly))

        wait_until(saved, "offsets are saved")
    fragile.restart(clean=clean)
    # A client finds the way back by itself.
    sent = producer.send_many(topic, 20, first=100)
    assert sum(range_[2] for range_ in sent["queues"].values()) == 20
    late = {b"%d" % n for n in range(100, 120)}
    assert {body(record) for record in client.push(concurrent, topic, body=True).take(20)} == late
    assert {body(record) for record in client.push(orderly, topic, body=True, orderly=True).take(20)} == late
    everything = client.push(fresh, topic, body=True).take(120)
    assert {body(record) for record in everything} == {b"%d" % n for n in range(120)}
    config = client.admin().method("examineTopicConfig", fragile.address, topic)
    assert (config["readQueueNums"], config["writeQueueNums"]) == (4, 4)
