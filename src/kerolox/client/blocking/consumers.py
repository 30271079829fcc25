"""Blocking variants of the consumers; see :mod:`kerolox.client.blocking.producer`.

::

    from kerolox.blocking import PullConsumer, PushConsumer

    with PushConsumer("127.0.0.1:9876", group="billing") as consumer:

        @consumer.on("orders")
        def bill(message): ...          # runs in a thread of the consumer

        consumer.wait_closed()

    with PullConsumer("127.0.0.1:9876", group="loader", topics=["orders"]) as consumer:
        for batch in consumer: ...
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, TypeVar, overload

from kerolox.client.blocking.producer import Client, Twin, inner_of
from kerolox.client.consume import pull_consumer as async_pull
from kerolox.client.consume import push_consumer as async_push
from kerolox.client.consume.consumer import Consumer
from kerolox.client.consume.consumer_options import PullOptions, PushOptions
from kerolox.client.consume.handlers import BatchHandle, Handle, Many, One
from kerolox.client.consume.pull_consumer import Batch
from kerolox.client.consume.push_consumer import ConsumeHook
from kerolox.client.messages import Queue
from kerolox.client.names import topic_list
from kerolox.client.options import ClientOptions
from kerolox.errors import RequestFailed

C = TypeVar("C", bound=Consumer)


class ConsumerTwin(Twin[C]):
    """Common base of the blocking consumers."""

    @property
    def is_open(self) -> bool:
        return self._thread.call(lambda: self.inner.is_open)

    @property
    def refusal(self) -> RequestFailed | None:
        """Error of a broker that rejects this consumer; None while none does."""
        return self._thread.call(lambda: self.inner.refusal)

    def wait_closed(self) -> None:
        """Wait until the consumer is closed. Ctrl-C interrupts the wait."""
        self._thread.run(self.inner.wait_closed)


class PushConsumer(ConsumerTwin[async_push.PushConsumer]):
    """Consumer that calls handlers. It has the names of :class:`kerolox.PushConsumer`."""

    def __init__(
        self,
        where: Client | ClientOptions | str | Sequence[str] | None = None,
        *,
        group: str,
        options: PushOptions | None = None,
        hooks: Iterable[ConsumeHook] = (),
    ) -> None:
        super().__init__(
            lambda: async_push.PushConsumer(inner_of(where), group=group, options=options, hooks=hooks)
        )

    @overload
    def on(self, topic: str, *, tags: str = "*", sql: str | None = None) -> Callable[[One], One]: ...

    @overload
    def on(
        self, topic: str, *, tags: str = "*", sql: str | None = None, batch: int
    ) -> Callable[[Many], Many]: ...

    def on(
        self, topic: str, *, tags: str = "*", sql: str | None = None, batch: int = 0
    ) -> Callable[[Any], Any]:
        """Decorator: call this function with the messages of a topic, in a thread."""

        def register(function: Callable[[Any], Any]) -> Callable[[Any], Any]:
            register_inner: Callable[[Any], Any] = self.inner.on(topic, tags=tags, sql=sql, batch=batch)
            self._thread.call(lambda: register_inner(function))
            return function

        return register

    @overload
    def subscribe(self, topic: str, handler: Handle, *, tags: str = "*", sql: str | None = None) -> None: ...

    @overload
    def subscribe(
        self, topic: str, handler: BatchHandle, *, tags: str = "*", sql: str | None = None, batch: int
    ) -> None: ...

    def subscribe(
        self,
        topic: str,
        handler: Callable[[Any], Any],
        *,
        tags: str = "*",
        sql: str | None = None,
        batch: int = 0,
    ) -> None:
        self._thread.call(lambda: self.inner.subscribe(topic, handler, tags=tags, sql=sql, batch=batch))

    def unsubscribe(self, topic: str) -> None:
        self._thread.call(lambda: self.inner.unsubscribe(topic))

    def pause(self, *queues: Queue) -> None:
        self._thread.call(lambda: self.inner.pause(*queues))

    def resume(self, *queues: Queue) -> None:
        self._thread.call(lambda: self.inner.resume(*queues))


class PullConsumer(ConsumerTwin[async_pull.PullConsumer]):
    """Consumer that returns batches. It has the names of :class:`kerolox.PullConsumer`."""

    def __init__(
        self,
        where: Client | ClientOptions | str | Sequence[str] | None = None,
        *,
        group: str,
        topics: Iterable[str] = (),
        tags: str = "*",
        sql: str | None = None,
        options: PullOptions | None = None,
    ) -> None:
        wanted = topic_list(topics)
        super().__init__(
            lambda: async_pull.PullConsumer(
                inner_of(where), group=group, topics=wanted, tags=tags, sql=sql, options=options
            )
        )

    def subscribe(self, topic: str, *, tags: str = "*", sql: str | None = None) -> None:
        self._thread.call(lambda: self.inner.subscribe(topic, tags=tags, sql=sql))

    def unsubscribe(self, topic: str) -> None:
        self._thread.call(lambda: self.inner.unsubscribe(topic))

    def assign(self, queues: Iterable[Queue], *, tags: str = "*", sql: str | None = None) -> None:
        wanted = list(queues)
        self._thread.run(lambda: self.inner.assign(wanted, tags=tags, sql=sql))

    def queues(self, topic: str) -> list[Queue]:
        return self._thread.run(lambda: self.inner.queues(topic))

    @property
    def assignment(self) -> list[Queue]:
        return self._thread.call(lambda: self.inner.assignment)

    def poll(self, timeout_s: float | None = 5.0, *, count: int = 0) -> Batch | None:
        return self._thread.run(lambda: self.inner.poll(timeout_s, count=count))

    def __iter__(self) -> Iterator[Batch]:
        async def following() -> Batch | None:
            try:
                return await self.inner.__anext__()
            except StopAsyncIteration:
                return None

        while (batch := self._thread.run(following)) is not None:
            yield batch

    def done(self, *batches: Batch) -> None:
        self._thread.call(lambda: self.inner.done(*batches))

    def seek(self, queue: Queue, to: int | str | datetime) -> None:
        self._thread.run(lambda: self.inner.seek(queue, to))

    def seek_all(self, to: int | str | datetime) -> None:
        self._thread.run(lambda: self.inner.seek_all(to))

    def position(self, queue: Queue) -> int:
        return self._thread.call(lambda: self.inner.position(queue))

    def offsets_for_time(self, queues: Iterable[Queue], when: datetime) -> dict[Queue, int]:
        wanted: list[Any] = list(queues)
        return self._thread.run(lambda: self.inner.offsets_for_time(wanted, when))

    def bounds(self, queue: Queue) -> tuple[int, int]:
        return self._thread.run(lambda: self.inner.bounds(queue))

    def committed(self, queue: Queue) -> int | None:
        return self._thread.run(lambda: self.inner.committed(queue))

    def commit(self, offsets: Mapping[Queue, int] | None = None) -> None:
        self._thread.run(lambda: self.inner.commit(offsets))

    def pause(self, *queues: Queue) -> None:
        self._thread.call(lambda: self.inner.pause(*queues))

    def resume(self, *queues: Queue) -> None:
        self._thread.call(lambda: self.inner.resume(*queues))
