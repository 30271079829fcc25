"""Sends while the network fails: what is reported stored is stored, nothing hangs, nothing leaks."""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kerolox import Message, Producer, ProducerOptions, Receipt
from kerolox.errors import KeroloxError
from kerolox.testing.broker import RunningBroker, running_broker
from kerolox.testing.nameserver import running_nameserver
from kerolox.testing.network import Network, unreliable_network
from tests.client.kit import create, stored, wait_for

TIMEOUT_S = 1.0
GRACE_S = 0.8  # deadlines are looked at ten times a second, and this machine may be busy


@pytest.fixture
async def running() -> AsyncIterator[RunningBroker]:
    async with running_broker() as running:
        await create(running, "orders", 4)
        yield running


@pytest.fixture
async def network(running: RunningBroker) -> AsyncIterator[Network]:
    async with unreliable_network(running.nameserver_address) as network:
        yield network


class Load:
    """Senders that go on whatever happens, and what they were told."""

    def __init__(self, producer: Producer) -> None:
        self.producer = producer
        self.stored: dict[str, bytes] = {}
        self.failed = 0
        self.longest_s = 0.0
        self.ended = False
        self._numbers = iter(range(10**9))

    async def send(self) -> None:
        loop = asyncio.get_running_loop()
        while not self.ended:
            body = b"%d" % next(self._numbers)
            began_s = loop.time()
            try:
                receipt = await self.producer.send(Message("orders", body))
                self.stored[receipt.msg_id] = body
            except KeroloxError:
                self.failed += 1
                await asyncio.sleep(0.01)
            self.longest_s = max(self.longest_s, loop.time() - began_s)

    async def run(self, senders: int) -> None:
        await asyncio.gather(*(self.send() for _ in range(senders)))


@pytest.mark.parametrize("linger_s", [None, 0.002], ids=["plain", "linger"])
async def test_a_bad_network(running: RunningBroker, network: Network, linger_s: float | None) -> None:
    before = asyncio.all_tasks()
    options = ProducerOptions(timeout_s=TIMEOUT_S, linger_s=linger_s)
    chance = random.Random(7)
    async with Producer(network.nameserver_address, group="shop", options=options) as producer:
        load = Load(producer)
        work = asyncio.create_task(load.run(16))
        await wait_for(lambda: len(load.stored) > 50)
        for event in ("cut", "in frame", "stall", "refuse", "reorder", "in frame", "cut"):
            sent = len(load.stored)
            if event == "cut":
                network.cut()
            elif event == "in frame":
                network.cut_in_frame()
            elif event == "stall":
                network.stall()
                await asyncio.sleep(TIMEOUT_S * 1.3)
                network.resume()
            elif event == "refuse":
                network.refuse()
                await asyncio.sleep(0.3)
                network.accept()
            else:
                network.reorder = True
            await wait_for(lambda sent=sent: len(load.stored) > sent + 20, 15)  # type: ignore[misc]
            await asyncio.sleep(chance.random() * 0.05)
            network.reorder = False
        load.ended = True
        await work
        assert load.longest_s < TIMEOUT_S + GRACE_S
        assert load.failed
        receipts = await producer.send_many([Message("orders", b"after") for _ in range(10)])
        assert len(receipts) == 10
    found = {m.msg_id: m.body for m in await stored(running.nameserver_address, "orders")}
    lost = {key: body for key, body in load.stored.items() if found.get(key) != body}
    assert not lost, f"{len(lost)} of {len(load.stored)} were reported stored and are not there"
    await wait_for(lambda: not [task for task in asyncio.all_tasks() - before if "_pump" not in repr(task)])


async def test_pipelined_while_connections_are_cut(running: RunningBroker, network: Network) -> None:
    options = ProducerOptions(timeout_s=5.0, retries=5)
    async with Producer(network.nameserver_address, group="shop", options=options) as producer:
        await producer.queues("orders")

        async def cut() -> None:
            for _ in range(5):
                await asyncio.sleep(0.05)
                network.cut_in_frame()

        cutting = asyncio.create_task(cut())
        messages = [Message("orders", b"%d" % n) for n in range(4000)]
        results = await producer.send_many(messages, return_errors=True)
        await cutting
        network._mid_frame = False
    found = {m.msg_id: m.body for m in await stored(running.nameserver_address, "orders")}
    receipts = [result for result in results if isinstance(result, Receipt)]
    assert len(receipts) > 3000
    for message, result in zip(messages, results, strict=True):
        if isinstance(result, Receipt):
            assert found[result.msg_id] == message.body


async def test_a_broker_that_restarts_elsewhere(tmp_path: Path) -> None:
    """The broker goes and comes back at another port, four times."""
    async with running_nameserver(directory=tmp_path / "names") as nameserver:
        options = ProducerOptions(timeout_s=TIMEOUT_S)
        async with Producer(nameserver.address, group="shop", options=options) as producer:
            load = Load(producer)
            work: asyncio.Task[None] | None = None
            for _ in range(3):
                async with running_broker(directory=tmp_path / "broker", nameserver=nameserver) as running:
                    await create(running, "orders", 2)
                    if work is None:
                        work = asyncio.create_task(load.run(4))
                    sent = len(load.stored)
                    await wait_for(lambda sent=sent: len(load.stored) > sent + 50, 20)  # type: ignore[misc]
            async with running_broker(directory=tmp_path / "broker", nameserver=nameserver) as running:
                sent = len(load.stored)
                await wait_for(lambda: len(load.stored) > sent + 50, 20)
                load.ended = True
                assert work is not None
                await work
                found = {m.msg_id: m.body for m in await stored(nameserver.address, "orders")}
        assert load.longest_s < TIMEOUT_S + GRACE_S
        assert not {key for key, body in load.stored.items() if found.get(key) != body}
