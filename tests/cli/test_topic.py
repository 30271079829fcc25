"""``kerolox topic`` and ``kerolox cluster`` against a broker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from kerolox.cli.main import app
from tests.cli.serving import Cluster, running_cluster


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with running_cluster() as running:
        yield running


def test_create_update_delete(cluster: Cluster) -> None:
    made = cluster.json("topic", "create", "t1", "--queues", "4", "--attribute", "message.type=FIFO")
    assert made == [
        {"broker": "broker-a", "topic": "t1", "readQueues": 4, "writeQueues": 4, "perm": 6, "order": False}
    ]
    topics = cluster.running.broker.tables.topics
    assert topics.find("t1").attributes == {"message.type": "FIFO"}  # type: ignore[union-attr]
    assert "t1" in cluster.json("topic", "list")
    assert "topic t1 exists at broker-a. Change it with: kerolox topic update t1" in cluster.error(
        "topic", "create", "t1"
    )
    (changed,) = cluster.json("topic", "update", "t1", "--perm", "4", "--attribute", "-message.type")
    assert (changed["perm"], changed["writeQueues"]) == (4, 4)  # what is not named stays
    found = topics.find("t1")
    assert found is not None
    assert (found.perm, found.write_queue_nums, found.attributes) == (4, 4, {})
    (changed,) = cluster.json("topic", "update", "t1", "--queues", "2", "--read-queues", "4", "--order")
    assert (changed["writeQueues"], changed["readQueues"], changed["order"]) == (2, 4, True)
    assert cluster.ok("topic", "delete", "t1", "--yes") == "t1 was deleted\n"
    assert "t1" not in cluster.json("topic", "list")
    assert "topic 't1' does not exist" in cluster.error("topic", "delete", "t1", "--yes")
    assert "topic create" in cluster.error("topic", "update", "t1", "--perm", "6")


def test_list_shows_what_people_made(cluster: Cluster) -> None:
    cluster.ok("topic", "create", "mine")
    cluster.ok("group", "create", "g")
    everything = cluster.json("topic", "list", "--all")
    assert {"mine", "TBW102", "SCHEDULE_TOPIC_XXXX", "broker-a", "DefaultCluster", "rmq_sys_wheel_timer"} <= {
        *everything
    }
    out, errors = cluster.run("topic", "list")
    shown = [line.strip() for line in out.splitlines()[2:]]
    assert shown == cluster.json("topic", "list")
    assert "mine" in shown
    assert not {"TBW102", "SCHEDULE_TOPIC_XXXX", "broker-a", "DefaultCluster"} & {*shown}
    assert f"{len(everything) - len(shown)} system, retry and dead-letter topics" in errors
    cluster.ok("topic", "delete", "mine", "--yes")


def test_completion_knows_topics_and_groups(cluster: Cluster) -> None:
    cluster.ok("topic", "create", "orders-eu")
    cluster.ok("topic", "create", "orders-us")
    cluster.ok("group", "create", "billing")

    def completed(*words: str, at: str = "") -> list[str]:
        environment = {
            "_KEROLOX_COMPLETE": "complete_bash",
            "COMP_WORDS": " ".join(words),
            "COMP_CWORD": str(len(words) - 1),
            "NAMESRV_ADDR": at or cluster.address,
        }
        return CliRunner().invoke(app, prog_name="kerolox", env=environment).stdout.split()

    assert completed("kerolox", "tail", "ord") == ["orders-eu", "orders-us"]
    assert completed("kerolox", "topic", "route", "orders-e") == ["orders-eu"]
    assert completed("kerolox", "topic", "route", "TBW") == ["TBW102"]
    assert completed("kerolox", "group", "reset", "bil") == ["billing"]
    assert completed("kerolox", "group", "reset", "billing", "orders-u") == ["orders-us"]
    assert completed("kerolox", "group", "reset", "bil", at="127.0.0.1:1") == []  # nobody answers
    for topic in ("orders-eu", "orders-us"):
        cluster.ok("topic", "delete", topic, "--yes")


def test_delete_asks_first(cluster: Cluster) -> None:
    cluster.ok("topic", "create", "precious")
    cluster.run("topic", "delete", "precious", stdin="n\n", fails=True)
    assert "precious" in cluster.json("topic", "list")
    cluster.ok("topic", "delete", "precious", stdin="y\n")
    assert "precious" not in cluster.json("topic", "list")


def test_errors(cluster: Cluster) -> None:
    assert "INVALID_PARAMETER" in cluster.error("topic", "create", "no good")
    assert "cluster 'c9' does not exist. Registered: DefaultCluster" in cluster.error(
        "topic", "create", "t", "--cluster", "c9"
    )
    assert "Registered: broker-a" in cluster.error("topic", "create", "t", "--broker", "b9")


def test_stats(cluster: Cluster) -> None:
    cluster.ok("topic", "create", "counted", "--queues", "2")
    cluster.ok("send", "counted", "a", "b", "c", "--queue", "1")
    first, second = cluster.json("topic", "stats", "counted")
    assert (first["messages"], first["lastStoreTime"]) == (0, None)
    assert (second["queueId"], second["minOffset"], second["maxOffset"]) == (1, 0, 3)
    assert second["lastStoreTime"] > 1_700_000_000_000
    assert cluster.ok("topic", "stats", "counted").splitlines()[2].split() == ["broker-a", "0", "0", "0", "0"]


def test_cluster_list_shows_figures(cluster: Cluster) -> None:
    (broker,) = cluster.json("cluster", "list")
    assert (broker["version"], broker["active"]) == ("V5_5_0", True)
    assert 0 < broker["diskUsed"] <= 1
    before = broker["inToday"]
    cluster.ok("topic", "create", "figures")
    cluster.ok("send", "figures", "a", "b")
    cluster.ok("send", "BenchmarkTest", "c")  # a system topic: not counted, as with RocketMQ
    assert cluster.json("cluster", "list")[0]["inToday"] == before + 2
    assert "V5_5_0" in cluster.ok("cluster", "list")
