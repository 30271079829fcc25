"""What Prometheus reads of a controller."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kerolox.controller.options import ControllerOptions
from kerolox.errors import OptionError
from kerolox.metric_text import MetricsExporter
from kerolox.options import load
from kerolox.testing.clock import ManualClock
from kerolox.testing.controller import running_controller

from .conftest import FakeBroker, until


async def page(address: str, path: str) -> str:
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(f"GET {path} HTTP/1.1\r\n\r\n".encode())
    text = (await reader.read()).decode()
    writer.close()
    return text.partition("\r\n\r\n")[2]


async def test_the_figures_of_a_controller(tmp_path: Path) -> None:
    clock = ManualClock()
    async with running_controller(
        clock=clock,
        directory=tmp_path,
        metrics_exporter=MetricsExporter.PROM,
        metrics_port=0,
        metrics_labels="zone:b",
    ) as controller:
        await until(lambda: controller.is_leader)
        assert controller.exporter is not None
        where = controller.exporter.address
        assert await page(where, "/healthz") == "ok\nleader\n"
        async with FakeBroker(controller) as one, FakeBroker(controller) as two:
            await one.join()
            await one.elect()
            await two.join()
            assert (await two.elect()).code != 0  # the master stays
            await two.elect(2, wanted=True)  # not in sync
            lines = (await page(where, "/metrics")).splitlines()
            common = (
                f'address="{controller.address}",group="group1",peer_id="n0",otel_scope_name="controller",'
                'zone="b"'
            )
            broker = f'{common},cluster="DefaultCluster",broker_set="broker-a"'
            elect = f'{common},request_type="CONTROLLER_ELECT_MASTER",request_handle_status'
            assert {
                f"role{{{common}}} 3",
                f"active_broker_num{{{broker}}} 2",
                f'election_total{{{broker},election_result="new_master_elected"}} 1',
                f'election_total{{{broker},election_result="keep_current_master"}} 1',
                f'election_total{{{broker},election_result="no_master_elected"}} 1',
                f'request_total{{{elect}="success"}} 1',
                f'request_total{{{elect}="failed"}} 2',
                f'request_latency_microseconds_count{{{elect}="failed"}} 2',
                f'request_latency_microseconds_bucket{{{elect}="failed",le="10000000.0"}} 2',
                f"kerolox_controller_master_epoch{{{broker}}} 1",
                f"kerolox_controller_has_master{{{broker}}} 1",
                f"kerolox_controller_in_sync_replicas{{{broker}}} 1",
                f"kerolox_controller_replicas{{{broker}}} 2",
            } <= set(lines)
            await one.ask(4711)  # codes of others count as one
            assert any('request_type="OTHER"' in line for line in (await page(where, "/metrics")).split("\n"))
    with pytest.raises(ConnectionError):
        await page(where, "/metrics")


def test_other_exporters_are_refused() -> None:
    assert ControllerOptions().metrics_exporter is MetricsExporter.DISABLE
    with pytest.raises(OptionError, match="metricsExporterType"):
        load(ControllerOptions, file_text="metricsExporterType=OTLP_GRPC", file_name="controller.conf")
