"""A story told with RocketMQ's own Python client: ``official_client.py STORY HOST:PORT``.

What happened is printed as one line of JSON.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from typing import Any

from rocketmq import (
    ClientConfiguration,
    ConsumeResult,
    Credentials,
    FilterExpression,
    Message,
    MessageListener,
    Producer,
    PushConsumer,
    SimpleConsumer,
    TransactionChecker,
    TransactionResolution,
)

WAIT_S = 60.0


def configured(address: str) -> Any:
    user, _, password = (sys.argv[3] if len(sys.argv) > 3 else "").partition(":")
    return ClientConfiguration(address, Credentials(user, password) if user else Credentials())


def message(topic: str, body: bytes, **fields: Any) -> Any:
    made = Message()
    made.topic, made.body = topic, body
    for name, value in fields.items():
        setattr(made, name, value)
    return made


def wait_for(condition: Callable[[], bool]) -> None:
    until_s = time.monotonic() + WAIT_S
    while not condition():
        if time.monotonic() > until_s:
            raise TimeoutError
        time.sleep(0.05)


def produced(address: str) -> dict[str, Any]:
    """Send messages of every kind."""
    producer = Producer(configured(address), ("normal", "fifo", "delay"))
    producer.startup()
    plain = message("normal", b"plain", tag="paid", keys="k1")
    plain.add_property("color", "blue")
    ids = [producer.send(plain).message_id]
    ids.append(producer.send(message("fifo", b"first", message_group="g1")).message_id)
    due_s = int(time.time()) + 2
    ids.append(producer.send(message("delay", b"late", delivery_timestamp=due_s)).message_id)
    refused = ""
    try:
        producer.send(message("missing", b"x"))
    except Exception as error:
        refused = str(error)
    producer.shutdown()
    return {"ids": ids, "refused": refused}


def transacted(address: str) -> dict[str, Any]:
    """Commit one transaction, roll one back, and leave one to be asked about."""
    asked: list[str] = []

    class Checker(TransactionChecker):  # type: ignore[misc]
        def check(self, half: Any) -> Any:
            asked.append(half.body.decode())
            return TransactionResolution.COMMIT

    producer = Producer(configured(address), ("deals",), Checker())
    producer.startup()
    for body, end in ((b"kept", "commit"), (b"dropped", "rollback"), (b"asked", "")):
        transaction = producer.begin_transaction()
        producer.send(message("deals", body), transaction)
        if end:
            getattr(transaction, end)()
    wait_for(lambda: bool(asked))
    time.sleep(0.5)  # the answer to the question is sent after it
    producer.shutdown()
    return {"asked": sorted(set(asked))}


def consumed_simply(address: str) -> dict[str, Any]:
    """Receive and acknowledge; what is not acknowledged comes again."""
    consumer = SimpleConsumer(configured(address), "simple", {"normal": FilterExpression()}, 5)
    consumer.startup()
    producer = Producer(configured(address), ("normal",))
    producer.startup()
    consumer.receive(1, 10)  # the group begins here
    for number in range(20):
        producer.send(message("normal", b"%d" % number))
    done: list[str] = []
    attempts: dict[str, int] = {}
    held = False

    def receive() -> bool:
        nonlocal held
        for got in consumer.receive(32, 10) or ():
            body = got.body.decode()
            attempts[body] = got.delivery_attempt
            if body == "7" and not held:
                held = True
                continue
            consumer.ack(got)
            done.append(body)
        return len(done) >= 20

    wait_for(receive)
    producer.shutdown()
    consumer.shutdown()
    return {"done": sorted(done, key=int), "attempts_of_7": attempts["7"]}


def consumed_by_push(address: str) -> dict[str, Any]:
    """Let a listener consume; what it fails on comes again."""
    got: list[str] = []

    class Listener(MessageListener):  # type: ignore[misc]
        def consume(self, received: Any) -> Any:
            body = received.body.decode()
            got.append(body)
            if body == "again" and got.count("again") == 1:
                return ConsumeResult.FAILURE
            return ConsumeResult.SUCCESS

    consumer = PushConsumer(configured(address), "push", Listener(), {"normal": FilterExpression("a || b")})
    consumer.startup()
    producer = Producer(configured(address), ("normal",))
    producer.startup()
    # The group begins when it first asks: send until it has begun.
    begin = time.monotonic()
    while not got and time.monotonic() - begin < WAIT_S:
        producer.send(message("normal", b"begin", tag="a"))
        time.sleep(0.2)
    for number in range(20):
        producer.send(message("normal", b"%d" % number, tag="ab"[number % 2]))
        producer.send(message("normal", b"other", tag="c"))
    producer.send(message("normal", b"again", tag="b"))
    wait_for(lambda: got.count("again") == 2 and {str(number) for number in range(20)} <= set(got))
    producer.shutdown()
    consumer.shutdown()
    counts = {body: got.count(body) for body in set(got) - {"begin"}}
    return {"counts": counts}


STORIES = {story.__name__: story for story in (produced, transacted, consumed_simply, consumed_by_push)}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(STORIES[sys.argv[1]](sys.argv[2])) + "\n")
