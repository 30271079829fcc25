"""Another broker leads, at another address: clients find it by themselves, long before their next look at
routes.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from kerolox import ClientOptions, Message, Producer, ProducerOptions, PushConsumer, Queue, Received
from kerolox.broker.broker import Broker
from kerolox.client.consume.consumer_options import PushOptions
from kerolox.client.consume.ordered import OrderedDelivery
from kerolox.testing.broker import RunningBroker, running_broker
from kerolox.testing.mortal_files import MortalFiles
from tests.client.kit import create, wait_for

TOPIC = "orders"
PATIENT = ProducerOptions(timeout_s=30.0)


@pytest.fixture
async def running() -> AsyncIterator[RunningBroker]:
    async with running_broker() as running:
        await create(running, TOPIC, 2)
        yield running


def client_options(running: RunningBroker) -> ClientOptions:
    """With these a client hears of another leader only because it looks for one when the old one fails."""
    return ClientOptions(nameservers=running.nameserver_address, route_refresh_s=3600.0, heartbeat_s=3600.0)


async def lead_elsewhere(running: RunningBroker) -> None:
    """Kill it, if it runs, and serve its files at another address, as a follower does that has them."""
    await running.kill()
    before = running.broker
    await before.close()
    running.files = MortalFiles()
    running.broker = Broker(before.options, clock=before.clock, files=running.files)
    await running.broker.__aenter__()
    running._is_down = False
    assert running.broker.address != before.address


@pytest.mark.parametrize("vip", [False, True], ids=["plain", "vip"])
async def test_a_send_that_is_tied_to_a_queue_goes_to_whoever_leads_it_now(
    running: RunningBroker, vip: bool
) -> None:
    options = ClientOptions(
        nameservers=running.nameserver_address, route_refresh_s=3600.0, heartbeat_s=3600.0, vip_channel=vip
    )
    async with Producer(options, group="shop", options=PATIENT) as producer:
        receipt = await producer.send(Message(TOPIC, b"0"))
        queue = receipt.queue
        await running.kill()
        waiting = [
            asyncio.create_task(producer.send(Message(TOPIC, b"%d" % number), queue=queue))
            for number in range(1, 4)
        ]
        await asyncio.sleep(0.1)
        assert not any(task.done() for task in waiting)
        await lead_elsewhere(running)
        receipts = await asyncio.gather(*waiting)
        assert sorted(each.queue_offset for each in receipts) == [1, 2, 3]
        assert {each.queue for each in receipts} == {queue}


async def test_sends_to_any_queue_go_on(running: RunningBroker) -> None:
    async with Producer(client_options(running), group="shop", options=PATIENT) as producer:
        await producer.send(Message(TOPIC, b"0"))
        await running.kill()
        one = asyncio.create_task(producer.send(Message(TOPIC, b"1")))
        many = asyncio.create_task(producer.send_many([Message(TOPIC, b"%d" % n) for n in range(2, 9)]))
        await lead_elsewhere(running)
        assert (await one).ok
        assert [getattr(each, "ok", each) for each in await many] == [True] * 7


async def test_looking_for_a_leader_asks_less_and_less_often(running: RunningBroker) -> None:
    async with Producer(
        client_options(running), group="shop", options=ProducerOptions(timeout_s=1.5)
    ) as producer:
        await producer.send(Message(TOPIC, b"0"))
        asked = 0
        refresh = producer.client.routes.refresh_all

        async def counted(topics: list[str]) -> None:
            nonlocal asked
            asked += 1
            await refresh(topics)

        producer.client.routes.refresh_all = counted  # type: ignore[method-assign,assignment]
        await running.kill()
        await asyncio.gather(
            *(producer.send(Message(TOPIC, b"x")) for _ in range(50)), return_exceptions=True
        )
        assert 2 <= asked <= 9, "at 0, 10, 30, 70, 150, 310, 630 and 1270 milliseconds, however many fail"


@pytest.mark.parametrize("ordered", [False, True], ids=["any order", "in order"])
async def test_a_consumer_goes_on_where_it_was(running: RunningBroker, ordered: bool) -> None:
    seen: list[str] = []
    unlocked: list[str] = []  # handled while the lock was another broker's

    async def handle(message: Received) -> None:
        delivery = consumer._delivery
        if isinstance(delivery, OrderedDelivery):
            leader = consumer.client.routes.known.address(message.broker, exact=True)
            if delivery._locked_at.get(message.broker) != leader:
                unlocked.append(message.text)
        seen.append(message.text)

    options = PushOptions(start="first", ordered=ordered, error_pause_s=3600.0)
    async with Producer(client_options(running), group="shop", options=PATIENT) as producer:
        consumer = PushConsumer(client_options(running), group="billing", options=options)
        consumer.on(TOPIC)(handle)
        async with consumer:
            queue = Queue(TOPIC, running.broker.options.broker_name, 0)
            for number in range(5):
                await producer.send(Message(TOPIC, f"{number}".encode()), queue=queue)
            await wait_for(lambda: len(seen) == 5)
            await lead_elsewhere(running)
            for number in range(5, 10):
                await producer.send(Message(TOPIC, f"{number}".encode()), queue=queue)
            await wait_for(lambda: len(set(seen)) == 10, 10)
    firsts = list(dict.fromkeys(seen))
    assert (firsts if ordered else sorted(firsts)) == [str(number) for number in range(10)]
    assert unlocked == []
