"""Brokers and name servers are killed under producers and consumers, and come back."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest

from kerolox import (
    Message,
    Producer,
    ProducerOptions,
    PullConsumer,
    PullOptions,
    PushConsumer,
    PushOptions,
    Received,
)
from kerolox.errors import KeroloxError

from ..scenarios.cluster import Certificate, Cluster, Kind
from .conftest import SETTINGS, Target

LANES = 4


@pytest.fixture(params=["ours", "apache"])
def fragile(
    request: pytest.FixtureRequest, tmp_path: Path, scenario_certificate: Certificate
) -> Iterator[Target]:
    """Servers of one's own, to be killed."""
    kind: Kind = request.param
    java = request.getfixturevalue("java_session") if kind == "apache" else None
    properties = {**SETTINGS, "registerNameServerPeriod": 10_000}
    cluster = Cluster(kind, java, tmp_path / kind, scenario_certificate, properties=properties)
    yield Target(cluster, cluster.broker)
    cluster.finish()


class Load:
    """Sends numbers, lane by lane in order, each until it is acknowledged."""

    def __init__(self, producer: Producer, topic: str) -> None:
        self.acked = [0] * LANES
        self.ended = False
        self._producer, self._topic = producer, topic

    async def run(self) -> None:
        await asyncio.gather(*(self._lane(lane) for lane in range(LANES)))

    async def _lane(self, lane: int) -> None:
        while not self.ended:
            try:
                await self._producer.send(
                    Message(self._topic, f"{lane}:{self.acked[lane]}"), order_key=str(lane)
                )
                self.acked[lane] += 1
                await asyncio.sleep(0.01)
            except KeroloxError:
                await asyncio.sleep(0.1)

    async def more(self, count: int) -> None:
        wanted = [done + count for done in self.acked]
        async with asyncio.timeout(90):
            while any(done < want for done, want in zip(self.acked, wanted, strict=True)):  # noqa: ASYNC110
                await asyncio.sleep(0.05)


class Seen:
    """What came, by lane; whether a number came before its predecessor."""

    def __init__(self) -> None:
        self.highest = [-1] * LANES
        self.numbers: list[set[int]] = [set() for _ in range(LANES)]
        self.too_early: list[str] = []

    def note(self, message: Received) -> None:
        lane, number = map(int, message.text.split(":"))
        if number > self.highest[lane] + 1:
            self.too_early.append(message.text)
        self.highest[lane] = max(self.highest[lane], number)
        self.numbers[lane].add(number)

    async def __call__(self, message: Received) -> None:
        self.note(message)

    def has(self, acked: list[int]) -> bool:
        return all(seen >= set(range(count)) for seen, count in zip(self.numbers, acked, strict=True))


async def test_kills_of_brokers_and_name_servers(fragile: Target) -> None:
    topic = await fragile.create_topic("topic_crashing", LANES)
    nameserver, broker = fragile.cluster.nameserver_process, fragile.broker
    some, ordered, pulled = Seen(), Seen(), Seen()
    one = PushConsumer(fragile.nameserver, group="g_some", options=PushOptions(start="first"))
    two = PushConsumer(fragile.nameserver, group="g_order", options=PushOptions(start="first", ordered=True))
    three = PullConsumer(
        fragile.nameserver, group="g_pull", topics=[topic], options=PullOptions(start="first")
    )
    one.subscribe(topic, some)
    two.subscribe(topic, ordered)

    async def pull() -> None:
        async for batch in three:
            for message in batch:
                pulled.note(message)

    options = ProducerOptions(timeout_s=3.0)
    before = asyncio.all_tasks()
    async with Producer(fragile.nameserver, group="p", options=options) as producer, one, two, three:
        pulling = asyncio.create_task(pull())
        load = Load(producer, topic)
        loading = asyncio.create_task(load.run())
        await load.more(20)
        for _ in range(2):
            await asyncio.to_thread(broker.kill)
            await asyncio.sleep(0.5)
            await asyncio.to_thread(broker.start)
            await load.more(20)
        await asyncio.to_thread(nameserver.kill)
        await load.more(20)  # who knows his way does not need it
        await asyncio.to_thread(nameserver.start)
        await asyncio.to_thread(broker.restart)
        await load.more(20)
        load.ended = True
        await loading
        async with asyncio.timeout(90):
            while not all(seen.has(load.acked) for seen in (some, ordered, pulled)):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        await three.close()
        await pulling
    assert ordered.too_early == []
    assert not [task for task in asyncio.all_tasks() - before if "kerolox/client" in repr(task)]
