"""Topics of Apache's broker archived, and its own tools see how far the archive is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

pytest.importorskip("pyspark")

from kerolox.blocking import Producer
from kerolox.client.messages import Message
from kerolox.client.sockets.socket_cluster import SocketCluster
from tests.pipeline.archiving import archive, bodies

from .driver import JavaDriver
from .processes import JavaBroker, JavaNameServer


@pytest.mark.parametrize("kind", ["parquet", "delta"])
def test_every_message_is_archived_once(
    kind: str,
    java_driver: JavaDriver,
    java_nameserver: JavaNameServer,
    java_broker: JavaBroker,
    unique: Callable[[str], str],
    tmp_path: Path,
) -> None:
    topic, where = unique("topic"), java_nameserver.address
    java_driver.create_topic(where, java_broker.address, topic, 4)
    sent: list[str] = []
    with Producer(where, group=unique("sender")) as producer:
        for count in (200, 0, 70):
            fresh = [f"{len(sent) + number} {'x' * (number % 7 * 1000)}" for number in range(count)]
            producer.send_many([Message(topic, body, tags="t", keys=f"k{body[:3]}") for body in fresh])
            sent += fresh
            told = archive(tmp_path, where, topic, kind=kind, round_rows=90)
            assert (told.rows, told.missing) == (count, 0)
    assert sorted(bodies(tmp_path, kind).elements()) == sorted(body.encode() for body in sent)
    with SocketCluster(where) as cluster:
        queues = cluster.route(topic).readable
        ends = {queue: edges.end for queue, edges in cluster.edges(queues).items()}
        assert cluster.all_committed(queues, "archive") == ends
