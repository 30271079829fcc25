"""The blocking consumers, against a real broker on a loop of its own."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from kerolox.blocking import (
    Message,
    OptionError,
    Producer,
    PullConsumer,
    PullOptions,
    PushConsumer,
    PushOptions,
    Received,
)
from kerolox.testing.broker import running_broker


@pytest.fixture
def nameserver() -> Iterator[str]:
    ready = threading.Event()
    address: list[str] = []
    loop = asyncio.new_event_loop()

    async def serve() -> None:
        async with running_broker() as running:
            address.append(running.nameserver_address)
            ready.set()
            await stop.wait()

    stop = asyncio.Event()
    thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
    thread.start()
    assert ready.wait(20)
    yield address[0]
    loop.call_soon_threadsafe(stop.set)
    thread.join(20)
    loop.close()


def test_push_and_pull_without_await(nameserver: str) -> None:
    with Producer(nameserver, group="shop") as producer:
        producer.send_many([Message("orders", str(number)) for number in range(50)])
    seen: list[str] = []
    enough = threading.Event()
    with PushConsumer(nameserver, group="billing", options=PushOptions(start="first")) as consumer:

        @consumer.on("orders")
        def bill(message: Received) -> None:
            assert threading.current_thread().name.startswith("kerolox-billing")
            seen.append(message.text)
            if len(seen) == 50:
                enough.set()

        assert enough.wait(20)
    assert sorted(map(int, seen)) == list(range(50))

    pulled: list[str] = []
    options = PullOptions(start="first")
    with PullConsumer(nameserver, group="loader", topics=["orders"], options=options) as loader:
        for batch in loader:
            pulled += [message.text for message in batch]
            if len(pulled) == 50:
                break
        loader.commit()
        assert sum(loader.committed(queue) or 0 for queue in loader.assignment) == 50
        loader.seek_all("begin")
        again = loader.poll()
        assert again is not None
        assert again[0].queue_offset == 0
    assert sorted(map(int, pulled)) == list(range(50))


def test_a_second_handler_of_a_topic_is_refused(nameserver: str) -> None:
    with PushConsumer(nameserver, group="billing") as consumer:

        @consumer.on("orders", tags="paid")
        def bill(message: Received) -> None: ...

        with pytest.raises(OptionError, match="bill has it"):

            @consumer.on("orders", tags="refunded")
            def refund(message: Received) -> None: ...


def test_a_loop_over_batches_ends_when_another_thread_closes(nameserver: str) -> None:
    with Producer(nameserver, group="shop") as producer:
        producer.send(Message("orders", "x"))
    consumer = PullConsumer(nameserver, group="loader", topics=["orders"], options=PullOptions(start="first"))
    consumer.open()
    got = threading.Event()

    def loop() -> None:
        for _ in consumer:
            got.set()

    thread = threading.Thread(target=loop)
    thread.start()
    assert got.wait(20)
    consumer.close()
    thread.join(20)
    assert not thread.is_alive()
