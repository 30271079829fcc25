"""Consumers, against a real broker in this process."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from kerolox import Client, Message, Producer, Queue, Received
from kerolox.client.consume.consumer_options import PullOptions, PushOptions
from kerolox.client.consume.outcomes import DeadLetter, Retry, Suspend, reason_of
from kerolox.client.consume.pull_consumer import PullConsumer
from kerolox.client.consume.push_consumer import ConsumeHook, PushConsumer
from kerolox.client.errors import BrokerNotRegistered
from kerolox.errors import Closed, OptionError
from kerolox.front.requests import Request
from kerolox.protocol.codes import RequestCode
from kerolox.testing.broker import RunningBroker, running_broker
from tests.client.kit import create, stored, wait_for

FIRST = PushOptions(start="first")
ORDERED = PushOptions(start="first", ordered=True, suspend_s=0.02)


@pytest.fixture
async def running() -> AsyncIterator[RunningBroker]:
    async with running_broker(delay_levels="1s 1s 1s 1s 1s", property_filter=True) as running:
        await create(running, "orders")
        yield running


@pytest.fixture
async def producer(running: RunningBroker) -> AsyncIterator[Producer]:
    async with Producer(running.nameserver_address, group="shop") as producer:
        yield producer


async def send(producer: Producer, *bodies: str, **fields: Any) -> None:
    await producer.send_many([Message("orders", body, **fields) for body in bodies])


class Seen(list[Received]):
    """Keeps what it is called with."""

    async def __call__(self, message: Received) -> None:
        self.append(message)

    @property
    def texts(self) -> list[str]:
        return sorted(message.text for message in self)


# --- push -------------------------------------------------------------------------------------------


async def test_messages_come_to_the_handler_by_tag(running: RunningBroker, producer: Producer) -> None:
    seen: list[str] = []
    async with PushConsumer(running.nameserver_address, group="billing", options=FIRST) as consumer:

        @consumer.on("orders", tags="paid || sent")
        async def bill(message: Received) -> None:
            seen.append(message.text)

        await send(producer, "a", "b", tags="paid")
        await send(producer, "c", tags="sent")
        await send(producer, "d", tags="open")
        await send(producer, "e")
        await wait_for(lambda: len(seen) == 3)
    assert sorted(seen) == ["a", "b", "c"]


async def test_an_answer_that_inflates_to_much_is_taken_in_parts(
    running: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What does not fit into the bound is pulled again, and nothing is lost or comes twice."""
    monkeypatch.setattr("kerolox.client.messages.INFLATED_BLOCK_BYTES_MAX", 1 << 20)
    async with Producer(running.nameserver_address, group="shop") as producer:
        for number in range(8):
            await producer.send(Message("orders", str(number) + "x" * 600_000), order_key="one")
    taken: list[int] = []
    seen: list[str] = []
    async with PushConsumer(running.nameserver_address, group="billing", options=ORDERED) as consumer:

        @consumer.on("orders")
        async def take(message: Received) -> None:
            seen.append(message.text[0])
            taken.append(message.queue_offset)

        await wait_for(lambda: len(seen) >= 8)
        await asyncio.sleep(0)
    assert seen == [str(number) for number in range(8)]
    assert taken == sorted(set(taken))


async def test_a_second_handler_of_a_topic_is_refused(running: RunningBroker, producer: Producer) -> None:
    seen = Seen()
    async with PushConsumer(running.nameserver_address, group="billing", options=FIRST) as consumer:
        consumer.on("orders", tags="paid")(seen)

        async def refund(message: Received) -> None: ...

        with pytest.raises(OptionError, match=r"a topic without a handler.*message\.tags.*refund"):
            consumer.on("orders", tags="refunded")(refund)
        await send(producer, "a", tags="paid")
        await wait_for(lambda: seen.texts == ["a"])  # the first one stays
        again = Seen()
        consumer.subscribe("orders", again)  # to replace it takes a call
        await send(producer, "b")
        await wait_for(lambda: again.texts == ["b"])
        consumer.unsubscribe("orders")
        consumer.on("orders")(refund)


