"""A consumer that fetches by itself: assigned queues, seeking, committing, and the share of a group."""

from __future__ import annotations

from collections.abc import Callable

from .client import Client, body
from .cluster import Cluster

Unique = Callable[[str], str]


def test_seek_anywhere_and_commit(cluster: Cluster, client: Client, unique: Unique) -> None:
    topic, group = cluster.create_topic(client.driver, unique("topic"), 2), unique("group")
    producer = client.producer(unique("pid"))
    queue = producer.send(topic, "0", selector="index", arg=0)["queue"]
    producer.send_many(topic, 9, first=1, queue=queue)
    lite = client.lite(group, assign=[queue], options={"autoCommit": False})
    # Java's client may still hand out what it fetched before a seek, so it has fetched all by then.
    assert [m["queueOffset"] for m in lite.poll(10)] == list(range(10))
    assert [m["queueOffset"] for m in lite.poll_from(queue, 7, 3)] == [7, 8, 9]
    lite.do("lite.commit")
    assert lite.method("committed", queue) == 10
    again = lite.poll_from(queue, "begin", 10)
    assert [body(m) for m in again] == [b"%d" % n for n in range(10)]
    lite.seek(queue, "end")
    producer.send(topic, "late", queue=queue)
    assert [body(m) for m in lite.poll(1)] == [b"late"]
    middle = again[5]["storeTimestamp"]
    found = lite.method("offsetForTimestamp", queue, middle)
    assert again[found]["storeTimestamp"] == middle
    # 4.9's broker finds any one of this millisecond.
    assert cluster.is_apache_4 or found == 0 or again[found - 1]["storeTimestamp"] < middle
    assert lite.method("offsetForTimestamp", queue, again[0]["storeTimestamp"] - 1) == 0
    lite.stop()
    # The group goes on where it committed, whoever comes.
    heir = client.lite(group, assign=[queue])
    assert [m["queueOffset"] for m in heir.poll(1)] == [10]


def test_a_group_shares_a_topic(cluster: Cluster, client: Client, unique: Unique) -> None:
    topic, group = cluster.create_topic(client.driver, unique("topic")), unique("group")
    client.producer(unique("pid")).send_many(topic, 100)
    options = {"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"}
    subscriptions = [{"topic": topic, "expression": "*"}]
    lite = client.lite(group, subscriptions=subscriptions, options=options)
    assert {body(m) for m in lite.poll(100)} == {b"%d" % n for n in range(100)}
    lite.do("lite.commit")
    lite.stop()
    client.producer(unique("pid")).send_many(topic, 20, first=100)
    heir = client.lite(group, subscriptions=subscriptions, options=options)
    assert {body(m) for m in heir.poll(20)} == {b"%d" % n for n in range(100, 120)}
