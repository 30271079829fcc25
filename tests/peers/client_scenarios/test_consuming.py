"""Everything a push consumer does."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from kerolox import Client, ClientOptions, ClientTls, Message, Producer, ProducerOptions, Queue, Received
from kerolox.client.consume.consumer_options import PushOptions
from kerolox.client.consume.outcomes import DeadLetter, Retry, Suspend
from kerolox.client.consume.push_consumer import PushConsumer
from tests.client.kit import stored

from .conftest import Target

Unique = Callable[[str], str]
FIRST = PushOptions(start="first")
QUIET_S = 2.0
WAIT_S = 40.0


async def wait_for(condition: Callable[[], object], timeout_s: float = WAIT_S) -> None:
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110
            await asyncio.sleep(0.02)


async def kill(consumer: PushConsumer) -> None:
    """Its process is gone: nobody is told anything."""
    client = consumer.client
    consumer._closed = True
    for task in [*client._tasks]:
        task.cancel()
    await asyncio.gather(*client._tasks, return_exceptions=True)
    await client.dialer.close()


class Seen(list[Received]):
    """A handler that keeps what it is called with."""

    async def __call__(self, message: Received) -> None:
        self.append(message)

    @property
    def texts(self) -> list[str]:
        return sorted(message.text for message in self)


class Story:
    """A topic, a producer, and groups of consumers."""

    def __init__(self, target: Target, unique: Unique, topic: str, producer: Producer) -> None:
        self.target = target
        self.topic = topic
        self.producer = producer
        self.group = unique("group")

    def consumer(self, options: PushOptions = FIRST, where: Any = None) -> PushConsumer:
        return PushConsumer(where or self.target.nameserver, group=self.group, options=options)

    async def send(self, *texts: str, **fields: Any) -> None:
        await self.producer.send_many([Message(self.topic, text, **fields) for text in texts])


@pytest.fixture
async def story(target: Target, unique: Unique) -> Any:
    topic = await target.create_topic(unique("topic"))
    async with Producer(target.nameserver, group=unique("pid")) as producer:
        yield Story(target, unique, topic, producer)


async def test_by_tag(story: Story) -> None:
    seen = Seen()
    async with story.consumer() as consumer:
        consumer.subscribe(story.topic, seen, tags="paid || sent")
        await story.send("a", "b", tags="paid")
        await story.send("c", tags="sent")
        await story.send("d", tags="late")
        await story.send("e")
        await wait_for(lambda: len(seen) >= 3)
        # The same group wants something else from now on.
        consumer.subscribe(story.topic, seen, tags="open")
        await asyncio.sleep(1)
        await story.send("f", tags="open")
        await wait_for(lambda: "f" in seen.texts)
    assert seen.texts == ["a", "b", "c", "f"]
    assert {(m.topic, m.tags) for m in seen} == {(story.topic, tag) for tag in ("paid", "sent", "open")}


async def test_by_sql(story: Story) -> None:
    seen = Seen()
    async with story.consumer() as consumer:
        consumer.subscribe(story.topic, seen, sql="price > 5 AND colour = 'red' OR TAGS = 'always'")
        for price in range(10):
            colour = "red" if price % 2 else "blue"
            await story.send(f"{price}", properties={"price": str(price), "colour": colour})
        await story.send("t", tags="always")
        await wait_for(lambda: len(seen) == 3)
    assert seen.texts == ["7", "9", "t"]


@pytest.mark.parametrize("start", ["first", "last", "time"])
async def test_where_a_new_group_begins(story: Story, start: str) -> None:
    await story.send(*(f"old {n}" for n in range(8)))
    await asyncio.sleep(1.1)
    middle = datetime.now(UTC)
    await asyncio.sleep(0.2)
    await story.send(*(f"middle {n}" for n in range(8)))
    seen = Seen()
    options = PushOptions(start=middle if start == "time" else start)
    async with story.consumer(options) as consumer:
        consumer.subscribe(story.topic, seen)
        await wait_for(lambda: len([q for q in consumer.held if q.topic == story.topic]) == 4)
        await asyncio.sleep(0.5)
        await story.send(*(f"new {n}" for n in range(8)))
        await wait_for(lambda: sum(m.text.startswith("new") for m in seen) == 8)
    kinds = Counter(m.text.split()[0] for m in seen)
    if start == "time" and not story.target.is_apache_4:
        assert kinds == {"middle": 8, "new": 8}
    else:
        # A young queue is read from its first message by a group that begins at the end, too.
        assert kinds == {"old": 8, "middle": 8, "new": 8}


async def test_a_group_goes_on_where_it_stopped(story: Story) -> None:
    first, second = Seen(), Seen()
    async with story.consumer() as consumer:
        consumer.subscribe(story.topic, first)
        await story.send(*map(str, range(50)))
        await wait_for(lambda: len(first) == 50)
    await story.send("d", "e")
    async with story.consumer() as consumer:
        consumer.subscribe(story.topic, second)
        await wait_for(lambda: len(second) >= 2)
        await asyncio.sleep(0.5)
    assert second.texts == ["d", "e"]


async def test_members_come_and_go(story: Story) -> None:
    """Three members, one closed, one killed: nothing is lost.

    What is at work when a queue moves may come twice: there is nobody who coordinates members.
    """
    topic, seen, stop = story.topic, Counter[str](), asyncio.Event()
    sent = 0

    async def load() -> None:
        nonlocal sent
        while not stop.is_set():
            await story.send(*(str(sent + n) for n in range(20)))
            sent += 20
            await asyncio.sleep(0.02)

    async def handle(message: Received) -> None:
        seen[message.text] += 1

    def queues(*consumers: PushConsumer) -> list[Queue]:
        return [queue for each in consumers for queue in each.held if queue.topic == topic]

    members = [story.consumer() for _ in range(3)]
    for member in members:
        member.subscribe(topic, handle)
    one, two, three = members
    loading = asyncio.create_task(load())
    await one.open()
    await wait_for(lambda: len(queues(one)) == 4)
    await two.open()
    await wait_for(lambda: len(queues(one)) == 2 == len(queues(two)))
    assert len(set(queues(one, two))) == 4
    await three.open()
    await wait_for(lambda: sorted(len(queues(each)) for each in members) == [1, 1, 2])
    assert len(set(queues(*members))) == 4
    await two.close()
    await wait_for(lambda: len(queues(one)) == 2 == len(queues(three)))
    await kill(one)
    await wait_for(lambda: len(queues(three)) == 4)
    stop.set()
    await loading
    await wait_for(lambda: len(seen) == sent)
    assert set(seen) == {str(n) for n in range(sent)}
    # With nobody coming or going all come once, and who closes leaves nothing to be done again.
    await wait_for(lambda: all(held.count == 0 for held in three.held.values()))
    seen.clear()
    await story.send(*map(str, range(100)))
    await wait_for(lambda: len(seen) == 100)
    await three.close()
    async with story.consumer() as last:
        last.subscribe(topic, handle)
        await story.send("last")
        await wait_for(lambda: seen["last"])
    assert set(seen.values()) == {1}


async def test_broadcasting(story: Story, tmp_path: Path) -> None:
    def options(name: str) -> PushOptions:
        return PushOptions(start="first", broadcasting=True, offsets_directory=str(tmp_path / name))

    one, two = Seen(), Seen()
    async with (
        story.consumer(options("one")) as first,
        story.consumer(options("two"), ClientOptions(story.target.nameserver, instance="2")) as second,
    ):
        first.subscribe(story.topic, one)
        second.subscribe(story.topic, two)
        await story.send(*map(str, range(20)))
        await wait_for(lambda: len(one) == 20 == len(two))
    again = Seen()
    await story.send("more")
    async with story.consumer(options("one")) as first:
        first.subscribe(story.topic, again)
        await wait_for(lambda: again)
        await asyncio.sleep(0.3)
    assert again.texts == ["more"]


async def test_in_order_though_handlers_fail(story: Story) -> None:
    seen: dict[str, list[int]] = {}
    failures = Counter[str]()

    async def handle(message: Received) -> None:
        key, number = message.text.split(":")
        if int(number) == 7 and failures[key] < 2:
            failures[key] += 1
            raise Suspend(0.02) if message.reconsume_times else ValueError("no")
        seen.setdefault(key, []).append(int(number))

    options = PushOptions(start="first", ordered=True, suspend_s=0.02)
    one, two = story.consumer(options), story.consumer(options)
    for consumer in (one, two):
        consumer.subscribe(story.topic, handle)
    async with one:
        for number in range(30):
            for key in "abc":
                await story.producer.send(Message(story.topic, f"{key}:{number}"), order_key=key)
            if number == 10:
                await two.open()
        await wait_for(lambda: sum(len(set(numbers)) for numbers in seen.values()) == 90)
    await two.close()
    assert failures == {"a": 2, "b": 2, "c": 2}
    for numbers in seen.values():
        highest = -1
        for number in numbers:  # a step back is a repetition; a step over an unseen number is not allowed
            assert number <= highest + 1
            highest = max(highest, number)


async def test_a_batch_of_which_some_fail(story: Story) -> None:
    batches: list[list[tuple[str, int]]] = []

    async def handle(messages: list[Received]) -> None:
        batches.append([(message.text, message.reconsume_times) for message in messages])
        bad = [message for message in messages if message.text == "bad" and not message.reconsume_times]
        if bad:
            raise Retry(messages=bad, level=1)

    await story.producer.send_batch([Message(story.topic, text) for text in ("a", "bad", "c")])
    async with story.consumer() as consumer:
        consumer.subscribe(story.topic, handle, batch=10)
        await wait_for(lambda: len(batches) == 2)
    assert batches == [[("a", 0), ("bad", 0), ("c", 0)], [("bad", 1)]]


async def test_retries_and_at_last_a_dead_letter(story: Story) -> None:
    """A group's very first message fails: its retry topic is as young as the group."""
    attempts: list[tuple[str, int, str]] = []
    loop = asyncio.get_running_loop()
    times: list[float] = []

    async def handle(message: Received) -> None:
        attempts.append((message.topic, message.reconsume_times, message.msg_id))
        times.append(loop.time())
        raise Retry(level=2) if not message.reconsume_times else ValueError("never")

    await story.send("x", keys="k")
    async with story.consumer(PushOptions(start="first", attempts_max=2)) as consumer:
        consumer.subscribe(story.topic, handle)
        await wait_for(lambda: len(attempts) == 3)
        async with asyncio.timeout(WAIT_S):
            while not (letters := await stored(story.target.nameserver, f"%DLQ%{story.group}")):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
    (letter,) = letters
    assert [(topic, times) for topic, times, _ in attempts] == [(story.topic, n) for n in range(3)]
    assert len({msg_id for _, _, msg_id in attempts}) == 1
    assert times[1] - times[0] > 1.8  # level 2
    assert (letter.text, letter.get("RETRY_TOPIC"), letter.keys) == ("x", story.topic, ("k",))
    # Apache's brokers pass over it.
    assert letter.get("KEROLOX_RETRY_REASON") == ("ValueError: never" if story.target.kind == "ours" else "")


