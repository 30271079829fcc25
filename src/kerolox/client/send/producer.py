"""Producer: sends messages.

::

    async with Producer("127.0.0.1:9876", group="orders") as producer:
        receipt = await producer.send(Message("orders", b"...", tags="paid", keys=["o-17"]))
"""

from __future__ import annotations

from base64 import urlsafe_b64decode
from collections.abc import Awaitable, Callable, Iterable, Iterator, Sequence
from itertools import repeat
from typing import Any, Literal, Self, TypeVar, Unpack, cast, overload

from kerolox.client.calls.outgoing import Outgoing, Target
from kerolox.client.calls.routes import Route
from kerolox.client.cluster.client import Client
from kerolox.client.cluster.members import ProducingMember
from kerolox.client.errors import InvalidMessage, SomeFailed
from kerolox.client.message_types import seconds, shown
from kerolox.client.messages import Message, Queue, Receipt, Received
from kerolox.client.names import check_group, topic_list
from kerolox.client.options import ClientOptions, ProducerOptions
from kerolox.client.send.batches import batches_of, check_batch, receipts_of
from kerolox.client.send.hooks import (
    SendContext,
    SendHook,
    TraceHook,
    extra_properties,
    run_after,
    run_before,
)
from kerolox.client.send.linger import Linger
from kerolox.client.send.queue_choice import SendOptions, order_key_property, queue_choice
from kerolox.client.send.request_reply import Requests
from kerolox.client.send.sending import Selector, Sender
from kerolox.client.send.tracing import TraceKind, Tracer
from kerolox.client.send.transactions import (
    Check,
    Transaction,
    TransactionListener,
    Transactions,
    TransactionState,
)
from kerolox.errors import Closed, KeroloxError
from kerolox.front.requests import Request
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers.send import RecallAnswer, RecallRequest
from kerolox.protocol.headers.transaction import CheckTransaction

REQUEST_TIMEOUT_S = 5.0

T = TypeVar("T")


