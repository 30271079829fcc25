"""Two namespaces use the same names and do not meet."""

from __future__ import annotations

from collections.abc import Callable

from .client import Client, body
from .cluster import Cluster

Unique = Callable[[str], str]


def test_namespaces_are_apart(cluster: Cluster, client: Client, unique: Unique) -> None:
    topic, group = unique("topic"), unique("group")
    for space in ("one", "two"):
        cluster.create_topic(client.driver, f"{space}%{topic}")
    producers = {space: client.producer("pid_ns", options={"namespace": space}) for space in ("one", "two")}
    consumers = {
        space: client.push(group, topic, options={"namespace": space}, body=True) for space in producers
    }
    for space, producer in producers.items():
        for number in range(10):
            result = producer.send(topic, f"{space} {number}")
            assert result["queue"]["topic"] == topic
    for space, consumer in consumers.items():
        records = consumer.take(10)
        assert {body(record).decode() for record in records} == {f"{space} {n}" for n in range(10)}
        assert {record["topic"] for record in records} == {topic}
        assert {record["properties"]["INSTANCE_ID"] for record in records} == {space}
    # For the servers the wrapped name is the name.
    admin = client.admin()
    for space in producers:
        offsets = admin.method("examineTopicStats", f"{space}%{topic}")["offsetTable"]
        assert sum(each["maxOffset"] for each in offsets.values()) == 10
        assert admin.method("examineConsumerConnectionInfo", f"{space}%{group}")["connectionSet"]