@pytest.mark.parametrize("ordered", [False, True], ids=["any order", "in order"])
async def test_a_dead_letter_at_once(story: Story, ordered: bool) -> None:
    seen: list[str] = []

    async def handle(message: Received) -> None:
        seen.append(message.text)
        if message.text == "bad":
            raise DeadLetter("broken for good")

    async with story.consumer(PushOptions(start="first", ordered=ordered)) as consumer:
        consumer.subscribe(story.topic, handle)
        await story.send("bad", "good")
        async with asyncio.timeout(WAIT_S):
            while not (letters := await stored(story.target.nameserver, f"%DLQ%{story.group}")):  # noqa: ASYNC110
                await asyncio.sleep(0.1)
        await wait_for(lambda: len(seen) == 2)
    assert [letter.text for letter in letters] == ["bad"]
    assert sorted(seen) == ["bad", "good"]


async def test_pause_and_resume(story: Story) -> None:
    seen = Seen()
    async with story.consumer() as consumer:
        consumer.subscribe(story.topic, seen)
        consumer.pause()
        await wait_for(lambda: len([q for q in consumer.held if q.topic == story.topic]) == 4)
        await story.send(*map(str, range(20)))
        await asyncio.sleep(0.5)
        assert not seen
        consumer.resume()
        await wait_for(lambda: len(seen) == 20)


