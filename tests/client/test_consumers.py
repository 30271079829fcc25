from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from kerolox import Message, Producer, Received
from kerolox.client.consumer_options import PullOptions, PushOptions
from kerolox.client.outcomes import Retry
from kerolox.client.pull_consumer import PullConsumer
from kerolox.client.push_consumer import PushConsumer
from kerolox.testing.broker import RunningBroker, running_broker
from tests.client.kit import create, wait_for


@pytest.fixture
async def running() -> AsyncIterator[RunningBroker]:
    async with running_broker(delay_levels="1s 1s 1s 1s 1s") as running:
        await create(running, "orders")
        yield running


@pytest.fixture
async def producer(running: RunningBroker) -> AsyncIterator[Producer]:
    async with Producer(running.nameserver_address, group="shop") as producer:
        yield producer


async def test_push(running: RunningBroker, producer: Producer) -> None:
    seen: list[str] = []
    async with PushConsumer(
        running.nameserver_address, group="billing", options=PushOptions(start="first")
    ) as consumer:

        @consumer.on("orders", tags="paid")
        async def bill(message: Received) -> None:
            seen.append(message.text)

        for number in range(100):
            await producer.send(Message("orders", f"m{number}", tags="paid" if number % 2 else "open"))
        await wait_for(lambda: len(seen) == 50)
    assert sorted(seen) == sorted(f"m{n}" for n in range(100) if n % 2)


async def test_push_retries(running: RunningBroker, producer: Producer) -> None:
    seen: list[tuple[str, int]] = []
    async with PushConsumer(
        running.nameserver_address, group="billing", options=PushOptions(start="first")
    ) as consumer:

        @consumer.on("orders")
        def bill(message: Received) -> None:
            seen.append((message.text, message.reconsume_times))
            if message.reconsume_times < 1:
                raise Retry("not now")

        await producer.send(Message("orders", "again"))
        await wait_for(lambda: len(seen) == 2, 10)
    assert seen == [("again", 0), ("again", 1)]


async def test_pull(running: RunningBroker, producer: Producer) -> None:
    for number in range(200):
        await producer.send(Message("orders", f"m{number}"))
    seen: list[str] = []
    async with PullConsumer(
        running.nameserver_address, group="loader", topics=["orders"], options=PullOptions(start="first")
    ) as consumer:
        async for batch in consumer:
            seen += [m.text for m in batch]
            if len(seen) == 200:
                break
        await consumer.commit()
    assert len(set(seen)) == 200
    async with PullConsumer(
        running.nameserver_address, group="loader", topics=["orders"], options=PullOptions(start="first")
    ) as consumer:
        assert await consumer.poll(1.0) is None


async def test_ordered(running: RunningBroker, producer: Producer) -> None:
    seen: dict[str, list[int]] = {}
    failed = 0
    async with PushConsumer(
        running.nameserver_address,
        group="o",
        options=PushOptions(start="first", ordered=True, suspend_s=0.05),
    ) as consumer:

        @consumer.on("orders")
        async def bill(message: Received) -> None:
            nonlocal failed
            key, number = message.text.split(":")
            if int(number) == 7 and message.reconsume_times < 2:
                failed += 1
                raise ValueError("no")
            seen.setdefault(key, []).append(int(number))

        for number in range(20):
            for key in "abc":
                await producer.send(Message("orders", f"{key}:{number}"), order_key=key)
        await wait_for(lambda: sum(map(len, seen.values())) == 60, 10)
    assert seen == {key: list(range(20)) for key in "abc"}
    assert failed == 6
