"""Messages pile up while nobody consumes; consumers then catch up while sends go on."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from .client import Client, wait_until
from .cluster import Cluster

Unique = Callable[[str], str]


@pytest.mark.parametrize("backlog", [100_000, pytest.param(1_000_000, marks=pytest.mark.long)])
def test_a_backlog_drains_while_sends_go_on(
    cluster: Cluster, client: Client, unique: Unique, backlog: int
) -> None:
    topic = cluster.create_topic(client.driver, unique("topic"), 8)
    group = unique("group")
    producer = client.producer(unique("pid"))
    built = producer.send_many(topic, backlog, size=100, batch=100, threads=2)
    assert sum(share[2] for share in built["queues"].values()) == backlog
    load = client.load(topic, lanes=8, producers=2, paceMs=1)
    options = {"consumeMessageBatchMaxSize": 32, "pullBatchSize": 32}
    # Both share the queues; messages that change hands may come twice, so ids are counted and compared.
    consumers = [client.push(group, topic, record=False, options=options) for _ in range(2)]
    patience_s = 60 + backlog / 5000

    def distinct() -> int:
        return int(client.driver.call("push.distinct", handles=[consumer.handle for consumer in consumers]))

    wait_until(lambda: distinct() >= backlog, "the backlog is drained", patience_s)
    sent = load.end()
    assert sent["errors"] == {}
    assert sent["total"] > 100
    wait_until(lambda: distinct() >= backlog + sent["total"], "the rest is drained", 30)
    assert distinct() == backlog + sent["total"]
