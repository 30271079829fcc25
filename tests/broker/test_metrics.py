"""The pages a scraper and a probe see."""

from __future__ import annotations

import asyncio
import re
import time
from base64 import b64encode
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kerolox.broker.figures.metrics import LOOP_TICK_S, LoopLag
from kerolox.broker.options import BrokerOptions
from kerolox.clock import SYSTEM_CLOCK
from kerolox.errors import OptionError
from kerolox.histogram import Histogram
from kerolox.metric_text import MetricsExporter, MetricText, own_labels
from kerolox.net.dialer import Dialer
from kerolox.options import load
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.flags import PULL_SUSPEND
from kerolox.protocol.headers.offset import UpdateOffsetRequest
from kerolox.store.state import Obstacle
from kerolox.testing.broker import running_broker
from tests.broker.metric_kit import apache_shapes, shapes, story, without_ours
from tests.broker.talk import Talk, subscribed, until

SAMPLE = re.compile(r'([a-z_]+)\{((?:[a-z_]+="(?:[^"\\]|\\.)*",?)*)\} (\d+(?:\.\d+)?)')


@pytest.fixture
async def talk() -> AsyncIterator[Talk]:
    async with (
        running_broker(metrics_exporter=MetricsExporter.PROM, metrics_port=0) as running,
        Dialer() as dialer,
    ):
        yield Talk(dialer, running)


async def fetch(address: str, request: bytes) -> tuple[str, str]:
    """Head and body of what an HTTP server answers."""
    host, _, port = address.rpartition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(request)
    data = await reader.read()
    writer.close()
    head, _, body = data.decode().partition("\r\n\r\n")
    return head, body


async def get(talk: Talk, path: str) -> tuple[str, str]:
    assert talk.running.broker.figures.exporter is not None
    return await fetch(
        talk.running.broker.figures.exporter.address, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode()
    )


def samples(text: str) -> dict[str, list[tuple[dict[str, str], float]]]:
    """Every line is a comment or a well-formed sample of a metric that was introduced."""
    found: dict[str, list[tuple[dict[str, str], float]]] = {}
    types: set[str] = set()
    for line in text.splitlines():
        if line.startswith("# TYPE "):
            name = line.split()[2]
            assert name not in types
            types.add(name)
        elif not line.startswith("#"):
            match = SAMPLE.fullmatch(line)
            assert match is not None, line
            assert match[1] in types or re.sub("_(bucket|count|sum)$", "", match[1]) in types
            labels = dict(re.findall(r'([a-z_]+)="((?:[^"\\]|\\.)*)"', match[2]))
            found.setdefault(match[1], []).append((labels, float(match[3])))
    return found


async def test_messages_lag_and_connections(talk: Talk) -> None:
    for _ in range(3):
        await talk.send("t", b"x" * 100)
    await talk.heartbeat("g", subscribed("t"))
    await talk.pull("t", consumer_group="g")
    commit = UpdateOffsetRequest(consumer_group="g", topic="t", queue_id=0, commit_offset=1)
    await talk.dialer.call(talk.address, RequestCode.UPDATE_CONSUMER_OFFSET, commit)
    head, body = await get(talk, "/metrics")
    assert head.startswith("HTTP/1.1 200 OK\r\n")
    assert "version=0.0.4" in head
    found = samples(body)
    common = {
        "node_type": "broker", "cluster": "DefaultCluster", "node_id": "broker-a",
        "otel_scope_name": "broker-meter",
    }  # fmt: skip
    sent = {**common, "topic": "t", "is_system": "false", "message_type": "normal"}
    assert found["rocketmq_messages_in_total"] == [(sent, 3)]
    assert found["rocketmq_message_size_count"] == [(sent, 3)]
    assert found["rocketmq_message_size_sum"] == found["rocketmq_throughput_in_total"]
    assert found["rocketmq_message_size_bucket"][0] == ({**sent, "le": "1024.0"}, 3)
    assert found["rocketmq_message_size_bucket"][-1] == ({**sent, "le": "+Inf"}, 3)
    assert found["rocketmq_throughput_in_total"][0][1] > 300
    group = {**common, "consumer_group": "g", "topic": "t", "is_system": "false"}
    assert found["rocketmq_messages_out_total"] == [(group, 3)]
    assert found["rocketmq_consumer_lag_messages"] == [({**group, "is_retry": "false"}, 2)]
    assert found["rocketmq_consumer_inflight_messages"][0][1] == 2
    assert found["rocketmq_consumer_ready_messages"][0][1] == 0
    assert found["rocketmq_consumer_lag_latency_milliseconds"][0][1] < 60_000
    by_queue = {labels["queue_id"]: value for labels, value in found["kerolox_consumer_queue_lag_messages"]}
    assert by_queue == {"0": 2, "1": 0, "2": 0, "3": 0}
    ((connection, count),) = found["rocketmq_consumer_connections"]
    assert (connection["consumer_group"], connection["consume_mode"], count) == ("g", "push", 1)
    assert connection["version"] == "v5_5_0"
    assert {labels["processor"] for labels, _ in found["rocketmq_processor_watermark"]} >= {"send", "pull"}
    assert found["rocketmq_broker_permission"][0][1] == 6
    assert found["rocketmq_storage_size_bytes"][0][0]["storage_type"] == "local"
    assert found["rocketmq_storage_message_reserve_time_milliseconds"][0][1] < 60_000
    assert found["rocketmq_storage_dispatch_behind_bytes"][0][1] == 0
    assert "kerolox_event_loop_lag_seconds" in found


