"""Messages that cannot be consumed: they come again, later each time, and end as dead letters."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from .client import Client, Push, Record, body, wait_until
from .cluster import Broker, Cluster

Unique = Callable[[str], str]

# Attempts wait at levels 3, 4, 5, ...; longer each time, as in the usual table.
LEVELS = "1s 4s 1s 2s 3s 1s 1s 1s"


@pytest.fixture(scope="module")
def hasty(cluster: Cluster) -> Iterator[Broker]:
    """A broker whose delays are short."""
    made = cluster.new_broker(
        "broker-hasty", cluster="HastyCluster", properties={"messageDelayLevel": LEVELS}
    )
    yield made
    made.finish()


@pytest.fixture
def topic(cluster: Cluster, hasty: Broker, client: Client, unique: Unique) -> str:
    return cluster.create_topic(client.driver, unique("topic"), 2, broker=hasty)


@pytest.fixture
def group(cluster: Cluster, hasty: Broker, client: Client, unique: Unique) -> str:
    """A group whose retry topic is there already: else it may take a client half a minute to see it."""
    name = unique("group")
    cluster.create_topic(client.driver, f"%RETRY%{name}", 1, broker=hasty)
    return name


def dlq(client: Client, *args: str, fails: bool = False) -> Any:
    """Our own commands, against either cluster."""
    ran = subprocess.run(
        [sys.executable, "-m", "kerolox", "dlq", *args, "-n", client.nameserver, "--json"],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert (ran.returncode != 0) == fails, ran.stderr
    return json.loads(ran.stdout)


def dead(client: Client, group: str, count: int = 1) -> list[dict[str, Any]]:
    """Wait for so many dead letters of a group."""
    found: list[dict[str, Any]] = []

    def there() -> bool:
        known = [row for row in dlq(client, "list") if row["group"] == group]
        if not known or known[0]["messages"] < count:
            return False
        found[:] = dlq(client, "show", group)["messages"]
        return len(found) >= count

    wait_until(there, f"{count} dead letters of {group}")
    return found


def fail(push: Push, times: int, **how: Any) -> None:
    """From now on the first so many deliveries of every message fail."""
    push.do("push.outcome", failTimes=times, **how)


def times(records: list[Record]) -> list[int]:
    return [record["reconsumeTimes"] for record in records]


def test_a_message_that_fails_comes_again_later_each_time(client: Client, topic: str, group: str) -> None:
    push = client.push(group, topic, body=True, outcome={"failTimes": 3})
    sent = client.producer().send(topic, "try me", tags="A", keys="k1", properties={"colour": "red"})
    records = push.take(1) if push.wait(4, distinct=False) else []
    assert times(records) == [0, 1, 2, 3]
    for before, after, delay_s in zip(records, records[1:], (1, 2, 3), strict=False):
        waited_s = (after["receivedAt"] - before["receivedAt"]) / 1000
        assert delay_s - 0.1 <= waited_s <= delay_s + 2.5
    first = records[0]
    for attempt, again in enumerate(records[1:]):
        assert (again["topic"], again["msgId"], body(again)) == (topic, first["msgId"], b"try me")
        assert (again["keys"], again["tags"], again["bornTimestamp"]) == ("k1", "A", first["bornTimestamp"])
        expected = {
            **first["properties"],
            "RETRY_TOPIC": topic,
            "ORIGIN_MESSAGE_ID": sent["offsetMsgId"],
            "DELAY": str(3 + attempt),
            "REAL_TOPIC": f"%RETRY%{group}",
            "REAL_QID": "0",
            "WAIT": "false",
        }
        seen = again["properties"]
        for of_the_delivery in ("MIN_OFFSET", "MAX_OFFSET", "CONSUME_START_TIME"):
            expected.pop(of_the_delivery, None)
            seen.pop(of_the_delivery, None)
        assert seen == expected
    push.stop()


def test_enough_attempts_make_a_dead_letter_that_can_be_sent_again(
    client: Client, topic: str, unique: Unique
) -> None:
    group = unique("group")
    push = client.push(group, topic, body=True, options={"maxReconsumeTimes": 1}, outcome={"failTimes": 100})
    sent = client.producer().send(topic, "hopeless", keys="k1", properties={"colour": "red"})
    push.wait(2, distinct=False)
    (letter,) = dead(client, group)
    assert times(push.drain()) == [0, 1]
    assert (letter["originTopic"], letter["body"], letter["keys"]) == (topic, "hopeless", ["k1"])
    assert (letter["messageId"], letter["reconsumeTimes"]) == (sent["msgId"], 2)
    properties = letter["properties"]
    assert (properties["RETRY_TOPIC"], properties["ORIGIN_MESSAGE_ID"]) == (topic, sent["offsetMsgId"])
    assert (properties["DELAY"], properties["WAIT"], properties["colour"]) == ("0", "false", "red")
    (row,) = [row for row in dlq(client, "list") if row["group"] == group]
    assert (row["messages"], row["oldest"], row["newest"]) == (1, letter["storeTime"], letter["storeTime"])

    fail(push, 0)
    assert dlq(client, "resend", group, "--all", "--dry-run")["resent"] == 1
    assert dlq(client, "resend", group, "--all")["resent"] == 1
    push.wait(3, distinct=False)
    (again,) = push.drain()
    assert (again["topic"], again["msgId"], again["reconsumeTimes"]) == (topic, sent["msgId"], 0)
    assert (body(again), again["keys"], again["properties"]["colour"]) == (b"hopeless", "k1", "red")
    second = dlq(client, "resend", group, "--all")
    assert (second["resent"], second["passedOver"]) == (0, 1)

    assert dlq(client, "resend", group, "--all", "--to-retry")["resent"] == 1
    push.wait(4, distinct=False)
    (again,) = push.drain()
    assert (again["topic"], again["reconsumeTimes"]) == (topic, 0)
    push.stop()


def test_a_consumer_may_choose_when_it_comes_again_or_that_it_does_not(
    client: Client, topic: str, group: str
) -> None:
    push = client.push(group, topic, outcome={"failTimes": 1, "delayLevel": 2})
    client.producer().send(topic, "later")
    push.wait(2, distinct=False)
    first, second = push.drain()
    assert 3.9 <= (second["receivedAt"] - first["receivedAt"]) / 1000 <= 6.5
    assert second["properties"]["DELAY"] == "2"
    fail(push, 1, delayLevel=-1)
    client.producer().send(topic, "never")
    (letter,) = dead(client, group)
    assert (letter["body"], letter["reconsumeTimes"]) == ("never", 1)
    push.stop()


def test_what_a_consumer_in_order_gives_up_it_sends_itself(
    cluster: Cluster, client: Client, topic: str, unique: Unique
) -> None:
    """The client sends it to the retry topic, and the broker knows what to do with it."""
    group = unique("group")
    push = client.push(
        group,
        topic,
        orderly=True,
        options={"maxReconsumeTimes": 1, "suspendCurrentQueueTimeMillis": 100},
        outcome={"failTimes": 100},
    )
    sent = client.producer().send(topic, "in order", keys="k1")
    (letter,) = dead(client, group)
    assert (letter["originTopic"], letter["body"], letter["keys"]) == (topic, "in order", ["k1"])
    # The client gives it a new unique key, and keeps the old id as its origin.
    assert letter["properties"]["ORIGIN_MESSAGE_ID"] in (sent["msgId"], sent["offsetMsgId"])
    # Apache's 4.9 leaves the client's delay in the properties, and does not wait for it either.
    assert letter["properties"]["DELAY"] == ("4" if cluster.is_apache_4 else "-1")
    fail(push, 0)
    before = push.count()
    assert dlq(client, "resend", group, "--id", letter["offsetMessageId"])["resent"] == 1
    wait_until(lambda: push.count() > before, "the dead letter is consumed")
    push.stop()


def test_what_cannot_be_given_back_the_client_sends_itself(
    cluster: Cluster, client: Client, topic: str, group: str, hasty: Broker
) -> None:
    push = client.push(group, topic, body=True, options={"maxReconsumeTimes": 2})

    def give_back(text: str, times: int) -> None:
        # Nothing lies there, so the broker refuses.
        push.do(
            "push.giveBack",
            topic=topic,
            text=text,
            keys="k1",
            msgId="AB" * 16,
            commitLogOffset=1 << 40,
            reconsumeTimes=times,
            delayLevel=0,
            broker=hasty.address,
            brokerName=hasty.name,
        )

    give_back("once more", 0)
    (again,) = push.take(1)
    assert (again["topic"], body(again), again["keys"], again["reconsumeTimes"]) == (
        topic,
        b"once more",
        "k1",
        1,
    )
    # 4.9's client loses the origin on the way: it notes it, then puts all properties in its place.
    origin = None if client.driver.jars.is_4x else "AB" * 16
    assert (again["properties"].get("ORIGIN_MESSAGE_ID"), again["properties"]["DELAY"]) == (origin, "3")
    give_back("too often", 2)
    (letter,) = dead(client, group)
    assert (letter["originTopic"], letter["body"], letter["reconsumeTimes"]) == (topic, "too often", 3)
    assert letter["properties"]["DELAY"] == ("5" if cluster.is_apache_4 else "-1")
    push.stop()
