"""A broker leaves its cluster politely: nothing fails, nothing is stored twice."""

from __future__ import annotations

from collections.abc import Callable

from .client import Client, wait_until
from .cluster import Cluster

Unique = Callable[[str], str]
COUNT = 4000
POLITE = {"enableShutdownGracefully": True, "shutdownWaitTimeSeconds": 3}


def stored(client: Client, topic: str) -> dict[str, int]:
    """Broker → how many messages it has."""
    found: dict[str, int] = {}
    for queue, bounds in client.admin().method("examineTopicStats", topic)["offsetTable"].items():
        broker = "broker-leaving" if "broker-leaving" in queue else "broker-a"
        found[broker] = found.get(broker, 0) + bounds["maxOffset"] - bounds["minOffset"]
    return found


def test_producers_go_elsewhere(cluster: Cluster, client: Client, unique: Unique) -> None:
    leaving = cluster.new_broker("broker-leaving", properties=POLITE)
    topic = cluster.create_topic(client.driver, unique("topic"), 2)
    client.mqadmin("updateTopic", "-b", leaving.address, "-t", topic, "-r", "2", "-w", "2")
    producer = client.producer(unique("pid"))

    def uses_both() -> bool:
        queues = producer.send_many(topic, 8)["queues"]
        return {name.split("/")[0] for name in queues} == {"broker-a", "broker-leaving"}

    wait_until(uses_both, "the producer knows both brokers")
    before = stored(client, topic)
    sending = client.later(lambda: producer.send_many(topic, COUNT, threads=4))
    wait_until(
        lambda: sum(stored(client, topic).values()) > sum(before.values()) + COUNT // 8, "many are sent"
    )
    assert not sending.done()
    leaving.stop()
    sending.result(60)  # none of them failed
    leaving.start()
    wait_until(lambda: len(stored(client, topic)) == 2, "the broker is back")
    after = stored(client, topic)
    assert sum(after.values()) == sum(before.values()) + COUNT
    assert after["broker-leaving"] > before["broker-leaving"]
