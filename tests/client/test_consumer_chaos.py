"""Consumers while the network and brokers fail: they go on, nothing is lost, nothing leaks."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import psutil
import pytest

from kerolox import Message, Producer, PullConsumer, PullOptions, PushConsumer, PushOptions, Queue, Received
from kerolox.client.consume import delivery
from kerolox.client.consume.outcomes import Retry
from kerolox.net.dialer import Dialer
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers.offset import ResetOffsetRequest
from kerolox.testing.broker import RunningBroker, running_broker
from kerolox.testing.nameserver import running_nameserver
from kerolox.testing.network import Network, unreliable_network
from tests.client.kit import create, wait_for

QUICK = {"start": "first", "hold_s": 1.0, "error_pause_s": 0.1, "save_s": 0.2, "close_s": 0.5}


@pytest.fixture
async def running() -> AsyncIterator[RunningBroker]:
    async with running_broker(delay_levels="1s 1s 1s") as running:
        await create(running, "orders", 4)
        yield running


@pytest.fixture
async def network(running: RunningBroker) -> AsyncIterator[Network]:
    async with unreliable_network(running.nameserver_address) as network:
        yield network


@pytest.fixture
async def producer(running: RunningBroker) -> AsyncIterator[Producer]:
    async with Producer(running.nameserver_address, group="shop") as producer:
        yield producer


def connections(network: Network) -> int:
    """Open ones of the clients that use it."""
    port = int(network.nameserver_address.rpartition(":")[2])
    to_names = [each for each in psutil.Process().net_connections() if each.raddr and each.raddr.port == port]
    return len([each for each in to_names if each.status == "ESTABLISHED"]) + network.connections


async def send(producer: Producer, numbers: range, topic: str = "orders") -> None:
    await producer.send_many([Message(topic, str(number)) for number in numbers])


def push(where: Any, handler: Callable[[Received], Any], **options: Any) -> PushConsumer:
    consumer = PushConsumer(where, group="billing", options=PushOptions(**{**QUICK, **options}))
    consumer.subscribe("orders", handler)
    return consumer


@pytest.mark.parametrize("ordered", [False, True], ids=["any order", "in order"])
async def test_a_bad_network(
    running: RunningBroker, network: Network, producer: Producer, ordered: bool
) -> None:
    before = asyncio.all_tasks()
    seen = Counter[int]()

    async def handle(message: Received) -> None:
        seen[int(message.text)] += 1
        if int(message.text) % 50 == 0 and seen[int(message.text)] == 1 and not ordered:
            raise Retry(level=1)

    sent = 0
    async with push(network.nameserver_address, handle, ordered=ordered):
        await send(producer, range(20))
        await wait_for(lambda: len(seen) == 20, 20)
        assert connections(network)
        for event in ("cut", "in frame", "stall", "refuse", "in frame", "reorder", "cut"):
            sent = len(seen)
            if event == "cut":
                network.cut()
            elif event == "in frame":
                network.cut_in_frame()
            elif event == "stall":
                network.stall()
            elif event == "refuse":
                network.refuse()
            else:
                network.reorder = True
            await send(producer, range(sent, sent + 40))
            if event in ("stall", "refuse"):
                await asyncio.sleep(0.5)
                network.resume()
                network.accept()
            await wait_for(lambda sent=sent: len(seen) == sent + 40, 30)  # type: ignore[misc]
            network.reorder = False
        if not ordered:
            await wait_for(lambda: all(seen[n] >= 2 for n in range(0, sent, 50)), 20)
    await wait_for(lambda: not [t for t in asyncio.all_tasks() - before if "kerolox/client" in repr(t)])
    await wait_for(lambda: not connections(network), 10)
    # What was acknowledged does not come again, and nothing else is missing.
    again: list[int] = []

    async def note(message: Received) -> None:
        again.append(int(message.text))

    async with push(running.nameserver_address, note):
        await producer.send(Message("orders", "100000"))
        await wait_for(lambda: 100000 in again, 20)
    assert len(again) < 40


async def test_a_broker_and_name_server_that_restart(tmp_path: Path) -> None:
    seen: set[str] = set()
    pulled: set[str] = set()

    async def handle(message: Received) -> None:
        seen.add(message.text)

    async def pull(consumer: PullConsumer) -> None:
        async for batch in consumer:
            pulled.update(message.text for message in batch)

    async with running_nameserver(directory=tmp_path / "names") as nameserver:
        async with running_broker(directory=tmp_path / "broker", nameserver=nameserver) as running:
            await create(running, "orders", 2)
            consumer = push(nameserver.address, handle)
            puller = PullConsumer(
                nameserver.address, group="loader", topics=["orders"], options=PullOptions(**QUICK)
            )
            await consumer.open()
            await puller.open()
            pulling = asyncio.create_task(pull(puller))
            async with Producer(nameserver.address, group="shop") as producer:
                await send(producer, range(50))
            await wait_for(lambda: len(seen) == 50 == len(pulled), 20)
        for turn in (1, 2):  # at another port each time
            async with running_broker(directory=tmp_path / "broker", nameserver=nameserver) as running:
                async with Producer(nameserver.address, group="shop") as producer:
                    await send(producer, range(50 * turn, 50 * turn + 50))
                await wait_for(
                    lambda turn=turn: len(seen) == 50 + 50 * turn == len(pulled),  # type: ignore[misc]
                    40,
                )
    began_s = asyncio.get_running_loop().time()
    await consumer.close()  # nobody is there any more
    await puller.close()
    assert asyncio.get_running_loop().time() - began_s < 10
    await asyncio.wait_for(pulling, 5)


@pytest.mark.parametrize("trouble", ["stall", "refuse"])
@pytest.mark.parametrize("ordered", [False, True], ids=["any order", "in order"])
async def test_closing_ends_though_nobody_answers(
    network: Network, producer: Producer, trouble: str, ordered: bool
) -> None:
    entered = asyncio.Event()

    async def handle(message: Received) -> None:
        entered.set()
        await asyncio.sleep(100)

    before = asyncio.all_tasks()
    consumer = push(network.nameserver_address, handle, ordered=ordered, trace=True)
    await consumer.open()
    await producer.send(Message("orders", "x"))
    await asyncio.wait_for(entered.wait(), 20)
    getattr(network, trouble)()
    began_s = asyncio.get_running_loop().time()
    await consumer.close()
    # The handler's time, one of saving, one each of unlocking and leaving, and the trace's.
    assert asyncio.get_running_loop().time() - began_s < 0.5 + 5 + 2 + 1 + 5 + 1
    network.resume()
    assert not [t for t in asyncio.all_tasks() - before if "kerolox/client" in repr(t)]


async def test_closing_while_closing_is_cancelled(running: RunningBroker, producer: Producer) -> None:
    """At every await of opening, working and closing somebody may be cancelled."""
    before = asyncio.all_tasks()
    seen: set[str] = set()

    async def handle(message: Received) -> None:
        seen.add(message.text)

    async def work() -> None:
        async with push(running.nameserver_address, handle):
            await asyncio.sleep(0.3)

    await send(producer, range(20))
    for turn in range(12):
        task = asyncio.create_task(work())
        await asyncio.sleep(turn * 0.035)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await wait_for(lambda: not [t for t in asyncio.all_tasks() - before if "kerolox/client" in repr(t)])
    async with push(running.nameserver_address, handle):
        await send(producer, range(20, 40))
        await wait_for(lambda: len(seen) == 40, 20)


async def test_a_cancelled_poll_leaves_the_consumer_usable(
    running: RunningBroker, producer: Producer
) -> None:
    texts: list[str] = []
    consumer = PullConsumer(
        running.nameserver_address, group="loader", topics=["orders"], options=PullOptions(**QUICK)
    )
    async with consumer:
        for turn in range(20):
            polling = asyncio.create_task(consumer.poll(5))
            if turn == 10:
                await send(producer, range(100))
            await asyncio.sleep(0.005)
            polling.cancel()
            done = await asyncio.gather(polling, return_exceptions=True)
            if isinstance(done[0], list):
                texts += [message.text for message in done[0]]
        while len(texts) < 100:
            batch = await consumer.poll(10)
            assert batch is not None
            texts += [message.text for message in batch]
    assert sorted(map(int, texts)) == list(range(100))


async def test_a_handler_that_does_not_end_keeps_its_ordered_queue(
    running: RunningBroker, producer: Producer
) -> None:
    """The queue moves away meanwhile: nobody else gets it before the handler has ended."""
    release = threading.Event()
    events: list[str] = []

    def slow(message: Received) -> None:
        events.append(f"begin {message.text}")
        release.wait(20)
        events.append(f"end {message.text}")

    async def quick(message: Received) -> None:
        events.append(f"other {message.text}")

    await create(running, "orders", 1)
    one = push(running.nameserver_address, slow, ordered=True, strategy=last_member)
    two = push(running.nameserver_address, quick, ordered=True, strategy=last_member)
    one.client.client_id, two.client.client_id = "10.0.0.1@1", "10.0.0.1@2"
    async with one:
        await producer.send_batch([Message("orders", "a"), Message("orders", "b")])
        await wait_for(lambda: events == ["begin a"], 20)
        async with two:
            await wait_for(lambda: not [queue for queue in one.held if queue.topic == "orders"], 20)
            await asyncio.sleep(0.5)
            assert events == ["begin a"]
            release.set()
            await wait_for(lambda: len(events) == 3, 30)
    assert events == ["begin a", "end a", "other b"]


def last_member(me: str, queues: Any, members: Any) -> list[Queue]:
    return list(queues) if me == members[-1] else []


async def test_what_hooks_strategies_and_handlers_break_stops_nothing(
    running: RunningBroker, producer: Producer
) -> None:
    seen = Counter[str]()
    failing = True

    def strategy(me: str, queues: Any, members: Any) -> list[Queue]:
        nonlocal failing
        if failing:
            failing = False
            raise ZeroDivisionError
        return list(queues)

    class Hook:
        def before_consume(self, messages: Any) -> None:
            raise ZeroDivisionError

        after_consume = before_consume

    async def handle(message: Received) -> None:
        seen[message.text] += 1
        if seen[message.text] == 1:
            raise asyncio.CancelledError  # of something inside, not of the worker

    consumer = push(running.nameserver_address, handle, strategy=strategy, workers=2)
    consumer.hooks.append(Hook())  # type: ignore[arg-type]
    async with consumer:
        await send(producer, range(8))
        await wait_for(lambda: len(seen) == 8 and set(seen.values()) == {2}, 20)


async def test_paused_holds_for_queues_taken_later(running: RunningBroker, producer: Producer) -> None:
    seen: list[str] = []

    async def handle(message: Received) -> None:
        seen.append(message.text)

    consumer = push(running.nameserver_address, handle)
    consumer.pause()
    await send(producer, range(8))
    async with consumer:
        await wait_for(lambda: len(consumer.held) == 5, 20)
        await asyncio.sleep(0.3)
        assert not seen
        consumer.resume()
        await wait_for(lambda: len(seen) == 8, 20)
        only = next(queue for queue in consumer.held if queue.topic == "orders")
        consumer.pause(only)
        await wait_for(lambda: consumer.held[only].paused)
        consumer.resume()
        assert not consumer.held[only].paused


@pytest.mark.parametrize("broadcasting", [False, True], ids=["shared", "broadcasting"])
async def test_offsets_that_are_reset_while_it_works(
    running: RunningBroker, producer: Producer, tmp_path: Path, broadcasting: bool
) -> None:
    seen: list[str] = []

    async def handle(message: Received) -> None:
        seen.append(message.text)

    consumer = push(
        running.nameserver_address, handle, broadcasting=broadcasting, offsets_directory=str(tmp_path)
    )
    async with consumer:
        await send(producer, range(40))
        await wait_for(lambda: len(seen) == 40, 20)
        queues = [queue for queue in consumer.held if queue.topic == "orders"]
        consumer.reset_offsets("orders", dict.fromkeys(queues, 0))
        for _ in range(20):
            consumer.members_changed()  # rounds of dividing meanwhile
            await asyncio.sleep(0.01)
        await wait_for(lambda: len(seen) == 80, 20)
        await asyncio.sleep(0.2)
    assert Counter(seen) == {str(number): 2 for number in range(40)}


async def test_reset_offsets_of_a_pull_consumer(running: RunningBroker, producer: Producer) -> None:
    await send(producer, range(10))
    async with PullConsumer(
        running.nameserver_address, group="loader", options=PullOptions(**QUICK)
    ) as consumer:
        queues = await consumer.queues("orders")
        await consumer.assign(queues)
        texts: list[str] = []
        for _ in range(2):
            texts.clear()
            while len(texts) < 10:
                batch = await consumer.poll(10)
                assert batch is not None
                texts += [message.text for message in batch]
            assert sorted(map(int, texts)) == list(range(10))
            consumer.reset_offsets("orders", dict.fromkeys(queues, 0))


async def test_a_broker_that_has_lost_its_end_while_handlers_work(
    running: RunningBroker, producer: Producer
) -> None:
    """It answers a pull with a place further back: what is not done yet is not passed over."""
    seen = Counter[str]()
    release = asyncio.Event()

    async def handle(message: Received) -> None:
        seen[message.text] += 1
        await release.wait()

    await create(running, "orders", 1)
    async with push(running.nameserver_address, handle, workers=5) as consumer:
        await producer.send_batch([Message("orders", str(number)) for number in range(10)])
        await wait_for(lambda: len(seen) == 5, 20)
        held = next(held for queue, held in consumer.held.items() if queue.topic == "orders")
        held.next_offset = 10_000  # far behind the end the broker knows
        consumer._start_pulling(held)
        release.set()
        await wait_for(lambda: len(seen) == 10, 20)
        await producer.send(Message("orders", "new"))
        await wait_for(lambda: seen["new"], 20)
        await wait_for(lambda: all(not each.count for each in consumer.held.values()), 20)


async def test_a_group_turned_back_while_handlers_work(running: RunningBroker, producer: Producer) -> None:
    """By an administrator: what is at work then is no progress any more."""
    seen = Counter[str]()
    release = asyncio.Event()

    async def handle(message: Received) -> None:
        seen[message.text] += 1
        if message.text in "89":
            await release.wait()

    await create(running, "orders", 1)
    async with push(running.nameserver_address, handle, workers=5):
        await producer.send_batch([Message("orders", str(number)) for number in range(10)])
        await wait_for(lambda: len(seen) == 10, 20)
        asked = ResetOffsetRequest(topic="orders", group="billing", timestamp=1, is_force=True)
        async with Dialer() as dialer:
            answer = await dialer.call(running.address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, asked)
        assert answer.code == 0, answer.remark
        await producer.send(Message("orders", "new"))
        await asyncio.sleep(0.1)
        release.set()
        await wait_for(lambda: seen["new"] and all(seen[str(number)] >= 2 for number in range(8)), 20)


async def test_what_the_broker_does_not_take_back_is_tried_here(
    running: RunningBroker, producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(delivery, "RETRY_HERE_S", 0.2)
    attempts: list[int] = []

    async def refuse(message: Received, level: int, reason: str) -> bool:
        return False

    async def handle(message: Received) -> None:
        attempts.append(message.reconsume_times)
        if len(attempts) < 3:
            # Meanwhile nothing counts as progress.
            assert all(held.commit_offset == 0 for held in consumer.held.values() if held.count)
            raise ValueError("no")

    consumer = push(running.nameserver_address, handle)
    monkeypatch.setattr(consumer.send_back, "give_back", refuse)
    async with consumer:
        await producer.send(Message("orders", "x"))
        await wait_for(lambda: attempts == [0, 1, 2], 20)
        await wait_for(lambda: not any(held.count for held in consumer.held.values()))


@pytest.mark.parametrize("fails", [False, True], ids=["returns", "raises"])
@pytest.mark.parametrize("taken", [False, True], ids=["refused", "taken back"])
async def test_a_slow_handler_that_ends_while_its_message_is_given_back(
    running: RunningBroker, producer: Producer, monkeypatch: pytest.MonkeyPatch, fails: bool, taken: bool
) -> None:
    monkeypatch.setattr(delivery, "RETRY_HERE_S", 0.2)
    giving, given = asyncio.Event(), asyncio.Event()
    calls = 0

    async def give_back(message: Received, level: int, reason: str) -> bool:
        giving.set()
        await given.wait()
        return taken

    async def handle(message: Received) -> None:
        nonlocal calls
        calls += 1
        if calls == 1:
            await giving.wait()
            if fails:
                raise ValueError("late, and broken")

    consumer = push(running.nameserver_address, handle, handler_s_max=0.2)
    monkeypatch.setattr(consumer.send_back, "give_back", give_back)
    async with consumer:
        await producer.send(Message("orders", "x"))
        await asyncio.wait_for(giving.wait(), 20)
        await asyncio.sleep(0.1)
        given.set()
        # Either the broker has it, or it is tried here once more: it does not stay open for ever.
        await wait_for(lambda: calls == (1 if taken else 2), 20)
        await wait_for(lambda: not any(held.count for held in consumer.held.values()), 20)
