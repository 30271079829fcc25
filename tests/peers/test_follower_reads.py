"""Our readers, when Apache's leader is killed and its follower may be read."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kerolox import (
    Message,
    Producer,
    PullConsumer,
    PullOptions,
    PushConsumer,
    PushOptions,
    Received,
    SocketCluster,
)
from kerolox.net.dialer import Dialer
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers.topic import CreateTopicRequest
from kerolox.testing.nameserver import running_nameserver

from .conftest import Factory

pytest.importorskip("pyspark")

from tests.spark.source_kit import Query, batch_read, close_all

QUEUES = 2


async def eventually(ready: Callable[[], object], timeout_s: float = 60) -> None:
    end_s = time.monotonic() + timeout_s
    while not ready():
        assert time.monotonic() < end_s, "it did not come"
        await asyncio.sleep(0.1)


async def create(dialer: Dialer, address: str) -> None:
    header = CreateTopicRequest(
        topic="T", default_topic="TBW102", read_queue_nums=QUEUES, write_queue_nums=QUEUES, perm=6,
        topic_filter_type="SINGLE_TAG", topic_sys_flag=0, order=False,
    )  # fmt: skip
    assert (await dialer.call(address, RequestCode.UPDATE_AND_CREATE_TOPIC, header, timeout_s=20)).code == 0


async def send(nameserver: str, start: int, end: int) -> None:
    async with Producer(nameserver, group="p") as producer:
        for number in range(start, end):
            assert (await producer.send(Message("T", str(number)), timeout_s=20)).ok


def copied(nameserver: str) -> int:
    """How many messages followers have."""
    with SocketCluster(nameserver, read_from="follower") as cluster:
        edges = cluster.edges(cluster.route("T").readable)
    assert all(edge.follower for edge in edges.values())
    return sum(edge.end for edge in edges.values())


async def has_copied(nameserver: str, count: int) -> None:
    end_s = time.monotonic() + 60
    while (found := await asyncio.to_thread(copied, nameserver)) < count:
        assert time.monotonic() < end_s, f"{found} of {count} messages were copied"
        await asyncio.sleep(0.2)


async def test_readers_go_on_at_apaches_follower(java: Factory, tmp_path: Path) -> None:
    """And return to the leader; nobody misses a message, and who stayed gets none twice."""
    async with running_nameserver(directory=tmp_path / "n") as nameserver, Dialer() as dialer:
        address = nameserver.address
        both = {"slaveReadEnable": True}
        leader = java.broker(address, start=False, name="pair", properties=both)
        follower = java.broker(
            address, start=False, name="pair", broker_id=1, properties=both | {"brokerRole": "SLAVE"}
        )
        await asyncio.to_thread(leader.start)
        await asyncio.to_thread(follower.start)
        for broker in (leader, follower):  # which would ask its leader for topics after a minute
            await create(dialer, broker.address)
        seen: Counter[int] = Counter()
        gate = asyncio.Event()
        consumer = PushConsumer(
            address,
            group="stays",
            options=PushOptions(start="first", pull_count=8, queue_messages_max=16, save_s=0.5, workers=4),
        )

        @consumer.on("T")
        async def take(message: Received) -> None:
            if len(seen) >= 50:
                await gate.wait()
            seen[int(message.body)] += 1

        await send(address, 0, 200)
        await has_copied(address, 200)
        peer: Any = SimpleNamespace(nameserver_address=address)
        texts = sorted(map(str, range(200)))
        try:
            copy = await asyncio.to_thread(batch_read, peer, "T", readFrom="follower", retryForMs=60_000)
            assert sorted(copy) == texts
            query = Query(
                peer, "T", startingOffsets="earliest", maxOffsetsPerTrigger=60, retryForMs=60_000,
                discoveryIntervalMs=100,
            )  # fmt: skip
            found = await asyncio.to_thread(query.next)
            async with consumer:
                await eventually(lambda: len(seen) >= 50)
                await asyncio.to_thread(leader.kill)
                gate.set()
                await eventually(lambda: len(seen) == 200)
                while len(found) < 200:
                    found += await asyncio.to_thread(query.next)
                options = PullOptions(start="first")
                late: list[str] = []
                async with PullConsumer(address, group="late", topics=["T"], options=options) as other:
                    while len(late) < 200:
                        batch = await other.poll(30)
                        assert batch is not None
                        late += [message.text for message in batch]
                assert sorted(late) == texts
                await asyncio.to_thread(leader.start)
                await send(address, 200, 220)
                await eventually(lambda: len(seen) == 220)
                while len(found) < 220:
                    found += await asyncio.to_thread(query.next)
            assert seen == Counter(dict.fromkeys(range(220), 1))
            assert sorted(found) == sorted(map(str, range(220)))
        finally:
            await asyncio.to_thread(close_all)
