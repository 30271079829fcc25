"""RocketMQ's own Python client (rocketmq-python-client) with a broker's gRPC port, unchanged."""

from __future__ import annotations

import asyncio
import json
import re
import sys
from pathlib import Path
from typing import Any

from .grpc_kit import Served, grpc_broker
from .test_producers import pulled

CLIENT = Path(__file__).parent / "official_client.py"


async def told(served: Served, story: str, *more: str) -> Any:
    """Let the client's process tell a story, and return what happened."""
    address = served.broker.grpc_address
    process = await asyncio.create_subprocess_exec(
        sys.executable, CLIENT, story, address, *more,
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    out, error = await asyncio.wait_for(process.communicate(), 120)
    assert process.returncode == 0, error.decode()[-3000:]
    return json.loads(out.decode().strip().splitlines()[-1])


async def test_a_producer_sends_every_kind() -> None:
    async with grpc_broker() as served:
        for kind in ("normal", "fifo", "delay"):
            await served.topic(kind, kind.upper())
        story = await told(served, "produced")
        assert "missing" in story["refused"]
        bodies = {"normal": b"plain", "fifo": b"first", "delay": b"late"}
        for (topic, body), message_id in zip(bodies.items(), story["ids"], strict=True):
            (message,) = await pulled(served, topic, 1)
            assert (message.body, message.message_id) == (body, message_id)
            if topic == "normal":
                assert (message.tag, message.keys, message.properties["color"]) == ("paid", ("k1",), "blue")


async def test_transactions_end_and_open_ones_are_asked_about() -> None:
    async with grpc_broker(transaction_timeout_ms=1000, transaction_check_ms=500) as served:
        await served.topic("deals", "TRANSACTION")
        story = await told(served, "transacted")
        assert story["asked"] == ["asked"]
        assert sorted(message.body for message in await pulled(served, "deals", 2)) == [b"asked", b"kept"]


async def test_a_simple_consumer_gets_every_message() -> None:
    async with grpc_broker() as served:
        await served.topic("normal")
        story = await told(served, "consumed_simply")
        assert story["done"] == [str(number) for number in range(20)]
        assert story["attempts_of_7"] == 2


async def test_a_push_consumer_gets_what_it_subscribed_and_what_it_failed_on() -> None:
    async with grpc_broker() as served:
        await served.topic("normal")
        story = await told(served, "consumed_by_push")
        expected = {str(number): 1 for number in range(20)} | {"again": 2}
        assert story["counts"] == expected


async def test_the_first_program_of_the_page() -> None:
    page = (Path(__file__).parents[3] / "docs" / "GRPC.md").read_text()
    (program,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    async with grpc_broker() as served:
        await served.topic("orders")
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program.replace("127.0.0.1:8081", served.broker.grpc_address),
            stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
        )  # fmt: skip
        out, error = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode == 0, error.decode()[-3000:]
    sent, received = out.decode().splitlines()[-2:]
    message_id = sent.removeprefix("sent ")
    assert received == f"received {message_id} paid {{'o-17'}}"