async def test_health_says_why_not(talk: Talk) -> None:
    assert (await get(talk, "/healthz"))[1] == "ok\n"
    state = talk.running.broker.store.state
    state.set(Obstacle.DISK_FULL, "95 % used")  # reads still work
    head, body = await get(talk, "/healthz")
    assert " 200 " in head
    assert "disk full: 95 % used" in body
    state.set(Obstacle.FENCED, "fsync failed")
    head, body = await get(talk, "/healthz")
    assert " 503 " in head
    assert "fenced: fsync failed" in body


def test_labels_are_escaped() -> None:
    out = MetricText({"a": 'quote " back \\ line \n'})
    out.metric("m", "gauge", "about", [({}, 1.5), ({"yes": True}, 2.0)])
    assert out.text().splitlines()[2:] == [
        r'm{a="quote \" back \\ line \n"} 1.500000',
        r'm{a="quote \" back \\ line \n",yes="true"} 2',
    ]


async def test_loop_lag_is_how_late_a_timer_is() -> None:
    lag = LoopLag(SYSTEM_CLOCK)
    lag.start()
    time.sleep(3 * LOOP_TICK_S)  # noqa: ASYNC251 — a busy loop is what is measured
    await until(lambda: lag.last_s)
    lag.close()
    assert lag.take_max_s() >= 1.9 * LOOP_TICK_S
    assert lag.take_max_s() == 0.0


# --- as dashboards made for RocketMQ want them -------------------------------------------------------


async def test_names_labels_and_bounds_are_those_of_rocketmq(tmp_path: Path) -> None:
    """The list was read from Apache's broker; tests/peers/test_metrics.py reads it anew."""
    settings = {
        "metrics_exporter": MetricsExporter.PROM, "metrics_port": 0, "delay_levels": "1s 1s 1s 1s",
        "transaction_check_ms": 1000, "transaction_timeout_ms": 1000,
    }  # fmt: skip
    async with running_broker(directory=tmp_path, **settings) as running:
        http = running.broker.figures.exporter
        assert http is not None
        ours = shapes(await story(running.nameserver_address, running.address, http.port))
    assert without_ours(ours) == apache_shapes()


async def test_how_long_requests_took(talk: Talk) -> None:
    await talk.send("t")
    for _ in range(3):
        await talk.send("t")
    await talk.heartbeat("g", subscribed("t"))
    held = asyncio.create_task(
        talk.pull("t", 0, 4, consumer_group="g", sys_flag=PULL_SUSPEND, suspend_timeout_millis=20_000)
    )
    await until(lambda: talk.running.broker.consuming.waits.held > 0)
    await talk.send("t")
    assert (await held).code == 0
    await talk.dialer.call(talk.address, 31_000)  # nobody knows it
    await talk.dialer.call(talk.address, 31_001)
    found = samples((await get(talk, "/metrics"))[1])["rocketmq_rpc_latency_milliseconds_count"]
    words = ("request_code", "response_code", "is_long_polling", "result")
    calls = {tuple(labels[word] for word in words): count for labels, count in found}
    assert calls["send_message_v2", "success", "false", "success"] == 5
    assert calls["heart_beat", "success", "false", "success"] == 1
    assert calls["pull_message", "success", "true", "success"] == 1
    assert calls["unknown", "request_code_not_supported", "false", "success"] == 2
    assert {labels["protocol_type"] for labels, _ in found} == {"remoting"}


