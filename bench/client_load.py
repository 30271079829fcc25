"""A load by our own client, in a process of its own, until it is told to stop.

``python -m bench.client_load send|turn|linger|batch|push|one|pull nameserver topic size in-flight``.
On SIGUSR1 it forgets the latencies so far; on SIGTERM it prints them and ends.
"""

from __future__ import annotations

import asyncio
import json
import signal
import sys
import time
from collections.abc import Awaitable, Callable

from bench.rounds import percentile
from kerolox.client.consume.consumer_options import PullOptions, PushOptions
from kerolox.client.consume.pull_consumer import PullConsumer
from kerolox.client.consume.push_consumer import PushConsumer
from kerolox.client.messages import Message, Received
from kerolox.client.options import ProducerOptions
from kerolox.client.send.producer import Producer
from kerolox.net.loop import run

BATCH = 32
LINGER_S = {"turn": 0.0, "linger": 0.001}
SAMPLES_MAX = 2_000_000


class Load:
    """What was sent or consumed, and how long sends took."""

    def __init__(self) -> None:
        self.took_s: list[float] = []
        self.failed = 0
        self.count = 0
        self.stopped = asyncio.Event()
        loop = asyncio.get_running_loop()
        loop.add_signal_handler(signal.SIGUSR1, self._forget)
        loop.add_signal_handler(signal.SIGTERM, self.stopped.set)

    def _forget(self) -> None:
        self.took_s.clear()
        self.failed = 0

    async def repeat(self, work: Callable[[], Awaitable[object]]) -> None:
        took_s = self.took_s
        now_s = time.perf_counter
        while True:
            began_s = now_s()
            try:
                await work()
            except Exception as error:
                self.failed += 1
                print(f"{type(error).__name__}: {error}", file=sys.stderr)
                await asyncio.sleep(0.1)
                continue
            if len(took_s) < SAMPLES_MAX:
                took_s.append(now_s() - began_s)

    def report(self) -> str:
        ms = [each * 1000 for each in self.took_s] or [0.0]
        return json.dumps(
            {"p50_ms": percentile(ms, 0.5), "p99_ms": percentile(ms, 0.99), "failed": self.failed}
        )


async def produce(kind: str, nameserver: str, topic: str, size: int, in_flight: int) -> None:
    load = Load()
    body = b"x" * size
    options = ProducerOptions(linger_s=LINGER_S.get(kind), timeout_s=10.0)
    async with Producer(nameserver, group="bench-producer", options=options) as producer:
        if kind == "batch":

            def work() -> Awaitable[object]:
                return producer.send_batch([Message(topic, body) for _ in range(BATCH)])
        else:

            def work() -> Awaitable[object]:
                return producer.send(Message(topic, body))

        tasks = [asyncio.create_task(load.repeat(work)) for _ in range(in_flight)]
        await load.stopped.wait()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
    print(load.report(), flush=True)


async def push(kind: str, nameserver: str, topic: str, group: str, pull_count: int) -> None:
    """With a handler of batches, or of single messages."""
    load = Load()
    options = PushOptions(start="first", pull_count=pull_count, pull_bytes=4 << 20, queue_messages_max=4096)
    consumer = PushConsumer(nameserver, group=group, options=options)

    async def take_many(messages: list[Received]) -> None:
        load.count += len(messages)

    async def take_one(message: Received) -> None:
        load.count += 1

    if kind == "push":
        consumer.subscribe(topic, take_many, batch=1024)
    else:
        consumer.subscribe(topic, take_one)
    async with consumer:
        await load.stopped.wait()
    print(load.report(), flush=True)


async def pull(nameserver: str, topic: str, group: str, pull_count: int) -> None:
    load = Load()
    options = PullOptions(start="first", pull_count=pull_count, pull_bytes=4 << 20, queue_messages_max=4096)
    async with PullConsumer(nameserver, group=group, topics=[topic], options=options) as consumer:
        while not load.stopped.is_set():
            batch = await consumer.poll(0.2)
            if batch is not None:
                load.count += len(batch)
    print(load.report(), flush=True)


def main(kind: str, nameserver: str, topic: str, what: str, how_many: str) -> None:
    if kind in ("push", "one"):
        run(push(kind, nameserver, topic, what, int(how_many)))
    elif kind == "pull":
        run(pull(nameserver, topic, what, int(how_many)))
    else:
        run(produce(kind, nameserver, topic, int(what), int(how_many)))


if __name__ == "__main__":
    main(*sys.argv[1:])
