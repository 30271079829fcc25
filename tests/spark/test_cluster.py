"""The same commands on a cluster: processes that have nothing of ours but what is sent to them.

The archive is part of the gate, although it takes a while: shipping is what breaks unseen, since everything
else runs where the package is installed. The audit is sent the same way, and is tested with the long ones.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from kerolox.blocking import Producer
from kerolox.client.messages import Message, Receipt
from kerolox.client.sockets.socket_cluster import SocketCluster
from kerolox.spark import shipping
from kerolox.spark.java import find_java
from kerolox.spark.shipping import ExecutorsLack, Shipment, check_driver, check_executors
from kerolox.testing.process import broker_process
from kerolox.testing.threads import BrokerThread
from tests.pipeline.archiving import bodies
from tests.pipeline.replaying import archive, message
from tests.rig.s3_server import s3_server

from .standalone import bare_python, driver_settings, spark_cluster

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Send = Callable[[Sequence[Message]], list[Receipt]]

# Minutes, with the start of master and workers: told by make spark, not by the gate.
pytestmark = [pytest.mark.xdist_group("spark"), pytest.mark.timeout(600), pytest.mark.long]


class Cluster(NamedTuple):
    address: str
    python: Path  # of executors
    settings: Path

    def run(self, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
        """A command of ours, with this cluster as its master."""
        about = {"PYSPARK_PYTHON": str(self.python), "SPARK_CONF_DIR": str(self.settings)}
        return subprocess.run(
            [sys.executable, "-m", "kerolox", *words, "--master", self.address],
            env={**os.environ, **about, "SPARK_LOCAL_IP": "127.0.0.1", **variables},
            capture_output=True, text=True, timeout=500,
        )  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if not find_java().has_vector_module:
        pytest.skip("executors are started by Spark's own scripts, which need a complete JDK")
    folder = tmp_path_factory.mktemp("cluster")
    with spark_cluster(folder) as address:
        yield Cluster(address, bare_python(folder), driver_settings(folder))


def test_executors_have_nothing_of_ours(cluster: Cluster) -> None:
    for name, there in (("pyarrow", True), ("kerolox", False), ("msgspec", False)):
        done = subprocess.run([cluster.python, "-c", f"import {name}"], capture_output=True, check=False)
        assert (done.returncode == 0) == there, (name, done.stderr)


def test_an_archive_by_a_cluster(
    cluster: Cluster, broker: BrokerThread, new_topic: Callable[..., str], send: Send, tmp_path: Path
) -> None:
    topics = [new_topic(), new_topic()]
    sent = [Message(topic, f"{topic} {number}") for topic in topics for number in range(200)]
    send(sent)
    done = cluster.run(
        "pipeline", "archive", "-n", broker.nameserver_address, "-t", ",".join(topics), "--to", str(tmp_path),
        "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert {name: topic["messages"] for name, topic in told["topics"].items()} == dict.fromkeys(topics, 200)
    assert sorted(bodies(tmp_path).elements()) == sorted(message.body_bytes() for message in sent)


def test_an_audit_by_a_cluster(cluster: Cluster, tmp_path: Path) -> None:
    with broker_process(directory=tmp_path / "data") as broker:
        with Producer(broker.nameserver_address, group="cluster") as producer:
            producer.send_many([Message("audited", str(number)) for number in range(100)])
        (store,) = [path.parent for path in (tmp_path / "data").rglob("commitlog")]
        done = cluster.run("pipeline", "audit", str(store), "--to", str(tmp_path / "report"), "--json")
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert json.loads(done.stdout)["problems"] == 0
    assert (tmp_path / "report" / "report.html").exists()


def test_a_replay_by_a_cluster(
    cluster: Cluster, broker: BrokerThread, new_topic: Callable[..., str], tmp_path: Path
) -> None:
    rows = [message(queue, offset) for queue in range(3) for offset in range(100)]
    topic = new_topic()
    done = cluster.run(
        "pipeline", "replay", archive(tmp_path / "a", rows), "-n", broker.nameserver_address, "--to-topic",
        topic, "--state", str(tmp_path / "state"), "--json",
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert (told["sent"], told["complete"]) == (300, True)
    with SocketCluster(broker.nameserver_address) as plain:
        for queue in plain.route(topic).readable:
            part = [m.body for m in plain.read(queue, 0, plain.max_offset(queue), group="TOOLS_CONSUMER")]
            assert part == [row["body"] for row in rows if row["queue_id"] == queue.queue_id]


def test_without_what_is_shipped_it_is_said_what_to_do(
    cluster: Cluster, broker: BrokerThread, topic: str, tmp_path: Path
) -> None:
    words = ["pipeline", "archive", "-n", broker.nameserver_address, "-t", topic, "--to", str(tmp_path)]
    done = cluster.run(*words, KEROLOX_SHIP="0")
    assert done.returncode == 1
    assert "cannot import kerolox" in done.stderr
    assert "install kerolox there" in done.stderr


def test_without_the_driver_of_an_address_it_is_said_what_to_do(
    cluster: Cluster, broker: BrokerThread, topic: str
) -> None:
    with s3_server() as server:
        address = f"{server.bucket()}/archive"
        words = ["pipeline", "archive", "-n", broker.nameserver_address, "-t", topic, "--to", address]
        done = cluster.run(*words, **server.environment)
    assert done.returncode == 1
    assert f"tasks read and write {address}" in done.stderr
    assert "cannot import s3fs" in done.stderr
    assert "pip install s3fs" in done.stderr


def test_what_is_shipped() -> None:
    import zipfile

    shipment = Shipment()
    names = set(zipfile.ZipFile(shipment.path).namelist())
    assert {"kerolox/__init__.py", "kerolox/spark/source/reading.py", "pyspark_rocketmq.py"} <= names
    assert any(name.startswith("msgspec/_core.") for name in names)
    assert "fsspec/core.py" in names
    assert not any("__pycache__" in name for name in names)
    settings = shipment.settings({"spark.archives": "a.zip#a", "spark.executorEnv.PYTHONPATH": "x"})
    assert settings == {
        "spark.archives": f"a.zip#a,{shipment.path}#kerolox_parts",
        "spark.executorEnv.PYTHONPATH": os.pathsep.join(("x", "kerolox_parts")),
    }
    shipment.close()
    assert not shipment.path.exists()


def test_what_executors_lack_is_said(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    check_executors(spark)
    monkeypatch.setattr(shipping, "NEEDED", ("numpy", "no_such_package"))
    with pytest.raises(ExecutorsLack, match="cannot import no_such_package") as caught:
        check_executors(spark)
    assert "pip install numpy pyarrow" in str(caught.value)


def test_executors_without_the_driver_of_an_address(spark: SparkSession) -> None:
    check_driver(spark.sparkContext, "s3://lake/a", "s3fs", "s3")
    with pytest.raises(ExecutorsLack, match="cannot import no_such_driver") as caught:
        check_driver(spark.sparkContext, "s3://lake/a", "no_such_driver", "s3")
    assert "tasks read and write s3://lake/a" in str(caught.value)
    assert "pip install no_such_driver (pip install 'kerolox[s3]' brings it)" in str(caught.value)
