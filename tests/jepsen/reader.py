"""A client that reads everything, in order, and has its progress saved after each batch."""

from __future__ import annotations

import asyncio
import time

from kerolox.client.consume.consumer_options import PullOptions
from kerolox.client.consume.pull_consumer import PullConsumer
from kerolox.client.options import ClientOptions
from kerolox.errors import KeroloxError
from tests.rig.loop_thread import LoopThread

from .history import ClusterHistory, Commit, Read

GROUP = "readers"
POLL_S = 0.3
PAUSE_S = 0.1


class Reader:
    """Ours."""

    def __init__(self, beside: LoopThread, nameserver: str, topic: str, history: ClusterHistory) -> None:
        self._beside = beside
        self._nameserver = nameserver
        self._topic = topic
        self._history = history
        self._ended = False
        self._end = beside.begin(self._run())

    def close(self) -> None:
        def end() -> None:
            self._ended = True

        self._beside.call(end)
        self._end()

    async def _run(self) -> None:
        where = ClientOptions(
            nameservers=self._nameserver, route_refresh_s=0.3, heartbeat_s=5.0, connect_timeout_s=0.5,
            request_timeout_s=1.0,
        )  # fmt: skip
        how = PullOptions(
            start="first", auto_commit=False, hold_s=1.0, error_pause_s=0.1, balance_s=0.5, close_s=1.0
        )
        async with PullConsumer(where, group=GROUP, topics=[self._topic], options=how) as consumer:
            while not self._ended:
                try:
                    await self._read(consumer)
                except KeroloxError:
                    await asyncio.sleep(PAUSE_S)

    async def _read(self, consumer: PullConsumer) -> None:
        batch = await consumer.poll(POLL_S)
        if batch is None:
            return
        queue = batch.queue.queue_id
        now_s = time.time()
        self._history.reads += [Read(now_s, queue, one.queue_offset, one.body) for one in batch]
        consumer.done(batch)
        following = batch.next_offset
        await consumer.commit({batch.queue: following})
        self._history.commits.append(Commit(time.time(), queue, following))
