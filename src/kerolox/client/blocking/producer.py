"""Blocking client: the names of the asyncio client without await, for threads and scripts.

::

    from kerolox.blocking import Message, Producer

    with Producer("127.0.0.1:9876", group="orders") as producer:
        receipt = producer.send(Message("orders", b"..."))

One hidden thread runs the event loop of all blocking clients of the process. All objects are thread-safe.
After a fork, objects opened by the parent raise AfterFork in the child.
"""

from __future__ import annotations

import asyncio
import logging
import os
import threading
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any, Generic, Literal, Protocol, Self, TypeVar, Unpack, overload

from kerolox.client.cluster import client as async_client
from kerolox.client.errors import AfterFork
from kerolox.client.messages import Message, Queue, Receipt, Received
from kerolox.client.options import ClientOptions, ProducerOptions
from kerolox.client.send import producer as async_producer
from kerolox.client.send import transactions
from kerolox.client.send.hooks import SendHook
from kerolox.client.send.queue_choice import SendOptions
from kerolox.client.send.sending import Selector
from kerolox.client.send.transactions import Check, TransactionListener, TransactionState
from kerolox.errors import KeroloxError

log = logging.getLogger(__name__)

T = TypeVar("T")


class LoopThread:
    """Event loop in a separate thread."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._loop = _new_loop()
        self._thread = threading.Thread(target=self._run, name="kerolox", daemon=True)
        self._thread.start()

    @property
    def is_of_parent(self) -> bool:
        """True if this process is a forked child of the process that runs the thread."""
        return os.getpid() != self._pid

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        while True:
            try:
                self._loop.run_forever()
            except BaseException as error:
                # A SystemExit in a user's task or callback ends run_forever. The loop is run again, because
                # all blocking clients of the process use it.
                log.error("loop_interrupted error=%r next='the loop continues'", error, exc_info=error)

    def run(self, work: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a coroutine on the loop, and return or raise its outcome."""
        if self.is_of_parent:
            raise AfterFork("client")
        if threading.current_thread() is self._thread:
            raise KeroloxError(
                "a blocking call in the thread of the event loop would deadlock. Hooks run in this thread: "
                "use the asyncio client in them"
            )
        future: Future[T] = asyncio.run_coroutine_threadsafe(work(), self._loop)
        try:
            return future.result()
        except BaseException:
            future.cancel()  # an interrupted call is not completed
            raise

    def call(self, make: Callable[[], T]) -> T:
        """Call a plain function on the loop's thread."""

        async def work() -> T:
            return make()

        return self.run(work)


_lock = threading.Lock()
_shared: LoopThread | None = None


def loop_thread() -> LoopThread:
    """Return the loop thread of this process, started if needed."""
    global _shared
    with _lock:
        if _shared is None or _shared._pid != os.getpid():
            _shared = LoopThread()
        return _shared


def _new_lock() -> None:
    # A thread of the parent may have held the lock at the moment of the fork.
    global _lock
    _lock = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_new_lock)


def _new_loop() -> asyncio.AbstractEventLoop:
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    return uvloop.new_event_loop()


class Opens(Protocol):
    """Interface of the asyncio objects: they open and close."""

    async def open(self) -> Any: ...
    async def close(self) -> None: ...


A = TypeVar("A", bound=Opens)


class Twin(Generic[A]):
    """Base of blocking objects: an inner asyncio object on the loop's thread."""

    def __init__(self, make: Callable[[], A]) -> None:
        self._thread = loop_thread()
        self.inner: A = self._thread.call(make)

    def open(self) -> Self:
        self._thread.run(self.inner.open)
        return self

    def close(self) -> None:
        if not self._thread.is_of_parent:  # a forked child has no connections to close
            self._thread.run(self.inner.close)

    def __enter__(self) -> Self:
        return self.open()

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return repr(self.inner)


class Client(Twin[async_client.Client]):
    """Connections, routes and heartbeats shared by several blocking producers and consumers."""

    def __init__(self, where: ClientOptions | str | Sequence[str] | None = None) -> None:
        super().__init__(lambda: async_client.Client(where))

    @property
    def is_open(self) -> bool:
        return self._thread.call(lambda: self.inner.is_open)


def inner_of(where: Client | ClientOptions | str | Sequence[str] | None) -> Any:
    """Return the first argument for the inner asyncio object."""
    return where.inner if isinstance(where, Client) else where


class Transaction:
    """Transaction whose message was sent as a half message."""

    def __init__(self, thread: LoopThread, inner: transactions.Transaction) -> None:
        self._thread = thread
        self._inner = inner

    @property
    def id(self) -> str:
        return self._inner.id

    @property
    def receipt(self) -> Receipt:
        return self._inner.receipt

    @property
    def state(self) -> TransactionState | None:
        return self._inner.state

    def commit(self) -> None:
        self._thread.run(self._inner.commit)

    def rollback(self) -> None:
        self._thread.run(self._inner.rollback)

    def leave_open(self) -> None:
        self._thread.run(self._inner.leave_open)


