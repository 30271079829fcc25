"""Java's push consumer in POP mode: the broker assigns queues, hands out messages, and takes each back."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import pytest

from .client import Client, wait_until
from .cluster import Cluster

Unique = Callable[[str], str]
POPS = {"clientRebalance": False, "popInvisibleTime": 10_000, "popBatchNums": 8}


@pytest.fixture
def group(cluster: Cluster, client: Client, unique: Unique) -> str:
    name = unique("group")
    client.mqadmin("updateSubGroup", "-b", cluster.broker.address, "-g", name)
    return name


@pytest.fixture
def topic(cluster: Cluster, client: Client, group: str, unique: Unique) -> str:
    """A topic that the group pops."""
    name = cluster.create_topic(client.driver, unique("topic"), 4)
    printed = client.mqadmin(
        "setConsumeMode", "-b", cluster.broker.address, "-t", name, "-g", group, "-m", "POP", "-q", "0"
    )
    assert f"topic[{name}] group[{group}] consume mode[POP] popShareQueueNum[0]" in printed
    return name


def test_every_message_is_popped_and_acknowledged_once(client: Client, topic: str, group: str) -> None:
    members = [client.push(group, topic, body=True, options=POPS) for _ in range(2)]
    producer = client.producer()
    producer.send_many(topic, 500)
    wait_until(lambda: sum(member.count() for member in members) >= 500, "500 messages of two members")
    records = [record for member in members for record in member.drain()]
    times = Counter(record["msgId"] for record in records)
    assert len(times) == 500
    assert max(times.values()) == 1
    wait_until(lambda: "Diff Total: 0" in progress(client, group), "no backlog")
    for member in members:
        member.stop()
    producer.stop()


def test_a_message_that_fails_comes_again(client: Client, topic: str, group: str) -> None:
    member = client.push(group, topic, body=True, outcome={"failTimes": 1, "delayLevel": 0}, options=POPS)
    producer = client.producer()
    producer.send(topic, "once more")
    member.wait(2, distinct=False, timeout_s=60)
    records = member.drain()
    assert [record["reconsumeTimes"] for record in records] == [0, 1]
    assert len({record["msgId"] for record in records}) == 1
    assert {record["topic"] for record in records} == {topic}
    assert 9_000 < records[1]["receivedAt"] - records[0]["receivedAt"] < 30_000
    member.stop()
    producer.stop()


def progress(client: Client, group: str) -> str:
    try:
        return client.mqadmin("consumerProgress", "-g", group)
    except Exception as error:
        return str(error)
