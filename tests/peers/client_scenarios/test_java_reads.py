"""Mixed company: Python producers, Java consumers; Python asks, Java replies, and the other way round."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from kerolox.blocking import Message, Producer, ProducerOptions, Received
from tests.client.kit import stored

from ..driver import JavaDriver
from ..scenarios.client import Client, Handle, body, wait_until
from .conftest import Target, now

Unique = Callable[[str], str]


@pytest.fixture
def java(target: Target, java_driver: JavaDriver) -> Client:
    return Client(java_driver, target.nameserver, target.kind)


def test_java_reads_what_python_sends(target: Target, java: Client, unique: Unique) -> None:
    topic = now(target.create_topic(unique("topic")))
    expected: dict[str, tuple[bytes, str]] = {}  # msg id → body, offset id

    with Producer(target.nameserver, group=unique("pid")) as producer:

        def send(message: Message, **how: str) -> None:
            receipt = producer.send(message, **how)  # type: ignore[arg-type]
            expected[receipt.msg_id] = (message.body_bytes(), receipt.offset_msg_id)

        send(Message(topic, "grün", tags="t", keys=["a", "b"], properties={"colour": "red"}))
        send(Message(topic, b"ordered"), order_key="order-17")
        for message, receipt in zip(
            batch := [Message(topic, b"batch %d" % n, keys=f"b{n}") for n in range(5)],
            producer.send_batch(batch),
            strict=True,
        ):
            expected[receipt.msg_id] = (message.body_bytes(), receipt.offset_msg_id)
        delayed = producer.send(Message(topic, b"delayed", delay_level=1))
        expected[delayed.msg_id] = (b"delayed", "")
        with producer.transaction(Message(topic, b"transaction")) as transaction:
            pass
        expected[transaction.id] = (b"transaction", "")
    for kind in ("zlib", "zstd", "lz4"):
        options = ProducerOptions(compression=kind)
        with Producer(target.nameserver, group=unique("pid"), options=options) as producer:
            send(Message(topic, kind.encode() * 5000))
    options = ProducerOptions(linger_s=0.01)
    with (
        Producer(target.nameserver, group=unique("pid"), options=options) as producer,
        ThreadPoolExecutor(8) as threads,
    ):
        list(threads.map(lambda n: send(Message(topic, b"lingered %d" % n)), range(20)))

    consumer = java.push(unique("group"), topic, body=True)
    consumer.wait(len(expected))
    records = {record["msgId"]: record for record in consumer.drain()}
    assert set(records) == set(expected)
    for msg_id, (content, offset_msg_id) in expected.items():
        assert body(records[msg_id]) == content
        if offset_msg_id:
            assert records[msg_id]["offsetMsgId"] == offset_msg_id
    first = next(iter(expected))
    properties = records[first]["properties"]
    assert (properties["TAGS"], properties["KEYS"], properties["colour"]) == ("t", "a b", "red")


def test_equal_keys_meet_in_one_queue(target: Target, java: Client, unique: Unique) -> None:
    """A Java selector by hash and an order key choose the same queue."""
    topic = now(target.create_topic(unique("topic"), 7))
    theirs = java.producer(unique("pid"))
    with Producer(target.nameserver, group=unique("pid")) as ours:
        for key in ("a", "order-17", "polygenelubricants", "ключ"):
            sent = theirs.send(topic, "x", selector="hash", arg=key)
            assert ours.send(Message(topic, b"y"), order_key=key).queue.queue_id == sent["queue"]["queueId"]


def test_java_s_tool_reads_our_trace(target: Target, java: Client, unique: Unique) -> None:
    topic, group = now(target.create_topic(unique("topic"), 1)), unique("pid")
    with Producer(target.nameserver, group=group, options=ProducerOptions(trace=True)) as producer:
        receipt = producer.send(Message(topic, b"hello", tags="paid", keys="k1"))
    printed = ""

    def found() -> bool:
        nonlocal printed
        printed = java.mqadmin("queryMsgTraceById", "-i", receipt.msg_id)
        return group in printed

    wait_until(found, "the trace is found")
    assert "Pub" in printed
    assert "success" in printed


def test_python_asks_and_java_replies(target: Target, java: Client, unique: Unique) -> None:
    topic = now(target.create_topic(unique("topic"), 1))
    Handle(
        java.driver,
        str(
            java.driver.call(
                "replier.start",
                namesrv=target.nameserver,
                topic=topic,
                group=unique("group"),
                word="you said ",
            )
        ),
    )
    with Producer(target.nameserver, group=unique("pid")) as producer:
        for question in ("a", "grün"):
            reply = producer.request(Message(topic, question), timeout_s=60)
            assert reply.text == f"you said {question}"


def test_java_asks_and_python_replies(target: Target, java: Client, unique: Unique) -> None:
    topic = now(target.create_topic(unique("topic"), 1))
    asker = java.producer(unique("pid"))
    answer = java.later(lambda: asker.method("request", {"topic": topic, "text": "6*7"}, 60_000))
    requests: list[Received] = []
    deadline = time.monotonic() + 60
    while not requests:
        assert time.monotonic() < deadline
        requests = now(stored(target.nameserver, topic))
    with Producer(target.nameserver, group=unique("pid")) as producer:
        assert producer.reply(requests[0], "42").ok
    assert body(answer.result(60)) == b"42"
