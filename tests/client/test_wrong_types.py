"""Wrong types: whoever gives them hears what is expected, with the value and its type; nothing is sent."""

from __future__ import annotations

import functools
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from kerolox import Message, Producer, ProducerOptions, PullConsumer, PushConsumer, Receipt, blocking
from kerolox.client.errors import AccessDenied, InvalidMessage, RecallNotAllowed, SomeFailed
from kerolox.errors import OptionError
from kerolox.testing.broker import RunningBroker, running_broker
from tests.client.kit import stored


@pytest.fixture
async def running() -> AsyncIterator[RunningBroker]:
    async with running_broker() as running:
        await running.create_topic("t", queues=2)
        yield running


@pytest.fixture
async def producer(running: RunningBroker) -> AsyncIterator[Producer]:
    async with Producer(running.nameserver_address, group="shop") as producer:
        yield producer


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "topic bytes": ({"topic": b"t"}, r"topic b't' \(bytes\): expected text"),
    "topic None": ({"topic": None}, r"topic None \(NoneType\): expected text"),
    "topic list": ({"topic": ["t"]}, r"topic \['t'\] \(list\): expected text"),
    "body number": ({"body": 5}, r"body 5 \(int\): expected bytes, or text"),
    "body None": ({"body": None}, r"body None \(NoneType\): expected bytes, or text"),
    "body list": ({"body": [1, 2]}, r"body \[1, 2\] \(list\): expected bytes"),
    "body dict": ({"body": {"a": 1}}, r"body \{'a': 1\} \(dict\): expected bytes"),
    "tags None": ({"tags": None}, r'tags None \(NoneType\): expected text: one tag, or "" for none'),
    "tags list": ({"tags": ["a"]}, r"tags \['a'\] \(list\): expected text"),
    "keys None": ({"keys": None}, r"keys None \(NoneType\): expected text, or a list of texts"),
    "keys number": ({"keys": 17}, r"keys 17 \(int\): expected text, or a list of texts"),
    "keys numbers": ({"keys": [17]}, r"keys \[17\] \(list\): expected text, or a list of texts"),
    "keys bytes": ({"keys": b"o-17"}, r"keys b'o-17' \(bytes\): expected text, or a list of texts"),
    "properties pairs": (
        {"properties": [("a", "b")]},
        r"properties .* \(list\): expected a dict",
    ),
    "properties number": ({"properties": {"a": 1}}, r"property 'a' = 1: names and values are text"),
    "delay text": ({"delay": "5"}, r"delay '5' \(str\): expected a number of seconds, or a timedelta"),
    "delay bool": ({"delay": True}, r"delay True \(bool\): expected a number"),
    "delay endless": ({"delay": float("inf")}, "expected a duration"),
    "delay not a number": ({"delay": float("nan")}, "expected a duration"),
    "level text": ({"delay_level": "3"}, r"delay_level '3' \(str\): expected a whole number"),
    "level fraction": ({"delay_level": 2.5}, r"delay_level 2.5 \(float\): expected a whole number"),
    "deliver_at text": (
        {"deliver_at": "1700000000"},
        r"deliver_at '17.* \(str\): expected a datetime",
    ),
    "deliver_at span": ({"deliver_at": timedelta(1)}, r"deliver_at .* \(timedelta\): expected a datetime"),
    "deliver_at not a number": ({"deliver_at": float("nan")}, "expected a finite time"),
    "flag text": ({"flag": "x"}, r"flag 'x' \(str\): expected a whole number"),
    "unique_key number": ({"unique_key": 5}, r"unique_key 5 \(int\): expected text"),
}


@pytest.mark.parametrize(("fields", "expected"), WRONG.values(), ids=WRONG.keys())
async def test_a_wrong_field_is_named(
    running: RunningBroker, producer: Producer, fields: dict[str, Any], expected: str
) -> None:
    message = Message(**{"topic": "t", "body": b"x", **fields})
    with pytest.raises(InvalidMessage, match=expected):
        await producer.send(message)
    with pytest.raises(InvalidMessage, match=expected):
        await producer.send_oneway(message)
    with pytest.raises(SomeFailed) as many:
        await producer.send_many([Message("t", b"good"), message])
    assert isinstance(many.value.results[0], Receipt)
    with pytest.raises(InvalidMessage, match=expected):
        raise many.value.failed[0]
    if not message.is_delayed and "topic" not in fields:
        with pytest.raises(InvalidMessage, match=expected):
            await producer.send_batch([Message("t", b"good"), message])
    assert [each.body for each in await stored(running.nameserver_address, "t")] == [b"good"]


async def test_right_ones_still_go(running: RunningBroker, producer: Producer) -> None:
    soon = datetime.now(UTC) + timedelta(milliseconds=1)
    for fields in (
        {"body": "text"},
        {"body": bytearray(b"x")},
        {"body": memoryview(b"x")},
        {"keys": "one two"},
        {"keys": ("a", "b")},
        {"delay": 0.001},
        {"delay": timedelta(milliseconds=1)},
        {"deliver_at": soon},
        {"deliver_at": soon.timestamp()},
        {"flag": 7},
        {"unique_key": "K"},
    ):
        assert (await producer.send(Message(**{"topic": "t", "body": b"x", **fields}))).ok


