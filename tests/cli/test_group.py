"""``kerolox group`` against a broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from kerolox.net.dialer import Dialer
from tests.broker.talk import Talk, subscribed
from tests.cli.serving import Cluster, running_cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as running:
        running.ok("topic", "create", "t", "--queues", "2")
        running.ok("send", "t", "a", "b", "c", "--queue", "0")
        yield running


def test_create_list_delete(cluster: Cluster) -> None:
    assert (
        cluster.ok("group", "create", "made", "--retries", "3", "--no-consume")
        == "made was created at broker-a\n"
    )
    rows = {row["group"]: row for row in cluster.json("group", "list")}
    assert rows["made"] == {
        "group": "made",
        "brokers": ["broker-a"],
        "consumeEnabled": False,
        "orderly": False,
        "retryMax": 3,
        "disabled": {},
    }
    assert "TOOLS_CONSUMER" in rows
    assert ["made", "1", "no", "no", "3"] in [
        line.split() for line in cluster.ok("group", "list").splitlines()
    ]
    assert cluster.ok("group", "delete", "made", "--yes") == "made was deleted\n"
    assert "made" not in {row["group"] for row in cluster.json("group", "list")}
    assert "INVALID_PARAMETER" in cluster.error("group", "create", "no good")


def test_a_group_that_exists_is_not_reset_by_create(cluster: Cluster) -> None:
    cluster.ok("group", "create", "kept", "--retries", "3", "--no-consume")
    assert "exists at broker-a" in cluster.error("group", "create", "kept")
    cluster.ok("group", "update", "kept", "--retries", "5")
    row = {row["group"]: row for row in cluster.json("group", "list")}["kept"]
    assert (row["retryMax"], row["consumeEnabled"]) == (5, False)
    assert "group 'none' does not exist" in cluster.error("group", "update", "none", "--retries", "5")
    assert "at least one setting" in cluster.error("group", "update", "kept")


def test_lag_of_all_groups_and_the_consumers_of_a_topic(cluster: Cluster) -> None:
    cluster.ok("group", "create", "all-1")
    cluster.ok("group", "create", "all-2")
    cluster.ok("group", "reset", "all-1", "t", "--to", "earliest", "--yes")
    found = cluster.json("group", "lag")
    (row,) = [row for row in found["groups"] if row["group"] == "all-1" and row["topic"] == "t"]
    assert (row["queues"], row["lag"]) == (2, 3)
    assert "all-2" in found["withoutProgress"]
    assert "all-1" in cluster.ok("group", "lag", "--topic", "t")
    consumers = {row["group"]: row for row in cluster.json("topic", "consumers", "t")}
    assert consumers["all-1"] == {"group": "all-1", "members": 0, "lag": 3}
    assert "all-2" not in consumers
    assert "topic 'u' does not exist" in cluster.error("topic", "consumers", "u")


def test_reset_and_lag(cluster: Cluster) -> None:
    cluster.ok("group", "create", "g")
    moved = cluster.json("group", "reset", "g", "t", "--to", "earliest", "--yes")
    assert moved == [
        {"broker": "broker-a", "queueId": 0, "offset": 0},
        {"broker": "broker-a", "queueId": 1, "offset": 0},
    ]
    found = cluster.json("group", "lag", "g")
    assert found["lag"] == 3
    assert [queue["lag"] for queue in found["queues"]] == [3, 0]
    assert "group g is 3 messages behind" in cluster.ok("group", "lag", "g")
    assert cluster.json("group", "lag", "g", "--topic", "TBW102")["queues"] != found["queues"]
    cluster.ok("group", "reset", "g", "t", "--to", "latest", stdin="y\n")
    found = cluster.json("group", "lag", "g")
    assert found["lag"] == 0
    assert found["queues"][0]["lastConsumedStoreTime"] > 1_700_000_000_000
    (first, _) = cluster.json("group", "reset", "g", "t", "--to", "1h", "--yes")
    assert first["offset"] == 0
    cluster.run("group", "reset", "g", "t", "--to", "latest", stdin="n\n", fails=True)
    assert cluster.json("group", "lag", "g")["lag"] == 3
    assert "--to = 'soon'" in cluster.error("group", "reset", "g", "t", "--to", "soon", "--yes")


def test_members(cluster: Cluster) -> None:
    async def join() -> Dialer:
        dialer = Dialer()
        await Talk(dialer, cluster.running).heartbeat("m", subscribed("t", "a||b"))
        return dialer

    dialer = cluster.on_loop(join)
    found = cluster.json("group", "members", "m")
    (member,) = found["members"]
    assert (member["clientId"], member["version"], member["brokers"]) == ("client-1", "V5_5_0", ["broker-a"])
    assert found["subscriptions"] == {"t": "a||b"}
    assert (found["model"], found["type"]) == ("CLUSTERING", "CONSUME_PASSIVELY")
    assert "client-1" in cluster.ok("group", "members", "m")
    cluster.on_loop(dialer.close)


def test_enable_and_disable(cluster: Cluster) -> None:
    cluster.ok("group", "create", "switched", "--retries", "5")
    assert cluster.ok("group", "disable", "switched") == "switched may not consume at broker-a\n"
    row = {row["group"]: row for row in cluster.json("group", "list")}["switched"]
    assert (row["consumeEnabled"], row["retryMax"], row["disabled"]) == (False, 5, {})
    assert cluster.json("group", "enable", "switched") == {
        "group": "switched",
        "consumeEnabled": True,
        "brokers": ["broker-a"],
        "changed": ["broker-a"],
    }
    row = {row["group"]: row for row in cluster.json("group", "list")}["switched"]
    assert (row["consumeEnabled"], row["retryMax"]) == (True, 5)
    assert "group 'unknown' does not exist" in cluster.error("group", "enable", "unknown")