async def test_sql_conditions(running: RunningBroker, producer: Producer) -> None:
    seen = Seen()
    async with PushConsumer(running.nameserver_address, group="billing", options=FIRST) as consumer:
        consumer.subscribe("orders", seen, sql="price > 5 AND colour = 'red'")
        for price in range(10):
            colour = "red" if price % 2 else "blue"
            await send(producer, f"{price}", properties={"price": str(price), "colour": colour})
        await wait_for(lambda: len(seen) == 2)
    assert seen.texts == ["7", "9"]


async def test_a_group_goes_on_where_it_stopped(running: RunningBroker, producer: Producer) -> None:
    first, second = Seen(), Seen()
    async with PushConsumer(running.nameserver_address, group="billing", options=FIRST) as consumer:
        consumer.subscribe("orders", first)
        await send(producer, "a", "b", "c")
        await wait_for(lambda: len(first) == 3)
    await send(producer, "d", "e")
    async with PushConsumer(running.nameserver_address, group="billing", options=FIRST) as consumer:
        consumer.subscribe("orders", second)
        await wait_for(lambda: len(second) == 2)
    assert second.texts == ["d", "e"]


async def test_plain_functions_run_in_threads_as_many_as_workers(
    running: RunningBroker, producer: Producer
) -> None:
    barrier = threading.Barrier(4)
    threads: set[str] = set()

    def handle(message: Received) -> None:
        barrier.wait(5)  # passes only when four are at work together
        threads.add(threading.current_thread().name)

    options = PushOptions(start="first", workers=4)
    async with PushConsumer(running.nameserver_address, group="billing", options=options) as consumer:
        consumer.subscribe("orders", handle)
        await send(producer, *"abcd")
        await wait_for(lambda: len(threads) == 4)


async def test_what_fails_comes_again(running: RunningBroker, producer: Producer) -> None:
    attempts: list[tuple[str, str, int]] = []

    async def handle(message: Received) -> None:
        attempts.append((message.topic, message.text, message.reconsume_times))
        if message.reconsume_times < 1:
            raise Retry("not now", level=1)

    async with PushConsumer(running.nameserver_address, group="billing", options=FIRST) as consumer:
        consumer.subscribe("orders", handle)
        await send(producer, "x")
        await wait_for(lambda: len(attempts) == 2, 10)
        stats = consumer.stats.topics["orders"]
        assert (stats.failed_total, stats.taken_total) == (1, 0)
    assert attempts == [("orders", "x", 0), ("orders", "x", 1)]


async def test_a_batch_handler_names_what_failed(running: RunningBroker, producer: Producer) -> None:
    batches: list[list[str]] = []

    async def handle(messages: list[Received]) -> None:
        batches.append([message.text for message in messages])
        bad = [message for message in messages if message.text == "bad"]
        if bad and not bad[0].reconsume_times:
            raise Retry(messages=bad)

    await create(running, "single", queues=1)
    await producer.send_batch([Message("single", text) for text in ("a", "bad", "c")])
    async with PushConsumer(running.nameserver_address, group="billing", options=FIRST) as consumer:
        consumer.subscribe("single", handle, batch=10)
        await wait_for(lambda: len(batches) == 2, 10)
    assert batches == [["a", "bad", "c"], ["bad"]]


async def test_dead_letters(running: RunningBroker, producer: Producer) -> None:
    async def handle(message: Received) -> None:
        raise DeadLetter("broken for good")

    async with PushConsumer(running.nameserver_address, group="billing", options=FIRST) as consumer:
        consumer.subscribe("orders", handle)
        await send(producer, "x")

        async def dead() -> int:
            try:
                return len(await stored(running.nameserver_address, "%DLQ%billing"))
            except Exception:
                return 0

        async with asyncio.timeout(10):
            while not await dead():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
    (letter,) = await stored(running.nameserver_address, "%DLQ%billing")
    assert (letter.text, letter.get("RETRY_TOPIC")) == ("x", "orders")
    assert letter.get("KEROLOX_RETRY_REASON") == "broken for good"


