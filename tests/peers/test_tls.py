"""A Java client that speaks TLS, and servers of ours that nobody gave a certificate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kerolox.net.self_signed import NAME

from .conftest import Factory
from .ours import OurBroker, OurNameServer
from .scenarios.client import Client


@pytest.fixture
def nameserver(tmp_path: Path) -> Iterator[OurNameServer]:
    conf = tmp_path / "namesrv.conf"
    conf.write_text(f"kvConfigPath={tmp_path / 'ns' / 'kvConfig.json'}\n")
    made = OurNameServer(tmp_path / "ns", options=["-c", str(conf)])
    made.start()
    yield made
    made.kill()


def test_a_tls_client_out_of_the_box(
    java: Factory, nameserver: OurNameServer, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    broker = OurBroker(tmp_path / "broker", nameserver.address)
    try:
        broker.start()
        driver = java.driver(system={"tls.enable": "true"})
        client = Client(driver, nameserver.address, "ours")
        topic = unique("topic")
        driver.create_topic(nameserver.address, broker.address, topic, 2)
        consumer = client.push(unique("group"), topic, body=True)
        client.producer(unique("pid")).send_many(topic, 20, size=5000, threads=2)
        assert len(consumer.take(20)) == 20
        assert broker.address in client.mqadmin("clusterList")
        for folder in ("ns", "broker"):  # both were asked for TLS, and made a certificate
            (kept,) = (tmp_path / folder).rglob(NAME)
            assert kept.stat().st_mode & 0o777 == 0o600
            log = (tmp_path / folder / "stderr.log").read_text()
            assert log.count("tls_self_signed_made") == 1
        driver.call("stopAll")
    finally:
        broker.kill()


def test_apaches_broker_registers_over_tls(java: Factory, nameserver: OurNameServer, tmp_path: Path) -> None:
    java.broker(nameserver.address, properties={"useTLS": True})  # waits until it is registered
    assert len(list((tmp_path / "ns").rglob(NAME))) == 1  # it came by TLS
