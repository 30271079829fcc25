"""Message trace: the records, and that they arrive."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from kerolox import Client, Message, Producer, ProducerOptions
from kerolox.client.send.tracing import WAITING_MAX, ConsumeOutcome, Tracer
from kerolox.testing.broker import RunningBroker, running_broker
from tests.client.kit import create, stored

TOPIC = "RMQ_SYS_TRACE_TOPIC"
TRACED = ProducerOptions(trace=True)


@pytest.fixture
async def running() -> AsyncIterator[RunningBroker]:
    async with running_broker() as running:
        await create(running, "orders", 1)
        yield running


async def records(running: RunningBroker) -> list[list[str]]:
    found = await stored(running.nameserver_address, TOPIC)
    return [record.split("\x01") for message in found for record in message.text.split("\x02") if record]


async def test_what_was_sent(running: RunningBroker) -> None:
    async with Producer(running.nameserver_address, group="shop", options=TRACED) as producer:
        receipt = await producer.send(Message("orders", b"hello", tags="paid", keys=["a", "b"]))
        await producer.send(Message("orders", b"hello"))
        async with producer.transaction(Message("orders", b"hello")) as transaction:
            pass
    by_kind: dict[str, list[list[str]]] = {}
    for record in await records(running):
        by_kind.setdefault(record[0], []).append(record)
    first, second, half = by_kind["Pub"]
    assert len(first) == 14
    assert first[2:8] == ["DefaultRegion", "shop", "orders", receipt.msg_id, "paid", "a b"]
    assert first[8:10] == [running.address, "5"]
    assert first[11:] == ["0", receipt.offset_msg_id, "true"]
    assert second[6:8] == ["null", "null"]
    assert half[11] == "1"
    (end,) = by_kind["EndTransaction"]
    assert end[3:6] == ["shop", "orders", transaction.id]
    assert end[9:] == ["2", transaction.id, "COMMIT_MESSAGE", "false"]
    keys = {key for message in await stored(running.nameserver_address, TOPIC) for key in message.keys}
    assert {receipt.msg_id, "a", "b", transaction.id} <= keys


async def test_records_go_out_ten_at_a_time(running: RunningBroker) -> None:
    async with Producer(running.nameserver_address, group="shop", options=TRACED) as producer:
        await producer.send_many([Message("orders", b"x") for _ in range(10)])
        async with asyncio.timeout(5):
            while len(await records(running)) < 10:  # noqa: ASYNC110
                await asyncio.sleep(0.02)
        assert len(await stored(running.nameserver_address, TOPIC)) == 1


async def test_what_was_consumed(running: RunningBroker) -> None:
    async with Client(running.nameserver_address) as client:
        tracer = Tracer(client, "billing", TOPIC, "CONSUME")
        tracer.consuming("orders", "M1", "k", "R1", retry_times=2, region="DefaultRegion")
        tracer.consumed("orders", "M1", "k", "R1", cost_ms=7, outcome=ConsumeOutcome.FAILED)
        tracer.recalled("orders", "M2", success=True)
        tracer.sent(
            TOPIC, Message(TOPIC, b"x"), "M3", "O", kind=0, began_ms=0, cost_ms=0, address="", body_bytes=0,
            region="", success=True,
        )  # fmt: skip
        await tracer.close()
    before, after, recall = await records(running)
    assert before[2:] == ["DefaultRegion", "billing", "R1", "M1", "2", "k"]
    assert (before[0], after[0], recall[0]) == ("SubBefore", "SubAfter", "Recall")
    assert after[1:7] == ["R1", "M1", "7", "false", "k", "4"]
    assert after[8] == "billing"
    assert recall[2:] == ["DefaultRegion", "billing", "orders", "M2", "true"]


async def test_a_trace_that_cannot_be_told_is_dropped_and_counted() -> None:
    async with Client("127.0.0.1:1") as client:
        tracer = Tracer(client, "g", TOPIC)
        tracer._waiting = [("orders", "r", [])] * WAITING_MAX
        tracer.recalled("orders", "M", success=True)
        assert tracer.dropped == 1
        tracer._waiting.clear()
