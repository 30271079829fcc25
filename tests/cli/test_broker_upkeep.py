"""``kerolox broker status``, ``settings``, ``drain``, ``undrain`` and ``expire`` against a broker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cli.serving import Cluster, running_cluster

CONF = "# settings of the shop\nfileReservedTime=48\n\n# never below 60\ndiskMaxUsedSpaceRatio=80\n"


@pytest.fixture(scope="module")
def conf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("conf") / "broker.conf"
    path.write_text(CONF)
    return path


@pytest.fixture(scope="module")
def cluster(conf: Path) -> Iterator[Cluster]:
    with running_cluster(config_path=str(conf)) as running:
        running.ok("topic", "create", "t", "--queues", "2")
        yield running


def test_status(cluster: Cluster) -> None:
    found = cluster.json("broker", "status")
    assert found["broker-a:0"]["brokerActive"] == "true"
    at = cluster.running.address
    assert cluster.json("broker", "status", "--address", at)[at].keys() == found["broker-a:0"].keys()
    assert "putTps" in cluster.ok("broker", "status", "--broker", "broker-a", "--id", "0")
    assert "Did you mean broker-a?" in cluster.error("broker", "status", "--broker", "broker-b")
    assert "broker broker-a has no id 3" in cluster.error(
        "broker", "status", "--broker", "broker-a", "--id", "3"
    )


def test_settings_change_at_run_time_and_keep_the_comments_of_the_file(cluster: Cluster, conf: Path) -> None:
    assert cluster.json("broker", "settings")["broker-a:0"]["brokerName"] == "broker-a"
    changed = cluster.json("broker", "settings", "--broker", "broker-a", "--set", "fileReservedTime=24")
    assert changed == {"broker-a:0": {"fileReservedTime": "24"}}
    assert conf.read_text() == CONF.replace("fileReservedTime=48", "fileReservedTime=24")
    assert cluster.json("broker", "settings", "reservedTime") == changed
    cluster.ok("broker", "settings", "--broker", "broker-a", "--set", "traceOn=false")
    assert conf.read_text().endswith("diskMaxUsedSpaceRatio=80\ntraceOn=false\n")


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["nothingLikeIt"], "has no setting 'nothingLikeIt'"),
        (["--set", "fileReservedTime=24"], "--broker NAME or --address"),
        (["--broker", "broker-a", "--set", "fileReservedTime"], "key=value"),
        (["--broker", "broker-a", "--set", "fileReservedTime=soon"], "a whole number"),
        (["--broker", "broker-a", "--set", "deleteWhen=25"], "hours from 00 to 23"),
        (
            ["--broker", "broker-a", "--set", "fileReservdTime=1"],
            "fileReservdTime is not one of its settings",
        ),
    ],
)
def test_settings_that_cannot_be(cluster: Cluster, words: list[str], says: str) -> None:
    assert says in cluster.error("broker", "settings", *words)


def test_drain_and_undrain(cluster: Cluster) -> None:
    def perms() -> set[int]:
        return {queue["perm"] for queue in cluster.json("topic", "route", "t")["queueDatas"]}

    assert perms() == {6}
    (drained,) = cluster.json("broker", "drain", "broker-a")
    assert drained["nameserver"] == cluster.address
    assert drained["topicsChanged"] > 0
    assert perms() == {4}
    assert "yes" in cluster.ok("broker", "undrain", "broker-a")
    assert perms() == {6}
    assert "broker 'broker-z' is not registered" in cluster.error("broker", "drain", "broker-z")


def test_expire(cluster: Cluster) -> None:
    (ordered,) = cluster.json("broker", "expire", "--broker", "broker-a")
    assert ordered == {"broker": "broker-a:0", "address": cluster.running.address, "ordered": True}
    assert "--address" in cluster.error("broker", "expire")