class Producer(Twin[async_producer.Producer]):
    """Sender of messages. It has the names of :class:`kerolox.Producer`."""

    def __init__(
        self,
        where: Client | ClientOptions | str | Sequence[str] | None = None,
        *,
        group: str,
        options: ProducerOptions | None = None,
        listener: TransactionListener | None = None,
        check: Check | None = None,
        hooks: Iterable[SendHook] = (),
        topics: Iterable[str] = (),
    ) -> None:
        super().__init__(
            lambda: async_producer.Producer(
                inner_of(where),
                group=group,
                options=options,
                listener=listener,
                check=check,
                hooks=hooks,
                topics=topics,
            )
        )

    def send(
        self,
        message: Message,
        *,
        queue: Queue | None = None,
        order_key: str | None = None,
        selector: Selector | None = None,
        timeout_s: float | None = None,
    ) -> Receipt:
        return self._thread.run(
            lambda: self.inner.send(
                message, queue=queue, order_key=order_key, selector=selector, timeout_s=timeout_s
            )
        )

    @overload
    def send_many(
        self,
        messages: Iterable[Message],
        *,
        return_errors: Literal[False] = False,
        **options: Unpack[SendOptions],
    ) -> list[Receipt]: ...

    @overload
    def send_many(
        self, messages: Iterable[Message], *, return_errors: bool, **options: Unpack[SendOptions]
    ) -> list[Receipt | KeroloxError]: ...

    def send_many(
        self,
        messages: Iterable[Message],
        *,
        queue: Queue | None = None,
        order_key: str | None = None,
        selector: Selector | None = None,
        timeout_s: float | None = None,
        return_errors: bool = False,
    ) -> list[Receipt] | list[Receipt | KeroloxError]:
        # Listed in the caller's thread: a caller's generator may block, and must not block the loop.
        given = messages if isinstance(messages, Message) else list(messages)  # one message is rejected there
        return self._thread.run(
            lambda: self.inner.send_many(
                given,
                queue=queue,
                order_key=order_key,
                selector=selector,
                timeout_s=timeout_s,
                return_errors=return_errors,
            )
        )

    def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: Queue | None = None,
        order_key: str | None = None,
        timeout_s: float | None = None,
    ) -> list[Receipt]:
        return self._thread.run(
            lambda: self.inner.send_batch(messages, queue=queue, order_key=order_key, timeout_s=timeout_s)
        )

    def send_oneway(
        self,
        message: Message,
        *,
        queue: Queue | None = None,
        order_key: str | None = None,
        selector: Selector | None = None,
        timeout_s: float | None = None,
    ) -> None:
        self._thread.run(
            lambda: self.inner.send_oneway(
                message, queue=queue, order_key=order_key, selector=selector, timeout_s=timeout_s
            )
        )

    def flush(self) -> None:
        self._thread.run(self.inner.flush)

    def queues(self, topic: str) -> list[Queue]:
        return self._thread.run(lambda: self.inner.queues(topic))

    def recall(self, topic: str, recall_handle: str | None, *, timeout_s: float | None = None) -> str:
        return self._thread.run(lambda: self.inner.recall(topic, recall_handle, timeout_s=timeout_s))

    def request(
        self,
        message: Message,
        *,
        timeout_s: float = async_producer.REQUEST_TIMEOUT_S,
        queue: Queue | None = None,
        order_key: str | None = None,
        selector: Selector | None = None,
    ) -> Received:
        return self._thread.run(
            lambda: self.inner.request(
                message, timeout_s=timeout_s, queue=queue, order_key=order_key, selector=selector
            )
        )

    def reply(
        self,
        request: Received,
        body: bytes | str,
        *,
        properties: dict[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Receipt:
        return self._thread.run(
            lambda: self.inner.reply(request, body, properties=properties, timeout_s=timeout_s)
        )

    @contextmanager
    def transaction(
        self, message: Message, *, order_key: str | None = None, timeout_s: float | None = None
    ) -> Iterator[Transaction]:
        """Open a transaction for ``with``: the message is committed if the block succeeds, else rolled back.

        Messages with equal ``order_key`` go to one queue, in the order of their commits.
        """
        inner = self._thread.call(
            lambda: self.inner.transaction(message, order_key=order_key, timeout_s=timeout_s)
        )
        self._thread.run(inner.__aenter__)
        try:
            yield Transaction(self._thread, inner)
        except BaseException:
            if inner.state is None:
                self._thread.run(inner.rollback)
            raise
        if inner.state is None:
            self._thread.run(inner.commit)

    def send_in_transaction(
        self, message: Message, arg: Any = None, *, timeout_s: float | None = None
    ) -> tuple[Receipt, TransactionState]:
        return self._thread.run(lambda: self.inner.send_in_transaction(message, arg, timeout_s=timeout_s))
