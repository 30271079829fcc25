"""Users' functions that end in unusual ways, and the context they run in."""

from __future__ import annotations

import asyncio
import contextvars
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest

from kerolox import ConsumeHook, Message, Producer, PushConsumer, PushOptions, Queue, Received, blocking
from kerolox.client.user_code import in_thread
from kerolox.testing.broker import RunningBroker, running_broker
from kerolox.testing.threads import BrokerThread, broker_in_thread
from tests.client.kit import create, wait_for

QUICK: dict[str, Any] = {"delay_levels": "1s 1s 1s 1s 1s"}
ONE_WORKER = PushOptions(start="first", workers=1)


class Timeout(BaseException):
    """Such as gevent's, or pytest's outcomes."""


@pytest.fixture
async def running() -> AsyncIterator[RunningBroker]:
    async with running_broker(**QUICK) as running:
        await create(running, "orders", 1)
        yield running


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with broker_in_thread(**QUICK) as broker:
        broker.create_topic("orders", queues=1)
        yield broker


@pytest.mark.parametrize("ordered", [False, True])
async def test_a_handler_ended_by_a_base_exception_retries_its_message(
    running: RunningBroker, ordered: bool
) -> None:
    seen: list[tuple[str, int]] = []

    async def handle(message: Received) -> None:
        seen.append((message.text, message.reconsume_times))
        if message.text == "bad" and not message.reconsume_times:
            raise Timeout("too long")

    options = PushOptions(start="first", workers=1, ordered=ordered, suspend_s=0.02)
    async with (
        Producer(running.nameserver_address, group="shop") as producer,
        PushConsumer(running.nameserver_address, group="billing", options=options) as consumer,
    ):
        consumer.subscribe("orders", handle)
        await producer.send_batch([Message("orders", "bad"), Message("orders", "good")])
        await wait_for(lambda: {("bad", 1), ("good", 0)} <= set(seen), 10)


@pytest.mark.parametrize("raised", [SystemExit(3), Timeout("too long"), StopIteration(), KeyboardInterrupt()])
def test_a_thread_that_exits_ends_neither_the_consumer_nor_other_clients(
    broker: BrokerThread, raised: BaseException
) -> None:
    group = f"billing-{type(raised).__name__}"
    seen: list[tuple[str, int]] = []
    both = threading.Event()

    def handle(message: Received) -> None:
        seen.append((message.text, message.reconsume_times))
        if message.text == group and not message.reconsume_times:
            raise raised
        if {(group, 1), (f"{group} good", 0)} <= set(seen):
            both.set()

    with (
        blocking.Producer(broker.nameserver_address, group=f"shop-{group}") as producer,
        blocking.PushConsumer(broker.nameserver_address, group=group, options=ONE_WORKER) as consumer,
    ):
        consumer.subscribe("orders", handle)
        producer.send(Message("orders", group))
        producer.send(Message("orders", f"{group} good"))
        assert both.wait(20)
        assert producer.send(Message("orders", "after")).ok


def test_an_exit_of_an_async_handler_leaves_the_hidden_loop_running(broker: BrokerThread) -> None:
    again = threading.Event()

    async def handle(message: Received) -> None:
        if message.text == "exit":
            if not message.reconsume_times:
                sys.exit(3)
            again.set()

    with (
        blocking.Producer(broker.nameserver_address, group="shop-exit") as producer,
        blocking.PushConsumer(broker.nameserver_address, group="exiting", options=ONE_WORKER) as consumer,
    ):
        consumer.subscribe("orders", handle)  # type: ignore[arg-type]
        producer.send(Message("orders", "exit"))
        assert again.wait(20)
        assert producer.send(Message("orders", "after")).ok


def test_an_exit_of_an_async_handler_ends_the_program_and_keeps_the_message(broker: BrokerThread) -> None:
    program = textwrap.dedent("""
        import asyncio, sys
        from kerolox import Message, Producer, PushConsumer, PushOptions

        async def main(where):
            async with PushConsumer(where, group="ending", options=PushOptions(start="first")) as consumer:
                async def handle(message):
                    print(message.text, message.reconsume_times)
                    sys.exit(7)

                consumer.subscribe("ending", handle)
                await consumer.wait_closed()

        asyncio.run(main(sys.argv[1]))
    """)
    broker.create_topic("ending", queues=1)
    with blocking.Producer(broker.nameserver_address, group="shop-ending") as producer:
        producer.send(Message("ending", "order"))
    for _ in range(2):
        done = subprocess.run(
            [sys.executable, "-c", program, broker.nameserver_address],
            capture_output=True,
            text=True,
            timeout=60,
        )
        assert done.returncode == 7, done.stderr
        assert done.stdout.startswith("order "), "the message is not lost"