async def test_the_next_attempt_knows_why_the_last_one_failed(
    running: RunningBroker, producer: Producer
) -> None:
    reasons: list[str] = []

    async def handle(message: Received) -> None:
        reasons.append(message.get("KEROLOX_RETRY_REASON"))
        if message.reconsume_times == 0:
            raise Retry("the bank is\nclosed", level=1)
        if message.reconsume_times == 1:
            raise Retry(level=1)

    async with PushConsumer(running.nameserver_address, group="billing", options=FIRST) as consumer:
        consumer.subscribe("orders", handle)
        await send(producer, "x")
        await wait_for(lambda: len(reasons) == 3, 20)
    assert reasons == ["", "the bank is closed", ""]


def test_reasons_of_exceptions() -> None:
    assert reason_of(ValueError("seven")) == "ValueError: seven"
    assert reason_of(KeyError()) == "KeyError"
    assert reason_of(Retry("later")) == "later"
    assert reason_of(DeadLetter()) == ""
    assert reason_of(Suspend(1, "not yet")) == "not yet"

    class Silent(Exception):
        def __str__(self) -> str:
            raise ValueError("no text")

    assert reason_of(Silent()) == "Silent"


async def test_a_slow_message_is_given_to_somebody_else(running: RunningBroker, producer: Producer) -> None:
    release = asyncio.Event()
    seen: list[int] = []

    async def handle(message: Received) -> None:
        seen.append(message.reconsume_times)
        if not message.reconsume_times:
            await release.wait()

    options = PushOptions(start="first", handler_s_max=0.2)
    async with PushConsumer(running.nameserver_address, group="billing", options=options) as consumer:
        consumer.subscribe("orders", handle)
        await send(producer, "x")
        await wait_for(lambda: seen == [0, 1], 10)
        release.set()
    assert seen == [0, 1]


async def test_closing_waits_for_handlers_and_saves_what_they_did(
    running: RunningBroker, producer: Producer
) -> None:
    entered = asyncio.Event()
    done: list[str] = []

    async def handle(message: Received) -> None:
        entered.set()
        await asyncio.sleep(0.2)
        done.append(message.text)

    async with PushConsumer(running.nameserver_address, group="billing", options=FIRST) as consumer:
        consumer.subscribe("orders", handle)
        await send(producer, "x")
        await entered.wait()
    assert done == ["x"]
    again = Seen()
    async with PushConsumer(running.nameserver_address, group="billing", options=FIRST) as consumer:
        consumer.subscribe("orders", again)
        await send(producer, "y")
        await wait_for(lambda: again)
    assert again.texts == ["y"]


async def test_members_share_the_queues_and_take_over(running: RunningBroker, producer: Producer) -> None:
    seen: dict[str, Seen] = {"one": Seen(), "two": Seen()}
    one = PushConsumer(running.nameserver_address, group="billing", options=FIRST)
    two = PushConsumer(running.nameserver_address, group="billing", options=FIRST)
    one.subscribe("orders", seen["one"])
    two.subscribe("orders", seen["two"])

    def queues(consumer: PushConsumer) -> set[Queue]:
        return {queue for queue in consumer.held if queue.topic == "orders"}

    await one.open()
    await wait_for(lambda: len(queues(one)) == 4)
    await two.open()
    await wait_for(lambda: len(queues(one)) == 2 and len(queues(two)) == 2)
    assert not queues(one) & queues(two)
    await send(producer, *map(str, range(100)))
    await wait_for(lambda: len(seen["one"]) + len(seen["two"]) == 100)
    assert all(seen.values())
    await one.close()
    await wait_for(lambda: len(queues(two)) == 4)
    await send(producer, *map(str, range(100, 150)))
    await wait_for(lambda: len({*seen["one"].texts, *seen["two"].texts}) == 150)
    assert len(seen["one"]) + len(seen["two"]) == 150
    await two.close()


