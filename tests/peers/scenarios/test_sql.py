"""A consumer gets what its condition takes, at Apache's brokers and at ours."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ..driver import JavaError
from .client import Client, Record
from .cluster import Cluster

Unique = Callable[[str], str]

COUNT = 60
# Which of the messages below each takes.
CONDITIONS: dict[str, Callable[[int], bool]] = {
    "n > 49": lambda n: n > 49,
    "n BETWEEN 10 AND 19 AND region = 'hz'": lambda n: 10 <= n <= 19 and n % 3 == 0,
    "region IN ('bj', 'sh') OR n = 3": lambda n: n % 3 > 0 or n == 3,
    "fresh IS NOT NULL AND NOT (n < 30)": lambda n: n % 5 == 0 and n >= 30,
    "fresh = TRUE": lambda n: n % 5 == 0,
    "price >= 25.5 AND price < 27.0": lambda n: 25.5 <= n / 2 < 27,
    "note CONTAINS 'ß' AND note ENDSWITH '7'": lambda n: n % 10 == 7,
    "TAGS = 'even' AND n <> 0": lambda n: n % 2 == 0 and n != 0,
}


def numbers(records: list[Record]) -> list[int]:
    return sorted(int(record["properties"]["n"]) for record in records)


def properties(number: int) -> dict[str, str]:
    fresh = {"fresh": "true"} if number % 5 == 0 else {}
    region = ("hz", "bj", "sh")[number % 3]
    return {
        "n": str(number), "region": region, "price": str(number / 2), "note": f"größe {number}", **fresh,
    }  # fmt: skip


def test_only_what_the_condition_takes(cluster: Cluster, client: Client, unique: Unique) -> None:
    if cluster.is_apache_4:
        pytest.skip("4.9 knows no CONTAINS")
    topic = cluster.create_topic(client.driver, unique("topic"))
    producer = client.producer(unique("pid"))
    consumers = {
        condition: client.push(unique("group"), topic, condition, type="SQL92") for condition in CONDITIONS
    }
    everything = client.push(unique("group"), topic, "TRUE", type="SQL92")
    for number in range(COUNT):
        tag = "even" if number % 2 == 0 else "odd"
        producer.send(topic, f"{number}", tags=tag, properties=properties(number))
    assert numbers(everything.take(COUNT)) == list(range(COUNT))
    for condition, takes in CONDITIONS.items():
        wanted = [number for number in range(COUNT) if takes(number)]
        assert wanted
        assert numbers(consumers[condition].take(len(wanted))) == wanted, condition
    # The last one is taken by all, and comes at once to those that waited through others.
    last = {"n": "1000", "region": "bj", "fresh": "true", "price": "26", "note": "ß7"}
    producer.send(topic, "last", tags="even", properties=last)
    for condition, takes in CONDITIONS.items():
        if "BETWEEN" not in condition:
            before = sum(map(takes, range(COUNT)))
            assert numbers(consumers[condition].take(before + 1)) == [1000], condition


@pytest.mark.parametrize("condition", ["n >", "n > 'x'", "n = NULL", "n BETWEEN 5 AND 1", "5"])
def test_a_broken_condition_is_refused_at_the_start(
    cluster: Cluster, client: Client, unique: Unique, condition: str
) -> None:
    topic = cluster.create_topic(client.driver, unique("topic"))
    with pytest.raises(JavaError) as caught:
        client.push(unique("group"), topic, condition, type="SQL92")
    assert caught.value.code == 23
    if cluster.kind != "apache" or condition == "n >":
        assert "line 1, column" in caught.value.message
