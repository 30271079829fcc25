"""The metrics of Apache's broker, for dashboards made for them."""

from __future__ import annotations

import asyncio
import json

import pytest

from tests.broker.metric_kit import APACHE, SETTINGS, apache_shapes, compared, shapes, story
from tests.rig.ports import free_ports

from .conftest import Factory
from .jars import VERSION_5X


def test_the_list_is_what_apaches_broker_tells(java: Factory) -> None:
    """tests/broker/test_metrics.py compares ours with it; ``python -m tests.peers.test_metrics`` writes it"""
    if java.jars.version != VERSION_5X:
        pytest.skip(f"the list is of {VERSION_5X}")
    assert read(java) == apache_shapes()


def read(java: Factory) -> dict[str, object]:
    (port,) = free_ports(1)
    nameserver = java.nameserver()
    broker = java.broker(
        nameserver.address,
        properties={
            **SETTINGS,
            "metricsExporterType": "PROM",
            "metricsPromExporterHost": "127.0.0.1",
            "metricsPromExporterPort": port,
        },
    )
    return dict(compared(shapes(asyncio.run(story(nameserver.address, broker.address, port)))))


if __name__ == "__main__":
    import tempfile
    from pathlib import Path

    from .jars import get_jars

    with tempfile.TemporaryDirectory() as folder:
        factory = Factory(get_jars(VERSION_5X), Path(folder))
        try:
            APACHE.write_text(json.dumps(read(factory), indent=1, sort_keys=True) + "\n")
        finally:
            factory.finish()