async def test_broadcasting_brings_all_to_each_and_keeps_its_place_in_a_file(
    running: RunningBroker, producer: Producer, tmp_path: Path
) -> None:
    seen = Seen()
    options = PushOptions(start="first", broadcasting=True, offsets_directory=str(tmp_path))
    async with PushConsumer(running.nameserver_address, group="watchers", options=options) as consumer:
        consumer.subscribe("orders", seen)
        await send(producer, *"abcdefgh")
        await wait_for(lambda: len(seen) == 8)
        name = consumer.client.client_id
    assert (tmp_path / name / "watchers" / "offsets.json").exists()
    again = Seen()
    async with PushConsumer(running.nameserver_address, group="watchers", options=options) as consumer:
        consumer.subscribe("orders", again)
        await send(producer, "i")
        await wait_for(lambda: again)
    assert again.texts == ["i"]


async def test_hooks_see_every_call(running: RunningBroker, producer: Producer) -> None:
    class Note(ConsumeHook):
        def __init__(self) -> None:
            self.said: list[str] = []

        def before_consume(self, messages: Any) -> None:
            self.said.append("before")

        def after_consume(self, messages: Any, error: BaseException | None, elapsed_s: float) -> None:
            self.said.append(f"after {error!r}")

    note = Note()
    seen = Seen()
    consumer = PushConsumer(running.nameserver_address, group="billing", options=FIRST, hooks=[note])
    async with consumer:
        consumer.subscribe("orders", seen)
        await send(producer, "x")
        await wait_for(lambda: len(note.said) == 2)
    assert note.said == ["before", "after None"]


async def test_pause_and_resume(running: RunningBroker, producer: Producer) -> None:
    seen = Seen()
    async with PushConsumer(running.nameserver_address, group="billing", options=FIRST) as consumer:
        consumer.subscribe("orders", seen)
        await wait_for(lambda: len(consumer.held) == 5)
        consumer.pause()
        # A pull that is held already may still bring something.
        await send(producer, *map(str, range(8)))
        await wait_for(lambda: len(seen) == 8 or all(held.count == 0 for held in consumer.held.values()))
        before = len(seen)
        await send(producer, *map(str, range(100, 120)))
        await asyncio.sleep(0.2)
        assert len(seen) <= before + 8
        consumer.resume()
        await wait_for(lambda: len(seen) == 28)


async def test_a_full_queue_is_not_pulled_further(running: RunningBroker, producer: Producer) -> None:
    release = asyncio.Event()
    seen: list[str] = []

    async def handle(message: Received) -> None:
        await release.wait()
        seen.append(message.text)

    await create(running, "single", queues=1)
    await producer.send_batch([Message("single", str(number)) for number in range(400)])
    options = PushOptions(start="first", queue_messages_max=64)
    async with PushConsumer(running.nameserver_address, group="billing", options=options) as consumer:
        consumer.subscribe("single", handle)
        held = await held_of(consumer, "single")
        await wait_for(lambda: held.count >= 64)
        await asyncio.sleep(0.1)
        assert held.count < 64 + 32
        release.set()
        await wait_for(lambda: len(seen) == 400)
    assert sorted(map(int, seen)) == list(range(400))


async def held_of(consumer: PushConsumer, topic: str) -> Any:
    await wait_for(lambda: any(queue.topic == topic for queue in consumer.held))
    return next(held for queue, held in consumer.held.items() if queue.topic == topic)


async def test_options_are_checked() -> None:
    with pytest.raises(OptionError, match="start"):
        PushOptions(start="yesterday")
    with pytest.raises(OptionError, match="strategy"):
        PushOptions(strategy="fair")
    with pytest.raises(OptionError, match="ordered"):
        PushOptions(ordered=True, broadcasting=True)


async def test_two_consumers_of_one_group_need_two_clients(running: RunningBroker) -> None:
    async with Client(running.nameserver_address) as client, PushConsumer(client, group="billing"):
        with pytest.raises(OptionError, match="another client"):
            await PushConsumer(client, group="billing").open()


# --- ordered ----------------------------------------------------------------------------------------


