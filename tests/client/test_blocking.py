"""The blocking twin: the broker in one thread's loop, the callers in others."""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from kerolox.blocking import Client, Message, Producer, ProducerOptions
from kerolox.client.blocking.producer import LoopThread, loop_thread
from kerolox.client.errors import AfterFork, InvalidMessage
from kerolox.client.send.hooks import SendContext, SendHook
from kerolox.errors import Closed, KeroloxError
from kerolox.testing.broker import RunningBroker, running_broker
from tests.client.kit import create, stored


@pytest.fixture
def running() -> Iterator[RunningBroker]:
    """A broker in a loop thread of its own."""
    thread = LoopThread()
    manager = running_broker()
    running = thread.run(manager.__aenter__)
    thread.run(lambda: create(running, "orders"))
    yield running
    thread.run(lambda: manager.__aexit__(None, None, None))


def test_sends_from_many_threads(running: RunningBroker) -> None:
    with Producer(running.nameserver_address, group="shop") as producer, ThreadPoolExecutor(8) as threads:
        receipts = list(
            threads.map(lambda number: producer.send(Message("orders", b"%d" % number)), range(200))
        )
        assert len({receipt.msg_id for receipt in receipts}) == 200
        many = producer.send_many(Message("orders", b"%d" % number) for number in range(10))
        batch = producer.send_batch([Message("orders", b"a"), Message("orders", b"b")])
        assert len(many) == 10
        assert len(batch) == 2
        producer.send_oneway(Message("orders", b"o"), queue=producer.queues("orders")[0])
        producer.send(Message("orders", b"last"), queue=producer.queues("orders")[0])
        producer.flush()
    found = asyncio.run(stored(running.nameserver_address, "orders"))
    assert len(found) == 214
    with pytest.raises(Closed):
        producer.send(Message("orders", b"x"))


def test_errors_are_raised_where_the_call_was(running: RunningBroker) -> None:
    with Producer(running.nameserver_address, group="shop") as producer:
        with pytest.raises(InvalidMessage):
            producer.send(Message("orders", b""))
        assert "shop open" in repr(producer)


def test_two_producers_share_a_client(running: RunningBroker) -> None:
    with Client(running.nameserver_address) as client:
        with Producer(client, group="one") as one, Producer(client, group="two") as two:
            assert one.send(Message("orders", b"1")).ok
            assert two.send(Message("orders", b"2")).ok
            assert one.inner.client is two.inner.client is client.inner
        assert "open" in repr(client)
    assert "closed" in repr(client)


def test_lingering_across_threads(running: RunningBroker) -> None:
    options = ProducerOptions(linger_s=0.005)
    with (
        Producer(running.nameserver_address, group="shop", options=options) as producer,
        ThreadPoolExecutor(8) as threads,
    ):
        receipts = list(threads.map(lambda n: producer.send(Message("orders", b"%d" % n)), range(80)))
    assert all(receipt.ok for receipt in receipts)


def test_a_hook_cannot_wait_for_itself(running: RunningBroker) -> None:
    class Sends(SendHook):
        def before_send(self, context: SendContext) -> None:
            if context.message.body == b"x":
                producer.send(Message("orders", b"y"))

    with (
        Producer(running.nameserver_address, group="shop", hooks=[Sends()]) as producer,
        pytest.raises(KeroloxError, match="would deadlock"),
    ):
        producer.send(Message("orders", b"x"))


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_after_a_fork(running: RunningBroker) -> None:
    with Producer(running.nameserver_address, group="shop") as producer:
        producer.send(Message("orders", b"parent"))
        child = os.fork()
        if child == 0:
            code = 1
            try:
                try:
                    producer.send(Message("orders", b"child"))
                except AfterFork:
                    with Producer(running.nameserver_address, group="shop") as own:
                        own.send(Message("orders", b"child's own"))
                    code = 0
            finally:
                os._exit(code)
        _, status = os.waitpid(child, 0)
        assert os.waitstatus_to_exitcode(status) == 0
        producer.send(Message("orders", b"parent again"))
    bodies = {m.body for m in asyncio.run(stored(running.nameserver_address, "orders"))}
    assert bodies == {b"parent", b"child's own", b"parent again"}


def test_there_is_one_hidden_thread() -> None:
    assert loop_thread() is loop_thread()
    assert sum(thread.name == "kerolox" for thread in threading.enumerate()) >= 1
