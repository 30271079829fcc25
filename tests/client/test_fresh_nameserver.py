"""A name server that was just started: what it does not know yet is waited for, not taken for missing."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import TypeVar

import pytest

from kerolox import Client, Message, Producer, ProducerOptions, PullConsumer
from kerolox.client.admin.calls import AdminCalls
from kerolox.client.errors import (
    BrokerNotRegistered,
    NameServerStarting,
    RoutesNotKnownYet,
    SomeFailed,
    TopicNotFound,
)
from kerolox.client.nameservers import NameServers
from kerolox.net.dialer import Dialer
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers.registration import UnregisterBrokerRequest
from kerolox.testing.broker import RunningBroker, running_broker
from kerolox.testing.nameserver import running_nameserver

T = TypeVar("T")

PATIENT_S = 30.0  # more than any wait here takes


async def still_waits(work: Awaitable[T]) -> asyncio.Task[T]:
    """Begin it. It had the time to fail, and has not."""
    task = asyncio.ensure_future(work)
    await asyncio.wait([task], timeout=0.5)
    assert not task.done(), task
    assert isinstance(task, asyncio.Task)
    return task


async def unregister(running: RunningBroker) -> None:
    """As if the name server had just started: it does not know the broker."""
    options = running.broker.options
    asked = UnregisterBrokerRequest(
        broker_name=options.broker_name,
        broker_addr=running.address,
        cluster_name=options.cluster,
        broker_id=options.broker_id,
    )
    async with Dialer() as dialer:
        await dialer.call(running.nameserver_address, RequestCode.UNREGISTER_BROKER, asked)


@pytest.mark.parametrize("awaited", [0, 1], ids=["knows nobody", "says it is not ready"])
async def test_a_send_waits_for_the_first_broker(awaited: int) -> None:
    async with (
        running_nameserver(brokers_awaited=awaited) as nameserver,
        Producer(nameserver.address, group="shop") as producer,
    ):
        sending = await still_waits(producer.send(Message("orders", b"x"), timeout_s=PATIENT_S))
        async with running_broker(nameserver=nameserver):
            assert (await sending).ok


async def test_a_send_says_what_it_waited_for() -> None:
    async with (
        running_nameserver(brokers_awaited=1) as starting,
        running_nameserver() as empty,
        Producer(starting.address, group="shop") as producer,
        Producer(empty.address, group="shop") as other,
    ):
        with pytest.raises(RoutesNotKnownYet, match="has just started") as caught:
            await producer.send(Message("orders", b"x"), timeout_s=0.3)
        assert caught.value.retriable
        with pytest.raises(BrokerNotRegistered, match="no broker at all"):
            await other.send(Message("orders", b"x"), timeout_s=0.3)
        # Waited for once: not again for each of the others.
        with pytest.raises(SomeFailed) as many:
            await other.send_many([Message("orders", b"x")] * 50, timeout_s=0.3)
        assert len(many.value.results) == 50
        assert len({id(error) for error in many.value.results}) == 1


async def test_a_topic_never_seen_is_missing_at_once() -> None:
    options = ProducerOptions(template_topic="", timeout_s=PATIENT_S)
    async with (
        running_broker() as running,
        Producer(running.nameserver_address, group="shop", options=options) as producer,
        PullConsumer(running.nameserver_address, group="loader") as consumer,
    ):
        async with asyncio.timeout(PATIENT_S / 2):
            with pytest.raises(TopicNotFound) as caught:
                await producer.send(Message("nowhere", b"x"))
            assert not caught.value.retriable
            with pytest.raises(TopicNotFound):
                await consumer.queues("nowhere")


async def test_queues_of_a_known_topic_are_waited_for() -> None:
    async with running_broker(register_interval_ms=60_000) as running:
        await running.create_topic("orders")
        await running.create_topic("other")
        async with Client(running.nameserver_address) as client, PullConsumer(client, group="g") as consumer:
            queues = await consumer.queues("orders")
            await unregister(running)
            client.nameservers.addresses[:] = [running.nameserver_address]
            asking = await still_waits(consumer.queues("orders"))
            running.broker.nameservers.registrations.register_all()
            assert await asking == queues


async def test_a_known_topic_that_stays_away_may_come_back() -> None:
    async with running_broker(register_interval_ms=60_000) as running:
        await running.create_topic("orders")
        async with Client(running.nameserver_address) as client:
            await client.routes.find("orders")
            await unregister(running)
            with pytest.raises(TopicNotFound) as caught:
                await client.routes.find_soon("orders", 0.3, afresh=True)
            assert caught.value.retriable
            assert client.routes.known.get("orders") is not None


async def test_another_name_server_knows_better() -> None:
    async with running_broker() as running, running_nameserver() as fresh:
        await running.create_topic("orders")
        good = running.nameserver_address
        async with Client(good) as client:
            route = await client.routes.find("orders")
            client.nameservers.addresses[:] = [fresh.address, good]
            assert await client.routes.refresh("orders") is route
            assert client.nameservers.addresses[0] == good, "the one that knows comes first"
        async with Producer(good, group="shop") as producer:
            producer.client.nameservers.addresses[:] = [fresh.address, good]
            assert (await producer.send(Message("orders", b"x"), timeout_s=PATIENT_S)).ok


async def test_tools_wait_as_long_as_for_an_answer() -> None:
    async with running_nameserver(brokers_awaited=1) as nameserver, Dialer() as dialer:
        hasty = AdminCalls(NameServers([nameserver.address], dialer, timeout_s=0.1), dialer)
        with pytest.raises(NameServerStarting, match="name server not ready") as caught:
            await hasty.cluster_info()
        assert caught.value.retriable
        admin = AdminCalls(NameServers([nameserver.address], dialer, timeout_s=PATIENT_S), dialer)
        asking = await still_waits(admin.cluster_info())
        async with running_broker(nameserver=nameserver):
            assert list((await asking).broker_addr_table) == ["broker-a"]
