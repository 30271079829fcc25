"""Clients that send, keep every answer, and can be told to pause: ours, and Apache's."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any, Protocol

from kerolox.client.messages import Message, Receipt
from kerolox.client.options import ClientOptions, ProducerOptions
from kerolox.client.send.producer import Producer
from kerolox.errors import KeroloxError
from tests.peers.driver import JavaDriver

from .history import OK, History, Send, host_of, place_of
from .loop_thread import LoopThread

GROUP = "partition"
LANES = 3
PACE_S = 0.008
FAILED_S = 0.05
TIMEOUT_S = 2.0
# Most are small; some are longer than what goes behind one head (haTransferBatchSize).
SIZES = (20, 100, 300, 1000, 3000)
LARGE_BYTES = 50_000
LARGE_CHANCE = 0.01
JAVA_BYTES = 300
JAVA_LANES = 2


class Load(Protocol):
    client: str

    def resume(self) -> None: ...

    def pause(self) -> None:
        """Return when every answer is in the history."""

    def collect(self) -> None:
        """Bring the history up to date."""

    def close(self) -> None: ...


class OurLoad:
    """Our client."""

    client = "ours"

    def __init__(
        self,
        beside: LoopThread,
        nameserver: str,
        topic: str,
        history: History,
        seed: int,
        *,
        timeout_s: float = TIMEOUT_S,
        pace_s: float = PACE_S,
    ) -> None:
        self._timeout_s = timeout_s
        self._pace_s = pace_s
        self._beside = beside
        self._nameserver = nameserver
        self._topic = topic
        self._history = history
        self._chance = random.Random(seed)
        self._number = 0
        self._sending = 0
        self._running = asyncio.Event()
        self._idle = asyncio.Event()
        self._ended = False
        self._end = beside.begin(self._run())

    def resume(self) -> None:
        self._beside.call(self._running.set)

    def pause(self) -> None:
        async def paused() -> None:
            self._running.clear()
            while self._sending:
                self._idle.clear()
                await self._idle.wait()

        self._beside.run(paused())

    def collect(self) -> None:
        pass

    def close(self) -> None:
        def end() -> None:
            self._ended = True
            self._running.set()

        self._beside.call(end)
        self._end()

    async def _run(self) -> None:
        options = ClientOptions(
            nameservers=self._nameserver, route_refresh_s=0.3, heartbeat_s=5.0, connect_timeout_s=0.5,
            request_timeout_s=1.0,
        )  # fmt: skip
        sending = ProducerOptions(timeout_s=self._timeout_s, retries=0, compression="")
        async with Producer(options, group=GROUP, options=sending) as producer:
            await asyncio.gather(*(self._lane(producer) for _ in range(LANES)))

    async def _lane(self, producer: Producer) -> None:
        while True:
            await self._running.wait()
            if self._ended:
                return
            self._sending += 1
            try:
                sent = await self._send(producer)
            finally:
                self._sending -= 1
                self._idle.set()
            self._history.add(sent)
            await asyncio.sleep(self._pace_s if sent.stored else FAILED_S)

    async def _send(self, producer: Producer) -> Send:
        self._number += 1
        size = LARGE_BYTES if self._chance.random() < LARGE_CHANCE else self._chance.choice(SIZES)
        body = (b"ours:%d:" % self._number).ljust(size, b".")
        began_s = time.time()
        try:
            receipt = await producer.send(Message(self._topic, body))
        except KeroloxError as error:
            return Send(self.client, body, began_s, time.time(), type(error).__name__)
        return sent(self.client, body, began_s, receipt)


def sent(client: str, body: bytes, began_s: float, receipt: Receipt) -> Send:
    """What a broker has answered just now."""
    return Send(
        client,
        body,
        began_s,
        time.time(),
        OK if receipt.ok else receipt.status.name,
        receipt.queue.queue_id,
        receipt.queue_offset,
        place_of(receipt.offset_msg_id),
        host_of(receipt.offset_msg_id),
    )


class JavaLoad:
    """Apache's client, in its driver."""

    client = "java"

    def __init__(self, driver: JavaDriver, nameserver: str, topic: str, history: History) -> None:
        self._driver = driver
        self._history = history
        self._handle = driver.call(
            "load.start", namesrv=nameserver, topic=topic, group=GROUP, lanes=JAVA_LANES,
            producers=JAVA_LANES, size=JAVA_BYTES, paceMs=int(PACE_S * 1000), history=True,
            options={"sendMsgTimeout": int(TIMEOUT_S * 1000), "pollNameServerInterval": 300},
        )  # fmt: skip
        self.pause()

    def resume(self) -> None:
        self._call("load.resume")

    def pause(self) -> None:
        self._call("load.pause")
        self.collect()

    def collect(self) -> None:
        self._history.add(*(self._sent(*tried) for tried in self._call("load.history")))

    def close(self) -> None:
        self._driver.call("stopAll")  # there is nothing else in it

    def _call(self, op: str) -> Any:
        return self._driver.call(op, handle=self._handle)

    def _sent(self, text: str, began: int, ended: int, status: str, queue: int, offset: int, at: str) -> Send:
        body = text.encode().ljust(JAVA_BYTES, b".")
        place, host = (place_of(at), host_of(at)) if at else (-1, "")
        return Send(self.client, body, began / 1000, ended / 1000, status, queue, offset, place, host)
