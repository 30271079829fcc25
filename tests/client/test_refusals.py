"""Consumers that a broker refuses: what is wrong is said at once, once, and where it can be asked for."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kerolox import (
    Message,
    Producer,
    PullConsumer,
    PullOptions,
    PushConsumer,
    PushOptions,
    Received,
    blocking,
)
from kerolox.client.consume.consumer_options import expression_of
from kerolox.client.errors import FilterRefused
from kerolox.protocol.filters.lexer import FilterError
from kerolox.testing import broker_process
from kerolox.testing.broker import RunningBroker, running_broker
from kerolox.testing.threads import broker_in_thread
from tests.client.kit import wait_for

QUICK = PushOptions(start="first", error_pause_s=0.01)


@pytest.fixture
async def without_filters() -> AsyncIterator[RunningBroker]:
    async with running_broker(property_filter=False) as running:
        await running.create_topic("orders", queues=4)
        await running.create_topic("plain", queues=1)
        yield running


@pytest.mark.parametrize("condition", ["", "price >", "price > 'five", "(" * 500])
async def test_a_condition_no_broker_could_use_is_refused_where_it_is_written(condition: str) -> None:
    push = PushConsumer("127.0.0.1:1", group="billing")
    with pytest.raises(FilterError):
        push.on("orders", sql=condition)(print)
    with pytest.raises(FilterError):
        push.subscribe("orders", print, sql=condition)
    assert "orders" not in push.wanted
    assert repr(push.handler_of("orders")) != "print"
    with pytest.raises(FilterError):
        PullConsumer("127.0.0.1:1", group="loader", topics=["orders"], sql=condition)
    with pytest.raises(FilterError):
        PullConsumer("127.0.0.1:1", group="loader").subscribe("orders", sql=condition)


def test_words_behind_a_condition_are_told(caplog: pytest.LogCaptureFixture) -> None:
    expression_of("*", "price > 5 colour = 'red'")  # brokers use the first condition alone
    assert "ignored=\"colour = 'red'\"" in caplog.messages[0]


async def test_a_broker_without_filters_is_told_of_once(
    without_filters: RunningBroker, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[Received] = []
    async with (
        PushConsumer(without_filters.nameserver_address, group="billing", options=QUICK) as consumer,
        Producer(without_filters.nameserver_address, group="shop") as producer,
    ):
        assert consumer.refusal is None
        consumer.subscribe("orders", seen.append, sql="price > 5")
        consumer.subscribe("plain", seen.append)

        def times() -> int:
            return sum(consumer.refusals._times.values())

        await wait_for(lambda: times() >= 40, 30)
        told = [record.getMessage() for record in caplog.records if "SQL92" in record.getMessage()]
        assert len(told) <= times().bit_length(), told  # 1, 2, 4, ... times: never as often as it is refused
        assert "Set enablePropertyFilter=true at the broker" in told[0]
        refusal = consumer.refusal
        assert isinstance(refusal, FilterRefused)
        assert not refusal.retriable
        assert "enablePropertyFilter" in refusal.next_step
        # What another topic brings does not hide it.
        await producer.send(Message("plain", "x"))
        await wait_for(lambda: seen)
        assert isinstance(consumer.refusal, FilterRefused)
        # And it is over when the broker is set otherwise.
        without_filters.broker.options.property_filter = True
        await producer.send(Message("orders", "dear", properties={"price": "7"}))
        await wait_for(lambda: len(seen) == 2)
        await wait_for(lambda: consumer.refusal is None)


async def test_poll_raises_what_the_broker_lacks(without_filters: RunningBroker) -> None:
    options = PullOptions(start="first")
    async with PullConsumer(
        without_filters.nameserver_address,
        group="loader",
        topics=["orders"],
        sql="price > 5",
        options=options,
    ) as consumer:
        with pytest.raises(FilterRefused, match="enablePropertyFilter=true"):
            await consumer.poll(30)


def test_the_blocking_twins_have_it() -> None:
    with broker_in_thread(property_filter=False) as broker:
        broker.create_topic("orders")
        with blocking.PushConsumer(broker.nameserver_address, group="billing", options=QUICK) as push:
            assert push.refusal is None
            push.subscribe("orders", print, sql="price > 5")
            asyncio.run(wait_for(lambda: push.refusal, 30))
            assert isinstance(push.refusal, FilterRefused)
            with pytest.raises(FilterError):
                push.subscribe("orders", print, sql="price >")
        with (
            blocking.PullConsumer(
                broker.nameserver_address, group="g", topics=["orders"], sql="a = 1"
            ) as pull,
            pytest.raises(FilterRefused),
        ):
            pull.poll(30)


def test_up_filters_by_properties(tmp_path: Path) -> None:
    with broker_process(directory=tmp_path) as broker:
        with blocking.Producer(broker.nameserver_address, group="shop") as producer:
            producer.send_batch([Message("orders", price, properties={"price": price}) for price in "17"])
        options = PullOptions(start="first")
        with blocking.PullConsumer(
            broker.nameserver_address, group="g", topics=["orders"], sql="price > 5", options=options
        ) as consumer:
            batch = consumer.poll(30)
            assert batch is not None
            assert [message.text for message in batch] == ["7"]