class Producer(ProducingMember):
    """Sends messages for a group.

    ``where`` is a name server's address, options, or a client to share. ``check`` (or a ``listener`` with
    ``execute`` and ``check``) says how transactions ended when a broker asks.
    """

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
        check_group(group)
        self.client = where if isinstance(where, Client) else Client(where)
        self.options = options or ProducerOptions()
        self.group = self.client.wire_name(group)
        self.hooks: list[SendHook] = list(hooks)
        self.tracer: Tracer | None = None
        self._listener = listener
        self._sender = Sender(self.client, self.group, self.options)
        self._linger = None if self.options.linger_s is None else Linger(self._sender, self.options.linger_s)
        self._transactions = Transactions(self, check or (listener.check if listener is not None else None))
        self.everywhere = self._transactions.has_check  # a broker may ask though we sent nothing yet
        self._topics = [self.client.wire_name(topic) for topic in topic_list(topics)]
        self._requests = Requests(self._sender)
        if self.options.trace:
            self.tracer = Tracer(self.client, group, self.options.trace_topic)
            self.hooks.append(TraceHook(self.tracer, self.client))
        self._is_open = False

    # --- life ---------------------------------------------------------------------------------

    async def open(self) -> Self:
        if self._is_open:
            return self
        await self.client.open()
        try:
            self.client.add_producer(self)
        except BaseException:
            await self.client.close()
            raise
        self._is_open = True
        if self.everywhere or self._topics:
            self.client.spawn(self._announce())
        return self

    async def close(self) -> None:
        """Send what lingers, leave the group, and let go of the client."""
        if not self._is_open:
            return
        self._is_open = False
        if self.client.is_of_parent:
            return  # its connections belong to the parent process
        try:
            if self._linger is not None:
                await self._linger.close()
            if self.tracer is not None:
                await self.tracer.close()
            await self.client.remove_producer(self)
        finally:
            await self.client.close()

    async def __aenter__(self) -> Self:
        return await self.open()

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    async def _announce(self) -> None:
        await self.client.routes.refresh_all(self._topics)
        await self.client.heartbeat()

    def _check_open(self) -> None:
        if not self._is_open:
            raise Closed("this producer is not open: use it in `async with`, before it is closed")
        self.client.check_home()

    def __repr__(self) -> str:
        state = "open" if self._is_open else "closed"
        return f"<producer {self.group} {state}, topics {', '.join(self._sender.topics) or 'none yet'}>"

    # --- sending ------------------------------------------------------------------------------

    async def send(
        self,
        message: Message,
        *,
        queue: Queue | None = None,
        order_key: str | None = None,
        selector: Selector | None = None,
        timeout_s: float | None = None,
    ) -> Receipt:
        """Send a message, and wait until a broker has stored it.

        To any queue in turn, or to one ``queue``, or to the queue of an ``order_key`` (equal keys keep
        their order), or to the one a ``selector`` chooses. Tied to a queue it is not tried elsewhere.
        """
        self._check_open()
        if self.hooks:
            return await self._watched(
                message, lambda more: self._send(message, more, queue, order_key, selector, timeout_s)
            )
        if queue is None and order_key is None and selector is None:
            outgoing = self._sender.prepare(message)
            linger = self._linger
            if linger is not None and linger.takes(outgoing):
                return await linger.add(outgoing, None, self._time_s(timeout_s))
            return await self._sender.deliver(outgoing, timeout_s)
        return await self._send(message, "", queue, order_key, selector, timeout_s)

    async def _send(
        self,
        message: Message,
        more: str,
        queue: Queue | None,
        order_key: str | None,
        selector: Selector | None,
        timeout_s: float | None,
    ) -> Receipt:
        sender = self._sender
        choose = queue_choice(self.client, queue, order_key, selector)
        outgoing = sender.prepare(message, more + order_key_property(order_key))
        pinned = (
            None if choose is None else choose(await sender.publishing(outgoing.topic, timeout_s), outgoing)
        )
        if self._linger is not None and self._linger.takes(outgoing):
            return await self._linger.add(outgoing, pinned, self._time_s(timeout_s))
        return await sender.deliver(outgoing, timeout_s, pinned=pinned)

    @overload
    async def send_many(
        self,
        messages: Iterable[Message],
        *,
        return_errors: Literal[False] = False,
        **options: Unpack[SendOptions],
    ) -> list[Receipt]: ...

    @overload
    async def send_many(
        self, messages: Iterable[Message], *, return_errors: bool, **options: Unpack[SendOptions]
    ) -> list[Receipt | KeroloxError]: ...

    async def send_many(
        self,
        messages: Iterable[Message],
        *,
        queue: Queue | None = None,
        order_key: str | None = None,
        selector: Selector | None = None,
        timeout_s: float | None = None,
        return_errors: bool = False,
    ) -> list[Receipt] | list[Receipt | KeroloxError]:
        """Send many messages, each without waiting for the answer to the one before.

        The receipts come in the order of the messages. If some fail, all others are still sent, and
        SomeFailed has a receipt or an error for each; with ``return_errors`` they come in the list instead.
        For order in a queue use ``send_batch``, or wait for each: Apache's broker works on requests of one
        connection side by side, and what had to be sent again lies behind what followed it.
        """
        self._check_open()
        if isinstance(messages, Message):
            raise InvalidMessage("send_many takes many messages, in a list for instance; send takes one")
        choose = queue_choice(self.client, queue, order_key, selector)
        contexts: list[SendContext] = []
        began_s = self.client.clock.monotonic_s()
        results = await self._sender.deliver_many(
            self._prepared(messages, order_key_property(order_key), contexts),
            self._time_s(timeout_s),
            choose,
        )
        elapsed_s = self.client.clock.monotonic_s() - began_s
        for context, result in zip(contexts, results, strict=False):
            run_after(self.hooks, context, result, elapsed_s)
        if not return_errors and any(isinstance(result, Exception) for result in results):
            raise SomeFailed(results)
        return cast("list[Receipt | KeroloxError]", results)

    def _prepared(
        self, messages: Iterable[Message], more: str, contexts: list[SendContext]
    ) -> Iterator[Outgoing | InvalidMessage]:
        prepare = self._sender.prepare
        hooks = self.hooks
        for message in messages:
            try:
                if hooks:
                    context = run_before(hooks, message, self.group)
                    contexts.append(context)
                    yield prepare(message, more + extra_properties(context))
                else:
                    yield prepare(message, more)
            except InvalidMessage as error:
                yield error

    async def send_batch(
        self,
        messages: Sequence[Message],
        *,
        queue: Queue | None = None,
        order_key: str | None = None,
        timeout_s: float | None = None,
    ) -> list[Receipt]:
        """Send messages of one topic in one request, or in as few as their size allows.

        They come to lie in one queue, one after the other. Not for delayed messages.
        """
        self._check_open()
        if isinstance(messages, Message):
            raise InvalidMessage("send_batch takes many messages, in a list; send takes one")
        if not isinstance(messages, list):
            messages = list(messages)
        if not messages:
            return []
        check_batch(messages)
        timeout_s = self._time_s(timeout_s)
        began_s = self.client.clock.monotonic_s()
        contexts = [run_before(self.hooks, message, self.group) for message in messages] if self.hooks else []
        key = order_key_property(order_key)
        more = [key + extra_properties(context) for context in contexts] or repeat(key)
        items = self._sender.prepare_some(messages, more)
        choose = queue_choice(self.client, queue, order_key, None)
        publishing = await self._sender.publishing(items[0].topic, timeout_s)
        batches = list(batches_of(items, self.options.message_bytes_max, self._sender.next_key))
        # One batch may go to any broker; several keep their order only in one queue.
        pinned: Target | None = None
        if choose is not None:
            pinned = choose(publishing, items[0])
        elif len(batches) > 1:
            pinned = publishing.next((), self._sender.health)
        receipts: list[Receipt] = []
        outcome: Exception | None = None
        try:
            for batch in batches:
                left_s = began_s + timeout_s - self.client.clock.monotonic_s()
                receipt = await self._sender.deliver(batch, left_s, pinned=pinned)
                receipts += receipts_of(receipt, batch)
        except Exception as error:
            outcome = error
            raise
        finally:
            elapsed_s = self.client.clock.monotonic_s() - began_s
            for number, context in enumerate(contexts):
                done = receipts[number] if number < len(receipts) else outcome
                run_after(self.hooks, context, done, elapsed_s)
        return receipts

    async def send_oneway(
        self,
        message: Message,
        *,
        queue: Queue | None = None,
        order_key: str | None = None,
        selector: Selector | None = None,
        timeout_s: float | None = None,
    ) -> None:
        """Send without an answer: quick, and nobody knows whether it arrived."""
        self._check_open()
        timeout_s = self._time_s(timeout_s)

        async def tell(more: str) -> None:
            outgoing = self._sender.prepare(message, more + order_key_property(order_key))
            choose = queue_choice(self.client, queue, order_key, selector)
            pinned = (
                None
                if choose is None
                else choose(await self._sender.publishing(outgoing.topic, timeout_s), outgoing)
            )
            await self._sender.tell(outgoing, timeout_s, pinned=pinned)

        if self.hooks:
            await self._watched(message, tell)
        else:
            await tell("")

    async def flush(self) -> None:
        """Send what lingers, and wait until it is sent."""
        if self._linger is not None:
            await self._linger.close()

    async def queues(self, topic: str) -> list[Queue]:
        """The queues a topic can be sent to, in the order selectors count in."""
        publishing = await self._sender.publishing(self.client.wire_name(topic))
        return [target.shown_queue for target in publishing.targets]

    # --- delayed messages ---------------------------------------------------------------------

    async def recall(self, topic: str, recall_handle: str | None, *, timeout_s: float | None = None) -> str:
        """Take back a message that was delayed to a time and is not yet due; returns its ``msg_id``.

        Brokers do that if they are told to, with recallMessageEnable=true.
        """
        self._check_open()
        broker, handle = _read_handle(recall_handle)
        wire_topic = self.client.wire_name(topic)
        await self._sender.publishing(wire_topic, timeout_s)
        asked = RecallRequest(
            topic=wire_topic, recall_handle=handle, producer_group=self.group, broker_name=broker
        )
        address = self.client.address(broker, exact=True)
        answer = await self.client.ask(
            address,
            RequestCode.RECALL_MESSAGE,
            asked,
            timeout_s=timeout_s or self.options.timeout_s,
            vip=True,
        )
        msg_id = answer.header(RecallAnswer).msg_id
        if self.tracer is not None:
            self.tracer.recalled(topic, msg_id, success=True)
        return msg_id

    # --- request and reply --------------------------------------------------------------------

    async def request(
        self,
        message: Message,
        *,
        timeout_s: float = REQUEST_TIMEOUT_S,
        queue: Queue | None = None,
        order_key: str | None = None,
        selector: Selector | None = None,
    ) -> Received:
        """Send a message and wait for the reply of whoever consumes it. Raises NoReply."""
        self._check_open()

        async def send(more: str, left_s: float) -> Receipt:
            if not self.hooks:
                return await self._send(message, more, queue, order_key, selector, left_s)
            return await self._watched(
                message, lambda extra: self._send(message, more + extra, queue, order_key, selector, left_s)
            )

        return await self._requests.request(message, timeout_s, send)

    async def reply(
        self,
        request: Received,
        body: bytes | str,
        *,
        properties: dict[str, str] | None = None,
        timeout_s: float | None = None,
    ) -> Receipt:
        """Reply to a message that was sent with :meth:`request`."""
        self._check_open()
        return await self._requests.reply(request, body, properties or {}, timeout_s)

    # --- transactions -------------------------------------------------------------------------

    def transaction(
        self, message: Message, *, order_key: str | None = None, timeout_s: float | None = None
    ) -> Transaction:
        """``async with`` it: the message is delivered if the block ends well, dropped if it raises.

        Messages with equal ``order_key`` go to one queue, in the order of their commits.
        """
        self._check_open()
        return Transaction(self._transactions, message, order_key, timeout_s)

    async def send_in_transaction(
        self, message: Message, arg: Any = None, *, timeout_s: float | None = None
    ) -> tuple[Receipt, TransactionState]:
        """Prepare the message, run the listener's ``execute``, and end the transaction as it says."""
        self._check_open()
        if self._listener is None:
            raise Closed("this producer has no listener: give it one, or use transaction()")
        return await self._transactions.run(message, self._listener, arg, timeout_s)

    async def send_prepared(
        self, message: Message, more: str, sys_flag: int, timeout_s: float | None, order_key: str | None
    ) -> Receipt:
        """Store a message that is not delivered yet."""
        if message.is_delayed:
            raise InvalidMessage("a message in a transaction cannot be delayed")
        choose = queue_choice(self.client, None, order_key, None)
        more += order_key_property(order_key)

        async def send(extra: str) -> Receipt:
            sender = self._sender
            outgoing = sender.prepare(message, more + extra, sys_flag=sys_flag)
            if choose is None:
                return await sender.deliver(outgoing, timeout_s)
            pinned = choose(await sender.publishing(outgoing.topic, timeout_s), outgoing)
            return await sender.deliver(outgoing, timeout_s, pinned=pinned)

        return await self._watched(message, send, TraceKind.HALF) if self.hooks else await send("")

    # --- called by the client -----------------------------------------------------------------

    def topics(self) -> list[str]:
        return [*self._topics, *self._sender.topics]

    def route_changed(self, route: Route) -> None:
        self._sender.route_changed(route)

    def check_transaction(self, asked: Request[CheckTransaction], message: Received) -> None:
        self._transactions.checked(asked, message)

    # --- parts --------------------------------------------------------------------------------

    def _time_s(self, timeout_s: float | None) -> float:
        return self.options.timeout_s if timeout_s is None else seconds(timeout_s)

    async def _watched(
        self,
        message: Message,
        send: Callable[[str], Awaitable[T]],
        kind: TraceKind = TraceKind.NORMAL,
    ) -> T:
        """Send with the hooks looking on."""
        context = run_before(self.hooks, message, self.group, kind)
        began_s = self.client.clock.monotonic_s()
        outcome: object = None
        try:
            outcome = result = await send(extra_properties(context))
            return result
        except Exception as error:
            outcome = error
            raise
        finally:
            run_after(self.hooks, context, outcome, self.client.clock.monotonic_s() - began_s)


def _read_handle(recall_handle: str | None) -> tuple[str, str]:
    """The broker a recall handle names, and the handle. It is ``v1 topic broker deliver_ms unique_key``, in
    URL-safe Base64."""
    if not isinstance(recall_handle, str):
        raise InvalidMessage(
            f"recall_handle {shown(recall_handle)}: expected text. Receipts have one for messages that were "
            "delayed to a time (delay, deliver_at), if their broker can take them back"
        )
    try:
        version, _, broker, _, _ = urlsafe_b64decode(recall_handle.encode()).decode().split(" ")
    except ValueError as error:
        raise InvalidMessage(f"recall handle {recall_handle!r} cannot be read: {error}") from error
    if version != "v1":
        raise InvalidMessage(f"recall handle of version {version!r}; v1 is known")
    return broker, recall_handle
