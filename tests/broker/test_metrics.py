"""The pages a scraper and a probe see."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncIterator

import pytest

from kerolox.broker.http import HEAD_BYTES_MAX, HttpResponder, Page
from kerolox.broker.metrics import LOOP_TICK_S, LoopLag, MetricText
from kerolox.clock import SYSTEM_CLOCK
from kerolox.net.dialer import Dialer
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers.offset import UpdateOffsetRequest
from kerolox.store.state import Obstacle
from kerolox.testing.broker import running_broker
from tests.broker.talk import Talk, subscribed, until

SAMPLE = re.compile(r'([a-z_]+)\{((?:[a-z_]+="(?:[^"\\]|\\.)*",?)*)\} (\d+(?:\.\d+)?)')


@pytest.fixture
async def talk() -> AsyncIterator[Talk]:
    async with running_broker(metrics_port=0) as running, Dialer() as dialer:
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
    assert talk.running.broker.http is not None
    return await fetch(talk.running.broker.http.address, f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode())


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
            assert match[1] in types
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
    common = {"node_type": "broker", "cluster": "DefaultCluster", "node_id": "broker-a"}
    assert found["rocketmq_messages_in_total"] == [({**common, "topic": "t", "is_system": "false"}, 3)]
    assert found["rocketmq_throughput_in_total"][0][1] > 300
    group = {**common, "consumer_group": "g", "topic": "t", "is_system": "false"}
    assert found["rocketmq_messages_out_total"] == [(group, 3)]
    assert found["rocketmq_consumer_lag_messages"] == [({**group, "is_retry": "false"}, 2)]
    assert found["rocketmq_consumer_inflight_messages"][0][1] == 2
    assert found["rocketmq_consumer_ready_messages"][0][1] == 0
    assert found["rocketmq_consumer_lag_latency"][0][1] < 60_000
    by_queue = {labels["queue_id"]: value for labels, value in found["kerolox_consumer_queue_lag_messages"]}
    assert by_queue == {"0": 2, "1": 0, "2": 0, "3": 0}
    ((connection, count),) = found["rocketmq_consumer_connections"]
    assert (connection["consumer_group"], connection["consume_mode"], count) == ("g", "push", 1)
    assert connection["version"] == "v5_3_3"
    assert {labels["processor"] for labels, _ in found["rocketmq_processor_watermark"]} >= {"send", "pull"}
    assert found["rocketmq_broker_permission"][0][1] == 6
    assert found["rocketmq_storage_size"][0][0]["storage_type"] == "local"
    assert found["rocketmq_storage_message_reserve_time"][0][1] < 60_000
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


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GET /nowhere HTTP/1.1\r\n\r\n", "404"),
        (b"POST /page HTTP/1.1\r\n\r\n", "405"),
        (b"GET /page?x=1 HTTP/1.0\r\n\r\n", "200"),
        (b"GET /broken HTTP/1.1\r\n\r\n", "500"),
        (b"\x16\x03\x01\r\n\r\n", "400"),
        (b"GET /page\r\n\r\n", "400"),
    ],
)
async def test_http(request_bytes: bytes, status: str) -> None:
    async def page() -> Page:
        return Page("text ü\n")

    async def broken() -> Page:
        raise ValueError("no")

    async with HttpResponder({"/page": page, "/broken": broken}, host="127.0.0.1", port=0) as server:
        head, _ = await fetch(server.address, request_bytes)
        assert head.split(" ")[1] == status
        head, body = await fetch(server.address, b"HEAD /page HTTP/1.1\r\n\r\n")
        assert ("Content-Length: 8" in head, body) == (True, "")
        # Too long a head, or none at all: the connection closes and the server goes on.
        assert await fetch(server.address, b"GET /" + b"x" * 2 * HEAD_BYTES_MAX) == ("", "")


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
