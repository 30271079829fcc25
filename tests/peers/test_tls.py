"""A Java client that speaks TLS, and servers of ours that nobody gave a certificate."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from kerolox.net.self_signed import NAME

from .conftest import Factory
from .ours import OurBroker, OurNameServer
from .scenarios.client import Client


def test_a_tls_client_out_of_the_box(java: Factory, tmp_path: Path, unique: Callable[[str], str]) -> None:
    conf = tmp_path / "namesrv.conf"
    conf.write_text(f"kvConfigPath={tmp_path / 'ns' / 'kvConfig.json'}\n")
    nameserver = OurNameServer(tmp_path / "ns", options=["-c", str(conf)])
    broker = None
    try:
        nameserver.start()
        broker = OurBroker(tmp_path / "broker", nameserver.address)
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
        if broker is not None:
            broker.kill()
        nameserver.kill()
