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
    offset, sent, slept_through = 1, 1, 0

    def pull(kind: str) -> Any:
        return consumer.method(kind, queue, "yes", offset, 32)

    def held() -> Future[Any]:
        return client.later(lambda: pull("pullBlockIfNotFound"))

    pulling = held()
    # A pull that arrives after a message is answered, and Apache looks at all that wait every five seconds.
    # One that wakes for any message would never sleep through ten in a row.
    while slept_through < 10:
        assert sent < 300, "every pull was woken"
        producer.send(topic, "other", tags="no")
        sent += 1
        pull("pull")  # the time of a way to the broker and back
        slept_through += 1
        if pulling.done():
            assert pulling.result()["status"] == "NO_MATCHED_MSG"
            offset, slept_through = pulling.result()["nextBeginOffset"], 0
            pulling = held()
    producer.send(topic, "wanted", tags="yes")
    while (result := pulling.result(30))["status"] == "NO_MATCHED_MSG":
        offset = result["nextBeginOffset"]
        pulling = held()
    assert result["status"] == "FOUND"
    assert [body(record) for record in result["messages"]] == [b"wanted"]
    assert result["nextBeginOffset"] == sent + 1
