"""A broker of the other kind joins the cluster and takes its share of a topic."""

from __future__ import annotations

from collections.abc import Callable

from .client import Client, body, together, wait_until
from .cluster import OTHER, Cluster

Unique = Callable[[str], str]


def test_the_other_kind_takes_its_share(cluster: Cluster, client: Client, unique: Unique) -> None:
    topic = cluster.create_topic(client.driver, unique("topic"))
    groups = {unique("concurrent"): False, unique("orderly"): True}
    consumers = [client.push(group, topic, orderly=orderly, body=True) for group, orderly in groups.items()]
    producer = client.producer(unique("pid"))
    first = producer.send_many(topic, 40)
    assert {name.split("/")[0] for name in first["queues"]} == {"broker-a"}

    joined = cluster.new_broker("broker-b", kind=OTHER[cluster.kind])
    printed = client.mqadmin("clusterList")
    assert cluster.broker.address in printed
    assert joined.address in printed
    # Queues are added at the second broker; until then it has none of this topic.
    client.mqadmin("updateTopic", "-b", joined.address, "-t", topic, "-r", "4", "-w", "4")
    sent, batches = 40, 0
    while True:
        many = producer.send_many(topic, 16, first=sent)
        sent, batches = sent + 16, batches + 1
        if {name.split("/")[0] for name in many["queues"]} == {"broker-a", "broker-b"}:
            break
        assert batches < 1000, "the producer never uses the new broker"
    shares = producer.send_many(topic, 80, first=sent, threads=1)["queues"]
    sent += 80
    assert {name: share[2] for name, share in shares.items()} == {
        f"{broker}/{queue}": 10 for broker in ("broker-a", "broker-b") for queue in range(4)
    }
    wanted = {b"%d" % number for number in range(sent)}
    for consumer in consumers:
        records = consumer.take(sent)
        assert {body(record) for record in records} == wanted
        assert {record["brokerName"] for record in records} == {"broker-a", "broker-b"}
    # Both are asked for their part.
    stats = client.admin().method("examineTopicStats", topic)["offsetTable"]
    assert len(stats) == 8
    assert sum(each["maxOffset"] - each["minOffset"] for each in stats.values()) == sent
    # Before their stop: a consumer that stops may leave out messages whose listener has just returned.
    together(*(lambda group=group: progress_is(client, group, topic, sent) for group in groups))
    for consumer in consumers:
        consumer.stop()


def progress_is(client: Client, group: str, topic: str, count: int) -> None:
    admin = client.admin()

    def consumed() -> int:
        table = admin.method("examineConsumeStats", group)["offsetTable"]
        return sum(each["consumerOffset"] for name, each in table.items() if f"topic={topic}," in name)

    wait_until(lambda: consumed() == count, f"{group} told both brokers where it is")