@pytest.mark.parametrize("ordered", [False, True])
@pytest.mark.parametrize("in_threads", [False, True])
async def test_context_variables_end_with_the_message(
    running: RunningBroker, ordered: bool, in_threads: bool
) -> None:
    request: contextvars.ContextVar[str] = contextvars.ContextVar("request", default="none")
    request.set("of the program")
    seen: list[str] = []

    def note(message: Received) -> None:
        seen.append(request.get())
        request.set(message.text)

    async def note_too(message: Received) -> None:
        note(message)

    options = PushOptions(start="first", workers=1, ordered=ordered)
    async with (
        Producer(running.nameserver_address, group="shop") as producer,
        PushConsumer(running.nameserver_address, group="billing", options=options) as consumer,
    ):
        consumer.subscribe("orders", note if in_threads else note_too)
        await producer.send_batch([Message("orders", str(number)) for number in range(5)])
        await wait_for(lambda: len(seen) == 5, 10)
    assert seen == ["of the program"] * 5


def test_a_strategy_or_a_hook_that_exits_does_not_end_consumption(broker: BrokerThread) -> None:
    asked: list[str] = []
    seen: list[str] = []
    both = threading.Event()

    def strategy(me: str, queues: Sequence[Queue], members: Sequence[str]) -> list[Queue]:
        asked.append(me)
        if len(asked) == 1:
            sys.exit(4)
        return list(queues)

    class Exiting(ConsumeHook):
        def before_consume(self, messages: Sequence[Received]) -> None:
            raise Timeout("too long")

        def after_consume(self, messages: Sequence[Received], error: object, elapsed_s: float) -> None:
            sys.exit(5)

    def handle(message: Received) -> None:
        seen.append(message.text)
        if len(seen) == 2:
            both.set()

    broker.create_topic("hooked", queues=1)
    options = PushOptions(start="first", workers=1, strategy=strategy)
    with (
        blocking.Producer(broker.nameserver_address, group="shop-hooked") as producer,
        blocking.PushConsumer(
            broker.nameserver_address, group="hooked", options=options, hooks=[Exiting()]
        ) as consumer,
    ):
        consumer.subscribe("hooked", handle)
        producer.send(Message("hooked", "a"))
        producer.send(Message("hooked", "b"))
        assert both.wait(20)
    assert seen == ["a", "b"]


async def test_a_check_that_exits_is_asked_again(running: RunningBroker) -> None:
    asked: list[str] = []

    def check(message: Received) -> bool:
        asked.append(message.text)
        if len(asked) == 1:
            sys.exit(1)
        return True

    eager = {"transaction_timeout_ms": 100, "transaction_check_ms": 100}
    async with (
        running_broker(**eager) as other,
        Producer(other.nameserver_address, group="shop", check=check) as producer,
    ):
        await create(other, "orders", 1)
        async with producer.transaction(Message("orders", b"a")) as transaction:
            await transaction.leave_open()
        await wait_for(lambda: len(asked) == 2, 10)


async def test_what_a_thread_raises_reaches_its_waiter() -> None:
    def stop() -> None:
        raise StopIteration

    with pytest.raises(RuntimeError, match="StopIteration"):
        await in_thread(None, stop)


def test_a_client_in_another_loop_says_so(broker: BrokerThread) -> None:
    from kerolox.client.errors import OtherLoop

    opened: list[Producer] = []

    async def open_it() -> None:
        opened.append(await Producer(broker.nameserver_address, group="other-loop").open())
        await opened[0].send(Message("orders", "first loop"))

    async def use_it() -> None:
        with pytest.raises(OtherLoop, match="one client per event loop"):
            await opened[0].send(Message("orders", "second loop"))

    with asyncio.Runner() as first:
        first.run(open_it())
        asyncio.run(use_it())
        first.run(opened[0].close())


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_child_may_leave_with_by_an_exit(broker: BrokerThread) -> None:
    child = 0
    try:
        with blocking.Producer(broker.nameserver_address, group="forking") as producer:
            producer.send(Message("orders", "parent"))
            child = os.fork()
            if child == 0:
                raise SystemExit(5)
            _, status = os.waitpid(child, 0)
            assert os.waitstatus_to_exitcode(status) == 5
            assert producer.send(Message("orders", "parent again")).ok
    except SystemExit as error:
        os._exit(5 if error.code == 5 else 1)
    except BaseException:
        if child == 0:
            os._exit(1)
        raise