async def test_order_is_kept_per_key_though_handlers_fail(running: RunningBroker, producer: Producer) -> None:
    seen: dict[str, list[int]] = {}
    failures = 0

    async def handle(message: Received) -> None:
        nonlocal failures
        key, number = message.text.split(":")
        if int(number) == 7 and message.reconsume_times < 2:
            failures += 1
            raise Suspend(0.02) if message.reconsume_times else ValueError("no")
        seen.setdefault(key, []).append(int(number))

    async with PushConsumer(running.nameserver_address, group="billing", options=ORDERED) as consumer:
        consumer.subscribe("orders", handle)
        for number in range(20):
            for key in "abc":
                await producer.send(Message("orders", f"{key}:{number}"), order_key=key)
        await wait_for(lambda: sum(map(len, seen.values())) == 60, 10)
    assert seen == {key: list(range(20)) for key in "abc"}
    assert failures == 6


async def test_an_ordered_queue_goes_on_past_a_dead_letter(
    running: RunningBroker, producer: Producer
) -> None:
    seen: list[str] = []

    async def handle(message: Received) -> None:
        if message.text == "bad":
            raise ValueError("never")
        seen.append(message.text)

    await create(running, "single", queues=1)
    options = PushOptions(start="first", ordered=True, suspend_s=0.02, attempts_max=2)
    async with PushConsumer(running.nameserver_address, group="billing", options=options) as consumer:
        consumer.subscribe("single", handle)
        for text in ("a", "bad", "c"):
            await producer.send(Message("single", text))
        await wait_for(lambda: seen == ["a", "c"], 10)
    (letter,) = await stored(running.nameserver_address, "%DLQ%billing")
    assert letter.text == "bad"
    assert letter.get("KEROLOX_RETRY_REASON") == "ValueError: never"


async def test_an_ordered_consumer_gives_its_locks_up_with_the_connection(
    running: RunningBroker, producer: Producer
) -> None:
    await create(running, "single", queues=1)
    seen = Seen()
    async with PushConsumer(running.nameserver_address, group="billing", options=ORDERED) as consumer:
        consumer.subscribe("single", seen)
        await producer.send(Message("single", "a"))
        await wait_for(lambda: seen.texts == ["a"])
        # The connection breaks, and another member gets the lock before this one asks again.
        locks = running.broker.membership.queue_locks
        own = [queue for queue in locks._locks["billing"] if queue.topic == "single"]
        locks.unlock("billing", consumer.client.client_id, own)
        locks.lock("billing", "other", own)
        asked = asyncio.Event()

        def count(request: Request[Any]) -> None:
            if request.code == RequestCode.LOCK_BATCH_MQ:
                asked.set()

        running.broker.ports.handlers.add_gate(count)
        peer = consumer.client.ready_peer(running.address)
        assert peer is not None
        peer.close("the wire broke")
        await producer.send(Message("single", "b"))
        async with asyncio.timeout(10):
            await asked.wait()
        assert seen.texts == ["a"]
        locks.unlock("billing", "other", own)
        await wait_for(lambda: seen.texts == ["a", "b"], 20)


@pytest.fixture
async def leaving() -> AsyncIterator[RunningBroker]:
    """A broker that sends its clients away for a second before it stops."""
    async with running_broker(graceful_stop=True, graceful_stop_s=1) as running:
        await create(running, "orders")
        yield running


async def test_a_broker_that_is_leaving_is_not_asked_again_and_again(leaving: RunningBroker) -> None:
    seen = Seen()
    pulls = 0

    def count(request: Request[Any]) -> None:
        nonlocal pulls
        pulls += request.code in (RequestCode.PULL_MESSAGE, RequestCode.LITE_PULL_MESSAGE)

    options = PushOptions(start="first", error_pause_s=5.0)
    async with (
        Producer(leaving.nameserver_address, group="shop") as producer,
        PushConsumer(leaving.nameserver_address, group="billing", options=options) as consumer,
    ):
        consumer.subscribe("orders", seen)
        await producer.send(Message("orders", "a"))
        await wait_for(lambda: seen.texts == ["a"] and len(consumer.held) == 5)
        leaving.broker.ports.handlers.add_gate(count)
        stopped = asyncio.create_task(leaving.stop())
        await wait_for(lambda: all(held.failures for held in consumer.held.values()))
        assert pulls <= 3 * len(consumer.held)  # there were thousands
        await stopped
        await leaving.start()