async def test_kinds_of_messages(talk: Talk) -> None:
    await talk.send("t")
    await talk.send("t", properties={"__SHARDINGKEY": "k"})
    await talk.send("t", properties={"DELAY": "1"})
    await talk.send("t", properties={"TRAN_MSG": "true", "PGROUP": "g"})
    await asyncio.gather(talk.send("t"), talk.send("t", b"x" * 5000))  # one run
    found = samples((await get(talk, "/metrics"))[1])
    counts = {
        (labels["topic"], labels["message_type"]): n for labels, n in found["rocketmq_messages_in_total"]
    }
    assert counts == {
        ("t", "normal"): 3, ("t", "fifo"): 1, ("SCHEDULE_TOPIC_XXXX", "delay"): 1,
        ("RMQ_SYS_TRANS_HALF_TOPIC", "transaction"): 1,
    }  # fmt: skip
    sizes = {
        labels["le"]: count
        for labels, count in found["rocketmq_message_size_bucket"]
        if (labels["topic"], labels["message_type"]) == ("t", "normal")
    }
    assert (sizes["1024.0"], sizes["4096.0"], sizes["524288.0"], sizes["+Inf"]) == (2, 2, 3, 3)


async def test_off_unless_switched_on_and_then_for_this_machine_alone() -> None:
    async with running_broker() as running:
        assert running.broker.figures.exporter is None
        assert running.broker.figures.meters is None
        assert running.broker.ports.handlers.answered is None
    options = load(BrokerOptions, file_text="metricsExporterType=prom\nmetricsLabel=zone:a,rack:7\n").options
    assert (options.metrics_host, options.metrics_port) == ("127.0.0.1", 5557)
    assert own_labels(options.metrics_labels) == {"zone": "a", "rack": "7"}
    for wrong in ("zone", "a b:c", "ä:1"):
        with pytest.raises(OptionError, match="metricsLabel"):
            own_labels(wrong)


def test_histograms() -> None:
    histogram = Histogram((1, 10))
    histogram.add(1)
    histogram.add(2, 3)
    histogram.add_all([0.5, 0.25])
    histogram.add_all([11, 10])
    histogram.add_all([])
    assert histogram.counts == [3, 4, 1]
    copied = histogram.copy()
    histogram.add(1)
    assert (copied.count, copied.total) == (8, 28.75)
    assert list(copied.parts()) == [
        ("_bucket", {"le": 1.0}, 3), ("_bucket", {"le": 10.0}, 7), ("_bucket", {"le": "+Inf"}, 8),
        ("_count", {}, 8), ("_sum", {}, 28.75),
    ]  # fmt: skip


# --- users ----------------------------------------------------------------------------------------------


async def test_metrics_are_open_unless_users_are_required(tmp_path: Path) -> None:
    first = '{"username": "root", "password": "the secret"}'
    settings: dict[str, Any] = {
        "metrics_exporter": MetricsExporter.PROM, "metrics_port": 0, "authentication": True,
        "authorization": True, "first_user": first,
    }  # fmt: skip
    secret = b64encode(b"root:the secret").decode()
    for required, status in ((False, " 200 "), (True, " 401 ")):
        directory = tmp_path / str(required)
        async with running_broker(directory=directory, metrics_users=required, **settings) as running:
            assert running.broker.figures.exporter is not None
            address = running.broker.figures.exporter.address
            assert status in (await fetch(address, b"GET /metrics HTTP/1.1\r\n\r\n"))[0]
            assert " 200 " in (await fetch(address, b"GET /healthz HTTP/1.1\r\n\r\n"))[0]
            asked = f"GET /metrics HTTP/1.1\r\nAuthorization: Basic {secret}\r\n\r\n"
            head, body = await fetch(address, asked.encode())
            assert (" 200 " in head, "rocketmq_broker_permission" in body) == (True, True)


async def test_users_of_metrics_need_users(tmp_path: Path) -> None:
    with pytest.raises(OptionError, match="metricsAuthenticationEnabled"):
        async with running_broker(
            directory=tmp_path, metrics_exporter=MetricsExporter.PROM, metrics_port=0, metrics_users=True
        ):
            pass