@pytest.mark.parametrize("lingering", [False, True], ids=["plain", "linger"])
async def test_other_arguments(running: RunningBroker, lingering: bool) -> None:
    some: Any = Message("t", b"x")
    options = ProducerOptions(linger_s=0.001 if lingering else None)
    async with Producer(running.nameserver_address, group="other", options=options) as producer:
        anything: Any = producer
        with pytest.raises(InvalidMessage, match=r"\('t', b'x'\) \(tuple\) is not a message: expected a"):
            await anything.send(("t", b"x"))
        with pytest.raises(InvalidMessage, match="is not a message"):
            await anything.send_batch([some, b"x"])
        with pytest.raises(SomeFailed, match="is not a message"):
            await anything.send_many([b"x"])
        with pytest.raises(InvalidMessage, match="send takes one"):
            await anything.send_many(some)
        with pytest.raises(InvalidMessage, match="send takes one"):
            await anything.send_batch(some)
        for give in (anything.send, anything.send_oneway):
            with pytest.raises(InvalidMessage, match=r"order_key 17 \(int\): expected text"):
                await give(some, order_key=17)
            with pytest.raises(InvalidMessage, match=r"queue \('t', .* \(tuple\): expected a Queue"):
                await give(some, queue=("t", "broker-a", 0))
            with pytest.raises(InvalidMessage, match=r"selector 0 \(int\): expected a function"):
                await give(some, selector=0)
            with pytest.raises(InvalidMessage, match=r"selector returned 0 \(int\): expected one of"):
                await give(some, selector=lambda queues, message: 0)
            with pytest.raises(InvalidMessage, match=r"timeout_s '3' \(str\): expected a number of seconds"):
                await give(some, timeout_s="3")
        with pytest.raises(InvalidMessage, match=r"timeout_s .* \(timedelta\)"):
            await anything.send_many([some], timeout_s=timedelta(seconds=1))
        assert len(await producer.send_batch(Message("t", b"x") for _ in range(3))) == 3  # type: ignore[arg-type]


async def test_names_of_topics_and_groups() -> None:
    make: Any
    for make in (PullConsumer, Producer, blocking.PullConsumer, blocking.Producer):
        with pytest.raises(OptionError, match=r"topics = 'orders': expected a list of names: \['orders'\]"):
            make("127.0.0.1:1", group="g", topics="orders")
        with pytest.raises(OptionError, match=r"topic = b'orders'.*as text"):
            make("127.0.0.1:1", group="g", topics=[b"orders"])
        with pytest.raises(OptionError, match="group = 5"):
            make("127.0.0.1:1", group=5)
    consumer: Any = PushConsumer("127.0.0.1:1", group="g")
    with pytest.raises(OptionError, match="topic = None"):
        consumer.subscribe(None, print)
    with pytest.raises(OptionError, match=r"tags = \['a', 'b'\]: expected text, not list; tags are"):
        consumer.subscribe("t", print, tags=["a", "b"])
    with pytest.raises(OptionError, match="sql = 5: expected text"):
        consumer.subscribe("t", print, sql=5)


async def nothing() -> None: ...


def two(message: object, other: object) -> None: ...


class Method:
    def takes_none(self) -> None: ...

    def takes_one(self, message: object) -> None: ...


@pytest.mark.parametrize("batch", [0, 5])
def test_handlers_that_cannot_be_called(batch: int) -> None:
    consumer: Any = PushConsumer("127.0.0.1:1", group="g")
    for handler in (
        None,
        "print",
        nothing,
        two,
        lambda: None,
        Method().takes_none,
        functools.partial(two, 1, 2),
    ):
        with pytest.raises(
            OptionError, match="expected a function that takes a " + ("list" if batch else "mess")
        ):
            consumer.on("t", batch=batch)(handler)
    assert not consumer._handlers
    callables = (print, [].append, Method().takes_one, functools.partial(two, 1), lambda m, n=1: None)
    for number, handler in enumerate(callables):
        consumer.on(f"t{number}", batch=batch)(handler)
    assert len(consumer._handlers) == len(callables)
    for wrong in (-1, "5", 2.5, True):
        with pytest.raises(OptionError, match="batch"):
            consumer.on("t", batch=wrong)(print)
    assert "t" not in consumer._handlers


async def test_recall_says_what_the_broker_lacks(running: RunningBroker, producer: Producer) -> None:
    delayed = await producer.send(Message("t", b"x", delay=60))
    with pytest.raises(RecallNotAllowed, match="recallMessageEnable=true") as caught:
        await producer.recall("t", delayed.recall_handle)
    assert isinstance(caught.value, AccessDenied)
    assert "access_key" not in str(caught.value)
    plain = await producer.send(Message("t", b"x"))
    assert plain.recall_handle is None
    with pytest.raises(InvalidMessage, match=r"recall_handle None \(NoneType\): expected text"):
        await producer.recall("t", plain.recall_handle)
