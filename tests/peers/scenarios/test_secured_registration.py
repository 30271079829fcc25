"""Our broker speaks TLS to its name server, whichever kind that is."""

from __future__ import annotations

from collections.abc import Callable

from .client import Client
from .cluster import Cluster

Unique = Callable[[str], str]


def test_our_broker_registers_over_tls(cluster: Cluster, client: Client, unique: Unique) -> None:
    settings = {"useTLS": True, "tls.client.trustCertPath": cluster.certificate.authority}
    broker = cluster.new_broker("broker-tls", kind="ours", cluster="TlsCluster", properties=settings)
    assert broker.address in client.mqadmin("clusterList")
    topic = cluster.create_topic(client.driver, unique("topic"), 1, broker=broker)
    assert client.producer(unique("pid")).send(topic, "x")["status"] == "SEND_OK"
    broker.stop()
    assert broker.address not in client.mqadmin("clusterList")
