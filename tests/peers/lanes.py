"""Senders that go on over failovers, ours and Apache's, and what they were told.

Each lane is one queue with numbers 0, 1, 2, ...; a number is sent again until it is acknowledged, so a lane
is in order, with repetitions next to each other only. Apache's client does the same in its driver
(``Load.java``).
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from kerolox.client.messages import Message, Queue
from kerolox.client.options import ClientOptions, ProducerOptions
from kerolox.client.send.producer import Producer
from kerolox.errors import KeroloxError
from tests.rig.history import OK, History, Send, place_of

from .driver import JavaDriver

SEND_TIMEOUT_S = 3.0  # of either client
PACE_S = 0.005
FAILED_S = 0.02  # as Load.java
BODY_BYTES = 200
PATIENCE_S = 120.0


class Lanes(Protocol):
    """A load that runs from its making until it is closed."""

    client: str

    def wait_more(self, count: int) -> None:
        """Until so many more are acknowledged. Raises AssertionError."""

    def close(self) -> None:
        """End it: all that was tried is in the history."""


class OurLanes:
    """Our client, in a thread with a loop of its own, with the options it has when nobody says otherwise."""

    client = "ours"

    def __init__(
        self,
        nameserver: str,
        topic: str,
        history: History,
        *,
        lanes: int = 2,
        pace_s: float = PACE_S,
        options: ClientOptions | None = None,
    ) -> None:
        self._options = options or ClientOptions(nameservers=nameserver)
        self._topic = topic
        self._history = history
        self._lanes = lanes
        self._pace_s = pace_s
        self._acked = 0
        self._ended = False
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._work, name="our-lanes", daemon=True)
        self._thread.start()

    def wait_more(self, count: int) -> None:
        wanted, deadline = self._acked + count, time.monotonic() + PATIENCE_S
        while self._acked < wanted:
            if self._failure is not None:
                raise AssertionError("our client's load ended") from self._failure
            last = [(one.body[:20], one.status) for one in self._history.sends[-5:]]
            assert time.monotonic() < deadline, f"our client got {self._acked} of {wanted}; the last: {last}"
            time.sleep(0.01)

    def close(self) -> None:
        self._ended = True
        self._thread.join(PATIENCE_S)
        if self._failure is not None:
            raise AssertionError("our client's load ended") from self._failure
        assert not self._thread.is_alive(), "our client does not end"

    def _work(self) -> None:
        try:
            asyncio.run(self._run())
        except BaseException as error:  # told to whoever waits
            self._failure = error

    async def _run(self) -> None:
        sending = ProducerOptions(timeout_s=SEND_TIMEOUT_S, compression="")
        async with Producer(self._options, group="our_lanes", options=sending) as producer:
            await asyncio.gather(*(self._lane(producer, lane) for lane in range(self._lanes)))

    async def _lane(self, producer: Producer, lane: int) -> None:
        def choose(queues: Sequence[Queue], _: Message) -> Queue:
            return queues[lane % len(queues)]

        number = 0
        while not self._ended:
            body = (b"ours:%d:%d:" % (lane, number)).ljust(BODY_BYTES, b".")
            began_s = time.time()
            try:
                receipt = await producer.send(Message(self._topic, body), selector=choose)
            except KeroloxError as error:
                sent = Send(self.client, body, began_s, time.time(), type(error).__name__)
            else:
                sent = Send(
                    self.client,
                    body,
                    began_s,
                    time.time(),
                    OK if receipt.ok else receipt.status.name,
                    receipt.queue.queue_id,
                    receipt.queue_offset,
                    place_of(receipt.offset_msg_id),
                )
            self._history.add(sent)
            if sent.ok:
                number += 1
                self._acked += 1
            await asyncio.sleep(self._pace_s if sent.ok else FAILED_S)


class JavaLanes:
    """Apache's client. It looks for routes every second, not every thirty."""

    client = "java"

    def __init__(
        self,
        driver: JavaDriver,
        nameserver: str,
        topic: str,
        history: History,
        *,
        lanes: int = 2,
        pace_s: float = PACE_S,
        **options: Any,
    ) -> None:
        self._driver = driver
        self._history = history
        self._handle = driver.call(
            "load.start", namesrv=nameserver, topic=topic, group="java_lanes", lanes=lanes, producers=lanes,
            size=BODY_BYTES, paceMs=int(pace_s * 1000), history=True, onlyOk=True,
            options={"sendMsgTimeout": int(SEND_TIMEOUT_S * 1000), **options},
        )  # fmt: skip

    def wait_more(self, count: int) -> None:
        limit_ms = int(PATIENCE_S * 1000)
        asked: dict[str, Any] = {"handle": self._handle, "more": count, "timeoutMs": limit_ms}
        done = self._driver.call("load.wait", timeout=PATIENCE_S + 10, **asked)
        assert done, self._driver.call("load.progress", handle=self._handle)

    def collect(self) -> None:
        """Bring the history up to date."""
        tried = self._driver.call("load.history", handle=self._handle)
        self._history.add(*(self._sent(*each) for each in tried))

    def close(self) -> None:
        self._driver.call("load.stop", handle=self._handle)
        self.collect()

    def _sent(self, text: str, began: int, ended: int, status: str, queue: int, offset: int, at: str) -> Send:
        body = text.encode().ljust(BODY_BYTES, b".")
        place = place_of(at) if at else -1
        return Send(self.client, body, began / 1000, ended / 1000, status, queue, offset, place)


def out_of_order(bodies: Iterable[bytes]) -> list[str]:
    """Where a lane's numbers go forward over one that was not there before. A step back is a repetition."""
    highest: dict[bytes, int] = defaultdict(lambda: -1)
    wrong = []
    for body in bodies:
        lane, _, number_text = body.rstrip(b".").removesuffix(b":").rpartition(b":")
        number = int(number_text)
        if number > highest[lane] + 1:
            wrong.append(f"lane {lane!r}: {number} after {highest[lane]}")
        highest[lane] = max(highest[lane], number)
    return wrong