async def test_a_send_waits_for_a_broker_that_is_leaving_to_come_back(leaving: RunningBroker) -> None:
    async with Producer(leaving.nameserver_address, group="shop") as producer:
        await producer.send(Message("orders", "a"))
        stopped = asyncio.create_task(leaving.stop())
        await wait_for(lambda: leaving.broker.ports.handlers.gates)
        sent = asyncio.create_task(producer.send(Message("orders", "b"), timeout_s=30))
        tied = asyncio.create_task(producer.send(Message("orders", "c"), order_key="k", timeout_s=30))
        await stopped
        assert not sent.done()
        await leaving.start()
        assert (await sent).ok
        assert (await tied).ok
    found = [message.text for message in await stored(leaving.nameserver_address, "orders")]
    assert sorted(found) == ["a", "b", "c"]


async def test_ordered_members_hand_queues_over_without_overlap(
    running: RunningBroker, producer: Producer
) -> None:
    seen: list[tuple[str, int]] = []
    at_work: set[Queue] = set()
    overlaps: list[Queue] = []

    async def handle(message: Received) -> None:
        if message.queue in at_work:
            overlaps.append(message.queue)
        at_work.add(message.queue)
        await asyncio.sleep(0.001)
        at_work.discard(message.queue)
        key, number = message.text.split(":")
        seen.append((key, int(number)))

    one = PushConsumer(running.nameserver_address, group="billing", options=ORDERED)
    two = PushConsumer(running.nameserver_address, group="billing", options=ORDERED)
    for consumer in (one, two):
        consumer.subscribe("orders", handle)
    await one.open()
    for number in range(40):
        for key in "abcd":
            await producer.send(Message("orders", f"{key}:{number}"), order_key=key)
        if number == 10:
            await two.open()
        if number == 30:
            await one.close()
    await wait_for(lambda: len(set(seen)) == 160, 20)
    await two.close()
    assert not overlaps
    for key in "abcd":
        numbers = [number for name, number in seen if name == key]
        highest = -1
        for number in numbers:  # a step back is a repetition; a step over an unseen number is not allowed
            assert number <= highest + 1
            highest = max(highest, number)


# --- pull -------------------------------------------------------------------------------------------


def puller(running: RunningBroker, **options: Any) -> PullConsumer:
    return PullConsumer(
        running.nameserver_address,
        group="loader",
        topics=["orders"],
        options=PullOptions(start="first", **options),
    )


async def read(consumer: PullConsumer, count: int) -> list[str]:
    texts: list[str] = []
    async with asyncio.timeout(10):
        async for batch in consumer:
            texts += [message.text for message in batch]
            if len(texts) >= count:
                break
    return texts


async def test_batches_until_all_is_read_and_committed(running: RunningBroker, producer: Producer) -> None:
    await send(producer, *map(str, range(200)))
    async with puller(running) as consumer:
        texts = await read(consumer, 200)
        await consumer.commit()
    assert sorted(map(int, texts)) == list(range(200))
    async with puller(running) as consumer:
        assert await consumer.poll(0.5) is None


