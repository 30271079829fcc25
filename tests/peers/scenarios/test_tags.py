"""A consumer gets the tags it asked for, and sleeps through all others."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

from .client import Client, body
from .cluster import Cluster

Unique = Callable[[str], str]


def test_only_the_tags_asked_for(cluster: Cluster, client: Client, unique: Unique) -> None:
    topic = cluster.create_topic(client.driver, unique("topic"))
    producer = client.producer(unique("pid"))
    # Java's hashes of the first two are equal: the broker cannot tell them apart, the client must.
    tags = ["Aa", "BB", "C", "größe"]
    producer.send_many(topic, 40, tags=tags)
    producer.send(topic, "untagged")
    wanted = {"Aa": 10, "Aa || C": 20, "größe": 10, "*": 41, "C||größe||none": 20}
    consumers = {expression: client.push(unique("group"), topic, expression) for expression in wanted}
    # The last of each tag is among what was taken, so nothing that was filtered out can still come.
    for expression, count in wanted.items():
        records = consumers[expression].take(count)
        assert len(records) == count
        if expression != "*":
            assert {record["tags"] for record in records} <= {each.strip() for each in expression.split("||")}


def test_a_filtered_pull_sleeps_through_other_tags(cluster: Cluster, client: Client, unique: Unique) -> None:
    topic = cluster.create_topic(client.driver, unique("topic"), 1)
    producer = client.producer(unique("pid"))
    queue = producer.send(topic, "first", tags="no")["queue"]
    consumer = client.pull(unique("group"))
    offset, unmatched = 1, 0

    def pull(kind: str) -> Any:
        return consumer.method(kind, queue, "yes", offset, 32)

    def start() -> Future[Any]:
        started = client.later(lambda: pull("pullBlockIfNotFound"))
        for _ in range(3):  # by then the first is most likely held
            pull("pull")
        return started

    pulling = start()
    for number in range(20):
        producer.send(topic, f"other {number}", tags="no")
        if pulling.done() and pulling.result()["status"] == "NO_MATCHED_MSG":
            # Right if it came after the message; not once it is held.
            unmatched += 1
            offset = pulling.result()["nextBeginOffset"]
            pulling = start()
    producer.send(topic, "wanted", tags="yes")
    while (result := pulling.result(30))["status"] == "NO_MATCHED_MSG":
        unmatched += 1
        offset = result["nextBeginOffset"]
        pulling = start()
    assert result["status"] == "FOUND"
    assert [body(record) for record in result["messages"]] == [b"wanted"]
    assert result["nextBeginOffset"] == 22
    # Each of twenty would have woken it. Some may have come before it, and Apache looks at all that wait
    # every five seconds.
    assert unmatched <= 3