@pytest.mark.parametrize("way", ["namespace", "tls", "vip", "shared client"])
async def test_other_ways_to_speak(target: Target, unique: Unique, way: str) -> None:
    options = {
        "namespace": ClientOptions(target.nameserver, namespace="house"),
        "tls": ClientOptions(target.nameserver, tls=ClientTls(ca=str(target.cluster.certificate.authority))),
        "vip": ClientOptions(target.nameserver, vip_channel=True),
        "shared client": ClientOptions(target.nameserver),
    }[way]
    topic = unique("topic")
    await target.create_topic(f"house%{topic}" if way == "namespace" else topic, 2)
    attempts: list[tuple[str, str, int]] = []

    async def handle(message: Received) -> None:
        attempts.append((message.topic, message.text, message.reconsume_times))
        if message.text == "again" and not message.reconsume_times:
            raise Retry(level=1)

    async with Client(options) as client, Producer(client, group=unique("pid")) as producer:
        consumer = PushConsumer(
            client if way == "shared client" else options, group=unique("group"), options=FIRST
        )
        async with consumer:
            consumer.subscribe(topic, handle)
            await producer.send_many([Message(topic, text) for text in ("a", "again")])
            await wait_for(lambda: len(attempts) == 3)
    assert sorted(attempts) == [(topic, "a", 0), (topic, "again", 0), (topic, "again", 1)]