async def test_pulls_of_a_pull_consumer_carry_no_progress(
    running: RunningBroker, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker with many threads may heed such a pull behind a commit that came after it."""
    carried: list[object] = []
    monkeypatch.setattr(running.broker.consuming.reads, "commit", lambda *read: carried.append(read))
    await send(producer, *map(str, range(200)))
    async with puller(running) as consumer:
        await read(consumer, 200)
        await consumer.commit()
    assert carried == []


async def test_what_was_handed_out_last_comes_again_without_commit(
    running: RunningBroker, producer: Producer
) -> None:
    await create(running, "single", queues=1)
    await producer.send_batch([Message("single", str(number)) for number in range(64)])
    options = PullOptions(start="first")
    first: list[str] = []
    async with PullConsumer(
        running.nameserver_address, group="loader", topics=["single"], options=options
    ) as consumer:
        for _ in range(2):
            batch = await consumer.poll(count=10)
            assert batch is not None
            first += [message.text for message in batch]
    async with PullConsumer(
        running.nameserver_address, group="loader", topics=["single"], options=options
    ) as consumer:
        batch = await consumer.poll(count=1)
        assert batch is not None
        assert batch[0].text == "10"  # the first ten were done when the second ten were asked for


async def test_assigned_queues_seek_and_bounds(running: RunningBroker, producer: Producer) -> None:
    await create(running, "single", queues=1)
    await producer.send_batch([Message("single", str(number)) for number in range(50)])
    consumer = PullConsumer(running.nameserver_address, group="loader", options=PullOptions(start="first"))
    async with consumer:
        (queue,) = await consumer.queues("single")
        await consumer.assign([queue])
        assert consumer.assignment == [queue]
        assert await consumer.bounds(queue) == (0, 50)
        batch = await consumer.poll()
        assert batch is not None
        assert batch[0].text == "0"
        await consumer.seek(queue, 30)
        batch = await consumer.poll()
        assert batch is not None
        assert [message.text for message in batch] == [str(number) for number in range(30, 50)]
        assert batch.next_offset == 50
        await consumer.seek(queue, "begin")
        batch = await consumer.poll()
        assert batch is not None
        assert batch[0].queue_offset == 0
        await consumer.seek(queue, "end")
        assert await consumer.poll(0.3) is None
        await producer.send(Message("single", "new"))
        batch = await consumer.poll()
        assert batch is not None
        assert [message.text for message in batch] == ["new"]
        early = datetime(2001, 1, 1, tzinfo=UTC)
        assert await consumer.offsets_for_time([queue], early) == {queue: 0}
        await consumer.commit({queue: 7})
        assert await consumer.committed(queue) == 7


async def test_a_commit_that_is_not_saved_is_an_error(running: RunningBroker, producer: Producer) -> None:
    await create(running, "single", queues=1)
    await producer.send_batch([Message("single", str(number)) for number in range(8)])
    async with PullConsumer(running.nameserver_address, group="loader") as consumer:
        (queue,) = await consumer.queues("single")
        with pytest.raises(BrokerNotRegistered):
            await consumer.commit({queue: 8, queue._replace(broker="nobody"): 1})
        assert await consumer.committed(queue) == 8


async def test_paused_queues_hand_out_nothing(running: RunningBroker, producer: Producer) -> None:
    async with puller(running) as consumer:
        await wait_for(lambda: len(consumer.held) == 4)
        consumer.pause()
        await send(producer, *"abcd")
        assert await consumer.poll(0.3) is None
        consumer.resume()
        assert sorted(await read(consumer, 4)) == list("abcd")


async def test_a_closed_consumer_ends_the_loop_and_says_so(running: RunningBroker) -> None:
    consumer = puller(running)
    with pytest.raises(Closed):
        await consumer.poll()
    async with consumer:
        loop = asyncio.create_task(read(consumer, 1))
        await wait_for(lambda: consumer.held)
        await consumer.close()
        assert await asyncio.wait_for(loop, 5) == []


async def test_topics_and_assigned_queues_do_not_mix(running: RunningBroker) -> None:
    async with puller(running) as consumer:
        with pytest.raises(OptionError):
            await consumer.assign([Queue("orders", "broker-a", 0)])


async def test_a_group_that_begins_at_the_end_misses_nothing_of_a_topic_made_meanwhile(
    running: RunningBroker, producer: Producer
) -> None:
    seen = Seen()
    options = PushOptions(balance_s=0.2)
    async with PushConsumer(running.nameserver_address, group="billing", options=options) as consumer:
        consumer.subscribe("young", seen)
        await asyncio.sleep(0.3)
        await producer.send(Message("young", "first"))  # makes the topic
        await wait_for(lambda: seen, 10)
    assert seen.texts == ["first"]


async def test_what_is_handed_out_and_not_done_does_not_stop_the_reading(
    running: RunningBroker, producer: Producer
) -> None:
    await send(producer, *map(str, range(300)))
    async with puller(running, auto_commit=False, queue_messages_max=32) as consumer:
        assert len(set(await read(consumer, 300))) == 300
