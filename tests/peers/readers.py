"""Ordered consumers that go on over failovers, ours and Apache's, and what they were given."""

from __future__ import annotations

import asyncio
import base64
import threading
import time
from collections.abc import Iterable
from typing import Any

from kerolox.client.consume.consumer_options import PushOptions
from kerolox.client.consume.push_consumer import PushConsumer
from kerolox.client.messages import Received
from kerolox.client.options import ClientOptions
from tests.rig.history import Send

from .driver import JavaDriver
from .lanes import out_of_order

PATIENCE_S = 120.0


class OurReader:
    """Our consumer, in a thread with a loop of its own."""

    def __init__(self, nameserver: str, topic: str) -> None:
        self.bodies: list[bytes] = []
        self._nameserver = nameserver
        self._topic = topic
        self._ended = threading.Event()
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="our-reader", daemon=True)
        self._thread.start()

    def _work(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:  # told to whoever waits
            self._failure = error

    async def _run(self) -> None:
        options = PushOptions(start="first", ordered=True)
        consumer = PushConsumer(
            ClientOptions(self._nameserver), group=f"our_reader_{self._topic}", options=options
        )

        @consumer.on(self._topic)
        async def note(message: Received) -> None:
            self.bodies.append(message.body)

        async with consumer:
            while not self._ended.is_set():  # noqa: ASYNC110 — set by another thread
                await asyncio.sleep(0.05)

    def received(self) -> list[bytes]:
        return self.bodies

    def close(self) -> None:
        self._ended.set()
        self._thread.join(PATIENCE_S)
        if self._failure is not None:
            raise AssertionError("our reader ended") from self._failure


class JavaReader:
    """Apache's consumer, which looks for routes every second, not every thirty."""

    def __init__(self, driver: JavaDriver, nameserver: str, topic: str) -> None:
        self._driver = driver
        self._records: list[dict[str, Any]] = []
        self._handle = driver.call(
            "push.start", namesrv=nameserver, group=f"java_reader_{topic}", orderly=True, body=True,
            subscriptions=[{"topic": topic, "expression": "*"}],
            options={"consumeFromWhere": "CONSUME_FROM_FIRST_OFFSET"},
        )  # fmt: skip

    def received(self) -> list[bytes]:
        self._records += self._driver.call("push.drain", handle=self._handle)
        return [base64.b64decode(record["body"]) for record in self._records]

    def close(self) -> None:
        self._driver.call("push.leave", handle=self._handle)


def check_read(reader: OurReader | JavaReader, sends: Iterable[Send]) -> None:
    """Wait until all that was acknowledged is received; each lane in its order."""
    wanted = {send.body for send in sends if send.ok}
    deadline = time.monotonic() + PATIENCE_S
    while missing := wanted - set(bodies := reader.received()):
        assert time.monotonic() < deadline, (
            f"{type(reader).__name__} lacks {len(missing)} of {len(wanted)}: {sorted(missing)[:5]}"
        )
        time.sleep(0.2)
    assert out_of_order(bodies) == []