async def test_all_kinds_of_messages(story: Story, unique: Unique) -> None:
    seen = Seen()
    topic, nameserver = story.topic, story.target.nameserver
    expected = ["delayed", "transaction", *(f"batch {n}" for n in range(5))]
    async with story.consumer() as consumer:
        consumer.subscribe(topic, seen)
        await story.producer.send(Message(topic, "delayed", delay_level=1))
        if not story.target.is_apache_4:
            await story.producer.send(Message(topic, "timed", delay=timedelta(seconds=2)))
            expected.append("timed")
        async with story.producer.transaction(Message(topic, "transaction")):
            pass
        with pytest.raises(ZeroDivisionError):
            async with story.producer.transaction(Message(topic, "rolled back")):
                raise ZeroDivisionError
        await story.producer.send_batch([Message(topic, f"batch {n}") for n in range(5)])
        for kind in ("zlib", "lz4", "zstd"):
            options = ProducerOptions(compression=kind)
            async with Producer(nameserver, group=unique("pid"), options=options) as producer:
                await producer.send(Message(topic, kind * 5000))
            expected.append(kind * 5000)
        await wait_for(lambda: len(seen) == len(expected))
    assert seen.texts == sorted(expected)


async def test_a_consumer_that_replies(story: Story, unique: Unique) -> None:
    async with story.consumer() as consumer:

        @consumer.on(story.topic)
        async def answer(message: Received) -> None:
            await story.producer.reply(message, f"{message.text}? 42")

        async with Producer(story.target.nameserver, group=unique("pid")) as asker:
            replies = await asyncio.gather(
                *(asker.request(Message(story.topic, f"6*{n}"), timeout_s=30) for n in range(5))
            )
    assert [reply.text for reply in replies] == [f"6*{n}? 42" for n in range(5)]


async def test_traced(story: Story) -> None:
    seen = Seen()
    async with story.consumer(PushOptions(start="first", trace=True)) as consumer:
        consumer.subscribe(story.topic, seen)
        receipt = await story.producer.send(Message(story.topic, "x", keys="k1"))
        await wait_for(lambda: seen)
    async with asyncio.timeout(WAIT_S):
        while True:
            traces = await stored(story.target.nameserver, "RMQ_SYS_TRACE_TOPIC")
            records = [
                record.split("\x01")
                for trace in traces
                for record in trace.text.split("\x02")
                if receipt.msg_id in record and story.group in record
            ]
            if len(records) == 2:
                break
            await asyncio.sleep(0.1)
    before, after = sorted(records, key=lambda record: record[0] != "SubBefore")
    assert (before[0], before[3], before[5:8]) == ("SubBefore", story.group, [receipt.msg_id, "0", "k1"])
    assert after[:3] == ["SubAfter", before[4], receipt.msg_id]
    assert (after[4], after[5], after[6], after[8]) == ("true", "k1", "0", story.group)
