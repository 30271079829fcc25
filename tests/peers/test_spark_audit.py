"""An audit of a directory Apache's broker writes: it finds nothing wrong, and the transaction left open."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kerolox.clock import SYSTEM_CLOCK
from kerolox.testing.clock import ManualClock

from .conftest import Factory
from .driver import JavaDriver
from .processes import JavaNameServer
from .test_spark_store import spark  # noqa: F401
from .test_store import Peer

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ENDED = ("RMQ_SYS_TRANS_OP_HALF_TOPIC", 0)


def test_a_directory_of_apaches_broker_has_no_problem(
    java: Factory,
    java_driver: JavaDriver,
    java_nameserver: JavaNameServer,
    unique: Callable[[str], str],
    spark: SparkSession,  # noqa: F811
    tmp_path: Path,
) -> None:
    pytest.importorskip("pyarrow")
    from kerolox.pipeline.audit.audit import audit
    from kerolox.pipeline.runner import OnSpark

    peer = Peer(java, java_driver, java_nameserver.address, unique("broker"))
    peer.broker.start()
    topics = ((unique("topic"), 4), (unique("other"), 2))
    for topic, queues in topics:
        java_driver.create_topic(java_nameserver.address, peer.broker.address, topic, queues)
    sent = peer.send(topics, unique("group"), 0, 1000)
    for state in ("COMMIT_MESSAGE", "ROLLBACK_MESSAGE"):
        told = {"local": state, "check": state}
        producer = java_driver.call(
            "producer.start", group=unique("ending"), namesrv=java_nameserver.address, transaction=told
        )
        message = {"topic": topics[0][0], "text": state, "keys": state}
        java_driver.call("producer.sendTransaction", handle=producer, message=message)
        java_driver.call("shutdown", handle=producer)
    peer.view.wait_max(ENDED, 1)
    now = ManualClock(SYSTEM_CLOCK.wall_ms())
    running = audit(OnSpark(spark.sparkContext), [peer.store], tmp_path / "report", clock=now)
    assert running.problems == 0, running.findings.rows
    assert (running.halves, running.halves_young) == (3, 1)
    peer.broker.stop()
    made = audit(OnSpark(spark.sparkContext), [peer.store], tmp_path / "report", clock=now)
    assert made.problems == 0, made.findings.rows
    counted = {row["topic"]: row["messages"] for row in made.topics}
    assert sum(counted[topic] for topic, _ in topics) == sent + 1
    later = ManualClock(now.wall_ms() + 3_600_000)
    hour = audit(OnSpark(spark.sparkContext), [peer.store], tmp_path / "report", clock=later)
    (half,) = (row for rows in hour.findings.rows.values() for row in rows if not row["note"])
    assert half["topic"] == topics[0][0]
    assert half["producer_group"].endswith("t")
    assert 3600 <= half["age_s"] < 4200
