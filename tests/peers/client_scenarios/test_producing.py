"""Everything a producer does."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kerolox import (
    Client,
    ClientOptions,
    ClientTls,
    Message,
    Producer,
    ProducerOptions,
    Received,
    SendStatus,
    TransactionState,
)
from kerolox import blocking as without_await
from kerolox.client.errors import InvalidMessage, NoReply, TopicNotFound
from kerolox.protocol.flags import COMPRESSED
from kerolox.protocol.frame import BINARY
from tests.client.kit import stored

from .conftest import Target

Unique = Callable[[str], str]
QUIET_S = 3.0  # a few rounds of whatever should not happen


async def arrive(target: Target, topic: str, count: int, timeout_s: float = 30.0) -> list[Received]:
    """Wait until so many messages of a topic can be read."""
    async with asyncio.timeout(timeout_s):
        while len(found := await stored(target.nameserver, topic)) < count:  # noqa: ASYNC110
            await asyncio.sleep(0.1)
        return found


async def test_send(target: Target, unique: Unique) -> None:
    topic = await target.create_topic(unique("topic"))
    async with Producer(target.nameserver, group=unique("pid")) as producer:
        receipt = await producer.send(
            Message(topic, "grün", tags="paid", keys=["a", "b"], properties={"colour": "red"}, flag=7)
        )
    assert receipt.status is SendStatus.OK
    (found,) = await arrive(target, topic, 1)
    assert (found.text, found.tags, found.keys, found.flag) == ("grün", "paid", ("a", "b"), 7)
    assert found.get("colour") == "red"
    assert (found.msg_id, found.offset_msg_id) == (receipt.msg_id, receipt.offset_msg_id)
    assert (found.queue, found.queue_offset) == (receipt.queue, receipt.queue_offset)


async def test_many_and_their_order(target: Target, unique: Unique) -> None:
    topic = await target.create_topic(unique("topic"))
    async with Producer(target.nameserver, group=unique("pid")) as producer:
        receipts = await producer.send_many([Message(topic, b"%d" % n) for n in range(500)])
        assert len({receipt.queue for receipt in receipts}) == 4
        for key in ("x", "y"):
            await producer.send(Message(topic, key), order_key=key)
            ordered = [await producer.send(Message(topic, key), order_key=key) for _ in range(3)]
            assert len({receipt.queue for receipt in ordered}) == 1
            assert [r.queue_offset - ordered[0].queue_offset for r in ordered] == [0, 1, 2]
        queues = await producer.queues(topic)
        assert (await producer.send(Message(topic, b"q"), queue=queues[3])).queue == queues[3]
        chosen = await producer.send(Message(topic, b"s"), selector=lambda all_of, message: all_of[1])
        assert chosen.queue == queues[1]
    found = {message.msg_id: message.body for message in await arrive(target, topic, 510)}
    assert [found[receipt.msg_id] for receipt in receipts] == [b"%d" % n for n in range(500)]


async def test_batch_linger_and_one_way(target: Target, unique: Unique) -> None:
    topic = await target.create_topic(unique("topic"), 1)
    options = ProducerOptions(linger_s=0.02)
    async with (
        Producer(target.nameserver, group=unique("pid")) as producer,
        Producer(target.nameserver, group=unique("pid"), options=options) as lingering,
    ):
        batch = await producer.send_batch([Message(topic, b"b%d" % n, keys=f"k{n}") for n in range(10)])
        assert [receipt.queue_offset for receipt in batch] == list(range(10))
        await lingering.queues(topic)
        lingered = await asyncio.gather(*(lingering.send(Message(topic, b"l%d" % n)) for n in range(50)))
        assert [receipt.queue_offset for receipt in lingered] == list(range(10, 60))
        for number in range(5):
            await producer.send_oneway(Message(topic, b"o%d" % number))
        found = await arrive(target, topic, 65)
    receipts = [*batch, *lingered]
    assert [(m.msg_id, m.offset_msg_id) for m in found[:60]] == [
        (r.msg_id, r.offset_msg_id) for r in receipts
    ]
    # Nobody waited for an answer in between, so Apache's broker may store them in any order.
    assert sorted(m.body for m in found[60:]) == [b"o%d" % number for number in range(5)]


@pytest.mark.parametrize("kind", ["zlib", "lz4", "zstd"])
async def test_compressed(target: Target, unique: Unique, kind: str) -> None:
    topic = await target.create_topic(unique("topic"), 1)
    options = ProducerOptions(compression=kind)
    async with Producer(target.nameserver, group=unique("pid"), options=options) as producer:
        await producer.send(Message(topic, b"ab" * 50_000))
    (found,) = await arrive(target, topic, 1)
    assert found.body == b"ab" * 50_000
    assert found.sys_flag & COMPRESSED


async def test_a_topic_made_on_the_way_or_not(target: Target, unique: Unique) -> None:
    topic = unique("topic")
    async with Producer(target.nameserver, group=unique("pid")) as producer:
        receipt = await producer.send(Message(topic, b"first"))
        assert receipt.ok
    assert [m.body for m in await arrive(target, topic, 1)] == [b"first"]
    options = ProducerOptions(template_topic="")
    async with Producer(target.nameserver, group=unique("pid"), options=options) as producer:
        with pytest.raises(TopicNotFound):
            await producer.send(Message(unique("topic"), b"first"))


async def test_delayed(target: Target, unique: Unique) -> None:
    topic = await target.create_topic(unique("topic"), 1)
    async with Producer(target.nameserver, group=unique("pid")) as producer:
        began = asyncio.get_running_loop().time()
        messages = [Message(topic, b"level", delay_level=2)]
        if not target.is_apache_4:
            messages.append(Message(topic, b"delay", delay=timedelta(seconds=3)))
            messages.append(Message(topic, b"at", deliver_at=datetime.now(UTC) + timedelta(seconds=3)))
        for message in messages:
            assert (await producer.send(message)).ok
        assert await stored(target.nameserver, topic) == []
        found = await arrive(target, topic, len(messages))
        assert asyncio.get_running_loop().time() - began > 1.5
    assert {m.body for m in found} == {message.body for message in messages}


async def test_recalled(target: Target, unique: Unique) -> None:
    if target.is_apache_4:
        pytest.skip("4.x has no timers")
    topic = await target.create_topic(unique("topic"), 1)
    async with Producer(target.nameserver, group=unique("pid")) as producer:
        receipt = await producer.send(Message(topic, b"taken back", delay=5))
        await producer.send(Message(topic, b"comes", delay=6))
        assert receipt.recall_handle is not None
        assert await producer.recall(topic, receipt.recall_handle) == receipt.msg_id
        assert [m.body for m in await arrive(target, topic, 1)] == [b"comes"]


async def test_transactions(target: Target, unique: Unique) -> None:
    topic, group = await target.create_topic(unique("topic"), 1), unique("pid")
    checked: list[Received] = []

    def check(message: Received) -> bool:
        checked.append(message)
        return message.text == "asked: yes"

    async def fail(transaction: Any) -> None:
        raise ZeroDivisionError

    async with Producer(target.nameserver, group=group, check=check) as producer:
        async with producer.transaction(Message(topic, "committed", tags="t")):
            pass
        with pytest.raises(ZeroDivisionError):
            async with producer.transaction(Message(topic, "rolled back")) as transaction:
                await fail(transaction)
        for text in ("asked: yes", "asked: no"):
            async with producer.transaction(Message(topic, text)) as transaction:
                await transaction.leave_open()
        await arrive(target, topic, 2)
        await asyncio.sleep(QUIET_S)
        found = await stored(target.nameserver, topic)
    assert sorted(m.text for m in found) == ["asked: yes", "committed"]
    assert {m.text for m in checked} == {"asked: yes", "asked: no"}
    assert {m.topic for m in checked} == {topic}


async def test_a_check_after_a_restart(target: Target, unique: Unique) -> None:
    topic, group = await target.create_topic(unique("topic"), 1), unique("pid")
    async with (
        Producer(target.nameserver, group=group) as producer,
        producer.transaction(Message(topic, b"left open")) as transaction,
    ):
        await transaction.leave_open()
    asked: list[str] = []

    async def check(message: Received) -> TransactionState:
        asked.append(message.msg_id)
        return TransactionState.COMMIT

    async with Producer(target.nameserver, group=group, check=check):
        (found,) = await arrive(target, topic, 1)
    assert set(asked) == {transaction.id} == {found.msg_id}


async def test_request_and_reply(target: Target, unique: Unique) -> None:
    topic = await target.create_topic(unique("topic"), 1)
    async with (
        Producer(target.nameserver, group=unique("pid")) as asker,
        Producer(target.nameserver, group=unique("pid")) as answerer,
    ):
        asking = asyncio.create_task(asker.request(Message(topic, b"6*7"), timeout_s=20))
        (request,) = await arrive(target, topic, 1)
        await answerer.reply(request, "42" * 3000, properties={"unit": "none"})
        reply = await asking
        assert (reply.text, reply.get("unit")) == ("42" * 3000, "none")
        with pytest.raises(NoReply):
            await asker.request(Message(topic, b"?"), timeout_s=0.5)


async def test_traced(target: Target, unique: Unique) -> None:
    topic, group = await target.create_topic(unique("topic"), 1), unique("pid")
    async with Producer(target.nameserver, group=group, options=ProducerOptions(trace=True)) as producer:
        receipt = await producer.send(Message(topic, b"hello", tags="paid", keys="k1"))
    async with asyncio.timeout(30):
        while True:
            traces = await stored(target.nameserver, "RMQ_SYS_TRACE_TOPIC")
            mine = [trace for trace in traces if receipt.msg_id in trace.keys]
            if mine:
                break
            await asyncio.sleep(0.1)
    record = mine[0].text.split("\x02")[0].split("\x01")
    assert record[0] == "Pub"
    assert record[3:8] == [group, topic, receipt.msg_id, "paid", "k1"]
    assert record[8] == target.broker.address
    assert record[11:] == ["0", receipt.offset_msg_id, "true"]


@pytest.mark.parametrize("way", ["binary", "namespace", "tls", "vip"])
async def test_other_ways_to_speak(target: Target, unique: Unique, way: str) -> None:
    options = {
        "binary": ClientOptions(target.nameserver, encoding=BINARY),
        "namespace": ClientOptions(target.nameserver, namespace="house"),
        "tls": ClientOptions(target.nameserver, tls=ClientTls(ca=str(target.cluster.certificate.authority))),
        "vip": ClientOptions(target.nameserver, vip_channel=True),
    }[way]
    topic = unique("topic")
    await target.create_topic(f"house%{topic}" if way == "namespace" else topic, 2)
    async with Producer(options, group=unique("pid")) as producer:
        receipts = await producer.send_many([Message(topic, b"%d" % n) for n in range(10)])
        receipts += await producer.send_batch([Message(topic, b"b"), Message(topic, b"c")])
        assert {receipt.queue.topic for receipt in receipts} == {topic}
    assert len(await arrive(target, f"house%{topic}" if way == "namespace" else topic, 12)) == 12


async def test_what_a_broker_would_refuse_is_not_sent(target: Target, unique: Unique) -> None:
    topic = await target.create_topic(unique("topic"), 1)
    async with Producer(target.nameserver, group=unique("pid")) as producer:
        for message in (
            Message(topic, b""),
            Message(topic, b"x" * (4 * 1024 * 1024 + 1)),
            Message(topic, b"x", properties={"a": "b" * 32_767}),
            Message("no such name!", b"x"),
        ):
            with pytest.raises(InvalidMessage):
                await producer.send(message)
        largest = await producer.send(Message(topic, b"x" * (4 * 1024 * 1024)))
        assert largest.ok
    assert await stored(target.nameserver, topic)


async def test_producers_share_a_client(target: Target, unique: Unique) -> None:
    topic = await target.create_topic(unique("topic"), 1)
    async with (
        Client(target.nameserver) as client,
        Producer(client, group=unique("pid")) as one,
        Producer(client, group=unique("pid")) as two,
    ):
        await asyncio.gather(one.send(Message(topic, b"1")), two.send(Message(topic, b"2")))
    assert {m.body for m in await arrive(target, topic, 2)} == {b"1", b"2"}


async def test_without_await(target: Target, unique: Unique) -> None:
    topic = await target.create_topic(unique("topic"), 1)

    def work() -> None:
        with without_await.Producer(target.nameserver, group=unique("pid")) as producer:
            assert producer.send(Message(topic, b"1")).ok
            with producer.transaction(Message(topic, b"2")):
                pass
            with pytest.raises(ZeroDivisionError), producer.transaction(Message(topic, b"3")):
                raise ZeroDivisionError

    await asyncio.to_thread(work)
    assert [m.body for m in await arrive(target, topic, 2)] == [b"1", b"2"]
