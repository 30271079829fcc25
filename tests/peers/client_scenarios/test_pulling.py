"""Everything a pull consumer and the plain reader do."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime

import pytest

from kerolox import Message, Producer, PullConsumer, PullOptions, Queue, Received
from kerolox import blocking as without_await
from kerolox.client.sockets.socket_cluster import OffsetGone, SocketCluster

from .conftest import Target

Unique = Callable[[str], str]
FIRST = PullOptions(start="first")


async def read(consumer: PullConsumer, count: int, timeout_s: float = 40.0) -> list[str]:
    texts: list[str] = []
    async with asyncio.timeout(timeout_s):
        async for batch in consumer:
            texts += [message.text for message in batch]
            if len(texts) >= count:
                break
    return texts


async def filled(target: Target, unique: Unique, count: int, queues: int = 1) -> str:
    topic = await target.create_topic(unique("topic"), queues)
    async with Producer(target.nameserver, group=unique("pid")) as producer:
        messages = [Message(topic, str(n), tags="ab"[n % 2]) for n in range(count)]
        if queues == 1:
            await producer.send_batch(messages)  # pipelined sends Apache's broker may store in any order
        else:
            await producer.send_many(messages)
    return topic


async def test_all_of_a_topic_and_on_from_there(target: Target, unique: Unique) -> None:
    topic, group = await filled(target, unique, 200, 4), unique("group")
    async with PullConsumer(target.nameserver, group=group, topics=[topic], options=FIRST) as consumer:
        texts = await read(consumer, 200)
        await consumer.commit()
    assert sorted(map(int, texts)) == list(range(200))
    async with PullConsumer(target.nameserver, group=group, topics=[topic], options=FIRST) as consumer:
        assert await consumer.poll(2) is None


async def test_by_tag_and_by_sql(target: Target, unique: Unique) -> None:
    topic = await filled(target, unique, 20)
    for how in ({"tags": "b"}, {"sql": "TAGS = 'b'"}):
        consumer = PullConsumer(
            target.nameserver, group=unique("group"), topics=[topic], options=FIRST, **how
        )
        async with consumer:
            assert await read(consumer, 10) == [str(n) for n in range(1, 20, 2)]


async def test_members_share(target: Target, unique: Unique) -> None:
    topic, group = await filled(target, unique, 40, 4), unique("group")
    one = PullConsumer(target.nameserver, group=group, topics=[topic], options=FIRST)
    two = PullConsumer(target.nameserver, group=group, topics=[topic], options=FIRST)
    async with one, two:
        async with asyncio.timeout(40):
            while len(one.assignment) != 2 or len(two.assignment) != 2:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        assert len({*one.assignment, *two.assignment}) == 4
        await two.close()
        async with asyncio.timeout(40):
            while len(one.assignment) != 4:  # noqa: ASYNC110
                await asyncio.sleep(0.05)


async def test_assigned_queues(target: Target, unique: Unique) -> None:
    topic, group = await filled(target, unique, 50), unique("group")
    options = PullOptions(start="first", auto_commit=False)
    async with PullConsumer(target.nameserver, group=group, options=options) as consumer:

        async def following() -> list[Received]:
            batch = await consumer.poll(20)
            assert batch is not None
            return batch

        (queue,) = await consumer.queues(topic)
        await consumer.assign([queue])
        assert consumer.assignment == [queue]
        assert await consumer.bounds(queue) == (0, 50)
        assert (await following())[0].text == "0"
        await consumer.seek(queue, 30)
        assert [message.text for message in await following()] == [str(n) for n in range(30, 50)]
        await consumer.seek(queue, "begin")
        assert (await following())[0].queue_offset == 0
        await consumer.seek(queue, "end")
        assert consumer.position(queue) == 50
        assert await consumer.poll(0.5) is None
        await asyncio.sleep(0.1)
        later = datetime.now(UTC)
        async with Producer(target.nameserver, group=unique("pid")) as producer:
            await producer.send(Message(topic, "new"))
        assert [message.text for message in await following()] == ["new"]
        early = datetime(2001, 1, 1, tzinfo=UTC)
        assert await consumer.offsets_for_time([queue], early) == {queue: 0}
        assert await consumer.offsets_for_time([queue], later) == {queue: 50}
        await consumer.seek(queue, later)
        assert (await following())[0].text == "new"
        assert await consumer.committed(queue) in (None, 0)  # nothing happens behind one's back
        await consumer.commit({queue: 7})
        assert await consumer.committed(queue) == 7
        consumer.pause(queue)
        await consumer.seek(queue, 40)
        assert await consumer.poll(0.7) is None
        consumer.resume(queue)
        assert (await following())[0].text == "40"
        await consumer.commit()
        assert await consumer.committed(queue) == 51
        await consumer.assign([])
        assert consumer.assignment == []


async def test_without_await(target: Target, unique: Unique) -> None:
    topic, group = await filled(target, unique, 20, 2), unique("group")

    def work() -> list[str]:
        texts: list[str] = []
        with without_await.PullConsumer(
            target.nameserver, group=group, topics=[topic], options=FIRST
        ) as consumer:
            for batch in consumer:
                texts += [message.text for message in batch]
                if len(texts) == 20:
                    return texts
        return texts

    assert sorted(await asyncio.to_thread(work)) == sorted(map(str, range(20)))


async def test_the_plain_reader(target: Target, unique: Unique) -> None:
    topic, group = await filled(target, unique, 300), unique("group")

    def work() -> None:
        with SocketCluster(target.nameserver) as cluster:
            queue: Queue
            (queue,) = cluster.route(topic).readable
            assert (cluster.min_offset(queue), cluster.max_offset(queue)) == (0, 300)
            texts = [message.text for message in cluster.read(queue, 3, 251, group=group)]
            assert texts == [str(n) for n in range(3, 251)]
            tagged = [m.text for m in cluster.read(queue, 0, 300, group=group, expression="b")]
            assert tagged == [str(n) for n in range(1, 300, 2)]
            assert cluster.committed(queue, group) in (None, 0)
            cluster.commit(queue, group, 77)
            assert cluster.committed(queue, group) == 77
            with pytest.raises(OffsetGone):
                list(cluster.blocks(queue, 600, 700, group=group))

    await asyncio.to_thread(work)
