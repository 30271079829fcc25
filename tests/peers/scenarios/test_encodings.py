"""Clients that speak TLS, clients that write headers in binary, and plain ones, all on one port."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ..conftest import Factory
from ..driver import JavaDriver
from .client import Client, body, together
from .cluster import Certificate, Cluster

Unique = Callable[[str], str]


@pytest.fixture(scope="session")
def tls_driver(java_session: Factory, certificate: Certificate) -> JavaDriver:
    """Trusts nobody but the authority of the cluster's certificate."""
    return java_session.driver(system=certificate.client_settings)


def meet(cluster: Cluster, here: Client, there: Client, unique: Unique) -> None:
    """Each makes a topic, sends what the other consumes, and looks for a message."""

    def one_way(sender: Client, receiver: Client) -> None:
        topic = cluster.create_topic(sender.driver, unique("topic"))
        consumer = receiver.push(unique("group"), topic, body=True, orderly=sender is here)
        producer = sender.producer(unique("pid"))
        first = producer.send(topic, "größer", keys="anchor", tags="T", properties={"a": "\u4f60\u597d"})
        producer.send_many(topic, 50, size=5000, threads=2)
        producer.send_batch([{"topic": topic, "text": f"batch {n}"} for n in range(10)])
        records = consumer.take(61)
        texts = [body(record).decode().rstrip(".") for record in records]
        assert sorted(texts) == sorted(
            ["größer", *(str(n) for n in range(50)), *(f"batch {n}" for n in range(10))]
        )
        (marked,) = [record for record in records if record["tags"] == "T"]
        assert marked["properties"]["a"] == "\u4f60\u597d"
        found = sender.admin().do("query.byId", topic=topic, msgId=first["offsetMsgId"])
        assert found["msgId"] == first["msgId"]
        assert cluster.broker.address in sender.mqadmin("clusterList")

    together(lambda: one_way(here, there), lambda: one_way(there, here))


def test_binary_headers(
    cluster: Cluster, client: Client, java_driver_binary: JavaDriver, unique: Unique
) -> None:
    meet(cluster, client, Client(java_driver_binary, cluster.nameserver, cluster.kind), unique)


def test_tls(cluster: Cluster, client: Client, tls_driver: JavaDriver, unique: Unique) -> None:
    try:
        meet(cluster, client, Client(tls_driver, cluster.nameserver, cluster.kind), unique)
    finally:
        tls_driver.call("stopAll")
