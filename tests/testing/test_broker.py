"""The brokers that are shipped for tests."""

from __future__ import annotations

import asyncio
import os

import pytest
from tests.client.kit import stored

from kerolox import Message, Producer, ProducerOptions, blocking
from kerolox.errors import KeroloxError, OptionError
from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.routes import ClusterInfo
from kerolox.protocol.codes import RequestCode
from kerolox.testing import ManualClock, broker_in_thread, broker_process, running_broker, running_cluster


async def brokers_at(nameserver: str) -> set[str]:
    async with Dialer() as dialer:
        answer = await dialer.call(nameserver, RequestCode.GET_BROKER_CLUSTER_INFO)
    return set(ClusterInfo.decode(answer.body).broker_addr_table)


async def test_two_brokers_share_a_name_server() -> None:
    async with running_broker() as one, running_broker(nameserver=one.nameserver, broker_name="b") as two:
        assert one.nameserver_address == two.nameserver_address
        assert await brokers_at(one.nameserver_address) == {"broker-a", "b"}


async def test_a_cluster() -> None:
    async with running_cluster(brokers=3) as cluster:
        assert await brokers_at(cluster.nameserver_address) == {"broker-a", "broker-b", "broker-c"}
        await cluster.create_topic("orders", queues=2)
        async with Producer(cluster.nameserver_address, group="shop") as producer:
            assert len(await producer.queues("orders")) == 6
            await cluster.brokers[0].stop()
            receipts = [await producer.send(Message("orders", b"x")) for _ in range(6)]
            assert {receipt.queue.broker for receipt in receipts} == {"broker-b", "broker-c"}


async def test_a_broker_stops_and_starts_again() -> None:
    options = ProducerOptions(timeout_s=0.5)
    async with running_broker() as running:
        address = running.address
        async with Producer(running.nameserver_address, group="shop", options=options) as producer:
            await producer.send(Message("orders", b"before"))
            await running.stop()
            with pytest.raises(KeroloxError):
                await producer.send(Message("orders", b"lost"))
            await running.start()
            assert running.address == address
            # A client that was refused waits a little before it connects again.
            async with asyncio.timeout(10):
                while True:
                    try:
                        await producer.send(Message("orders", b"after"))
                        break
                    except KeroloxError:
                        await asyncio.sleep(0.05)
        assert {m.body for m in await stored(running.nameserver_address, "orders")} == {b"before", b"after"}


def test_a_broker_in_a_thread_with_time_that_can_be_moved() -> None:
    with broker_in_thread(clock="manual") as broker:
        broker.create_topic("reminders", queues=1)
        with (
            blocking.Producer(broker.nameserver_address, group="shop") as producer,
            blocking.PullConsumer(
                broker.nameserver_address,
                group="g",
                topics=["reminders"],
                options=blocking.PullOptions(start="first"),
            ) as consumer,
        ):
            producer.send(Message("reminders", b"in a minute", delay_level=5))
            assert consumer.poll(0.3) is None
            broker.advance(61)
            batch = consumer.poll(10)
            assert batch is not None
            assert [message.body for message in batch] == [b"in a minute"]


async def test_hours_of_a_broker_take_few_timers() -> None:
    clock = ManualClock()
    async with (
        running_broker(clock=clock) as running,
        Producer(running.nameserver_address, group="shop", check=lambda message: None) as producer,
    ):
        await running.create_topic("reminders", queues=1)
        await producer.send(Message("reminders", b"level", delay_level=18))
        await producer.send(Message("reminders", b"timer", delay=7200))
        async with producer.transaction(Message("reminders", b"half")) as transaction:
            await transaction.leave_open()  # asked about again and again
        before = clock.fired
        await clock.advance(3600)
        # Each moment that matters, and some of the looks taken all the time: all of those would be 75,000.
        assert clock.fired - before < 2000
        assert await stored(running.nameserver_address, "reminders") == []
        await clock.advance(3601)
        assert clock.fired - before < 4000
        async with asyncio.timeout(30):
            while len(found := await stored(running.nameserver_address, "reminders")) < 2:
                await clock.advance(1)
        assert {message.body for message in found} == {b"level", b"timer"}


def test_time_moves_only_where_that_was_asked_for() -> None:
    with broker_in_thread() as broker, pytest.raises(KeroloxError, match="clock='manual'"):
        broker.advance(1)


def test_what_fails_to_start_says_why() -> None:
    with pytest.raises(OptionError, match="no_such_option = 1"), broker_in_thread(no_such_option=1):
        pass


@pytest.mark.skipif(os.name == "nt", reason="servers run on Linux and macOS")
def test_a_process_is_killed_and_keeps_what_it_acknowledged() -> None:
    with broker_process("defaultTopicQueueNums=2") as broker:
        addresses = broker.nameserver_address, broker.address
        with blocking.Producer(broker.nameserver_address, group="shop") as producer:
            producer.send(Message("orders", b"kept"))
            broker.kill()
            assert broker.pid is None
            broker.start()
            assert (broker.nameserver_address, broker.address) == addresses
        with blocking.PullConsumer(
            broker.nameserver_address,
            group="g",
            topics=["orders"],
            options=blocking.PullOptions(start="first"),
        ) as consumer:
            batch = consumer.poll(10)
        assert batch is not None
        assert [message.body for message in batch] == [b"kept"]
