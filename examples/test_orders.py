"""Tests of code that sends and consumes, against a real broker made for each test.

The fixtures come with kerolox; nothing has to be installed or started:  pytest examples/test_orders.py
"""

from __future__ import annotations

import asyncio

import pytest

from kerolox import Message, Producer, ProducerOptions, PushConsumer, PushOptions, Received, Retry, blocking
from kerolox.errors import KeroloxError
from kerolox.testing import BrokerThread, unreliable_network


def place(producer: blocking.Producer, order: str) -> str:
    """The code under test: it sends."""
    return producer.send(Message("orders", order, tags="placed", keys=[order])).msg_id


class Billing:
    """The code under test: it consumes, and refuses the first attempt of every order."""

    def __init__(self) -> None:
        self.attempts: list[tuple[str, int]] = []
        self.done = asyncio.Event()

    async def bill(self, message: Received) -> None:
        self.attempts.append((message.text, message.reconsume_times))
        if message.reconsume_times == 0:
            raise Retry("the bank is closed", level=1)
        self.done.set()


def test_an_order_is_sent_with_its_key(kerolox_broker: BrokerThread) -> None:
    with blocking.Producer(kerolox_broker.nameserver_address, group="shop") as producer:
        sent = place(producer, "o-1")
    options = blocking.PullOptions(start="first")
    with blocking.PullConsumer(
        kerolox_broker.nameserver_address, group="test", topics=["orders"], options=options
    ) as consumer:
        batch = consumer.poll(10)
    assert batch is not None
    (message,) = batch
    assert (message.msg_id, message.keys, message.tags) == (sent, ("o-1",), "placed")


def test_a_refused_order_comes_again(kerolox_nameserver: str) -> None:
    billing = Billing()

    async def scene() -> None:
        async with (
            Producer(kerolox_nameserver, group="shop") as producer,
            PushConsumer(kerolox_nameserver, group="billing", options=PushOptions(start="first")) as consumer,
        ):
            await producer.send(Message("orders", "o-1"))
            consumer.subscribe("orders", billing.bill)
            await asyncio.wait_for(billing.done.wait(), 20)

    asyncio.run(scene())
    assert billing.attempts == [("o-1", 0), ("o-1", 1)]


@pytest.mark.kerolox(clock="manual")
def test_a_reminder_comes_after_a_minute(kerolox_broker: BrokerThread) -> None:
    kerolox_broker.create_topic("reminders", queues=1)
    where = kerolox_broker.nameserver_address
    options = blocking.PullOptions(start="first")
    with (
        blocking.Producer(where, group="shop") as producer,
        blocking.PullConsumer(where, group="test", topics=["reminders"], options=options) as consumer,
    ):
        producer.send(Message("reminders", "pay", delay_level=5))
        assert consumer.poll(0.2) is None
        kerolox_broker.advance(61)  # seconds, at once
        assert [message.text for message in consumer.poll(10) or ()] == ["pay"]


def test_a_network_that_hangs_is_an_error_in_time(kerolox_nameserver: str) -> None:
    async def scene() -> None:
        async with unreliable_network(kerolox_nameserver) as network:
            options = ProducerOptions(timeout_s=0.5)
            async with Producer(network.nameserver_address, group="shop", options=options) as producer:
                await producer.send(Message("orders", "o-1"))
                network.stall()
                with pytest.raises(KeroloxError):
                    await producer.send(Message("orders", "o-2"))
                network.resume()
                await producer.send(Message("orders", "o-3"))

    asyncio.run(scene())
