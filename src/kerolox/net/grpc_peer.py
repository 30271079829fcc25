"""One connection of a gRPC client: drives HTTP/2 on a transport, and brings its calls to a service.

Bytes that arrive become calls and messages (``protocol/http2``, ``protocol/grpc``), whose handlers belong to
the service. All output of a read pass is written at once. What a client may hold is bounded as on the
remoting port: incomplete messages and unread answers count against the budgets that all connections share.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Protocol, cast

import msgspec

from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.net.address import address_text, source_of
from kerolox.net.peer import Budgets
from kerolox.net.places import KNOWN, SPOKE, STRANGER
from kerolox.protocol.grpc.calls import (
    RESPONSE,
    CallFailed,
    CallHead,
    GrpcStatus,
    MessageReader,
    pack,
    read_head,
    refusal,
    trailers,
)
from kerolox.protocol.http2.connection import DataArrived, RequestBegun, RequestCancelled, ServerConnection
from kerolox.protocol.http2.limits import Http2Limits

log = logging.getLogger(__name__)

PING_S = 60.0  # silence after which the client is asked for a sign of life
PONG_S = 20.0  # time for that


class GrpcLimits(msgspec.Struct, frozen=True):
    """Limits of one connection."""

    http2: Http2Limits = msgspec.field(default_factory=Http2Limits)
    message_bytes_max: int = 16 * 1024 * 1024
    write_bytes_high: int = 4 * 1024 * 1024  # stop reading from the client above this
    write_stall_s_max: float = 60.0  # close the connection after this time without a write
    idle_s_max: float = 120.0  # close it after this time without a call


class CallHandler(Protocol):
    """The service's side of one call."""

    def message(self, data: bytes) -> None:
        """Take a message. May raise CallFailed."""

    def half_closed(self) -> None:
        """Note that the client sends no more messages. May raise CallFailed."""

    def cancelled(self) -> None:
        """Give up: the client is gone or does not want the answer."""


class GrpcService(Protocol):
    """The service behind a port."""

    def begin(self, call: Call) -> CallHandler:
        """Return the handler of a call. Raises CallFailed for a path that does not exist."""

    def connected(self, peer: GrpcPeer) -> None: ...

    def closed(self, peer: GrpcPeer, reason: str) -> None: ...


class Call:
    """One call, for its handler: what the client sent first, and the way to answer."""

    __slots__ = ("_has_answered", "_peer", "_stream_id", "deadline_s", "head", "received_s")

    def __init__(self, peer: GrpcPeer, stream_id: int, head: CallHead, received_s: float) -> None:
        self.head = head
        self.received_s = received_s  # by the monotonic clock
        self.deadline_s = None if head.timeout_s is None else received_s + head.timeout_s
        self._peer = peer
        self._stream_id = stream_id
        self._has_answered = False

    @property
    def peer(self) -> GrpcPeer:
        """The connection that carries the call."""
        return self._peer

    @property
    def is_open(self) -> bool:
        """True while the client waits for an answer."""
        return self._peer.http2.is_open(self._stream_id)

    def open(self) -> None:
        """Send the headers of the answer before its first message."""
        if not self._has_answered:
            self._has_answered = True
            self._peer.http2.send_headers(self._stream_id, RESPONSE)
            self._peer.flush_soon()

    def send(self, message: bytes) -> None:
        """Send a message, as soon as the client's windows allow."""
        self.open()
        self._peer.http2.send_data(self._stream_id, pack(message))
        self._peer.flush_soon()

    def finish(self, status: GrpcStatus = GrpcStatus.OK, text: str = "") -> None:
        """End the call."""
        self._peer.end(self._stream_id)
        http2 = self._peer.http2
        if self._has_answered:
            http2.send_end(self._stream_id, trailers(status, text))
        else:
            http2.send_end(self._stream_id, refusal(status, text))
        self._peer.flush_soon()


class _Open:
    """An open call: its handler, and the reader of its messages."""

    __slots__ = ("call", "handler", "reader")

    def __init__(self, call: Call, handler: CallHandler, reader: MessageReader) -> None:
        self.call = call
        self.handler = handler
        self.reader = reader


class GrpcPeer(asyncio.Protocol):
    """One connection of a gRPC client."""

    def __init__(
        self,
        service: GrpcService,
        *,
        limits: GrpcLimits,
        budgets: Budgets,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.address = ""
        self.local_address = ""
        self.source = ""  # key of limits per source address
        self.close_reason: str | None = None
        self.http2 = ServerConnection(limits.http2)
        self.active_s = self.silent_since_s = clock.monotonic_s()
        self._service = service
        self._limits = limits
        self._budgets = budgets
        self._clock = clock
        self._calls: dict[int, _Open] = {}
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._stalled_since_s: float | None = None
        self._pinged_s: float | None = None
        self._unfinished = 0  # bytes of incomplete messages, as the budget knows them
        self._waiting_bytes = 0  # of incomplete messages
        self._in_pass = False
        self._flush_is_due = False
        self._has_called = False

    @property
    def rank(self) -> int:
        """Rank of the connection when a full port closes connections (:mod:`kerolox.net.places`)."""
        return KNOWN if self._calls else SPOKE if self._has_called else STRANGER

    @property
    def is_closed(self) -> bool:
        return self.close_reason is not None

    # --- life cycle ------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self._limits.write_bytes_high)
        self.address = address_text(transport.get_extra_info("peername"))
        self.local_address = address_text(transport.get_extra_info("sockname"))
        self.source = source_of(self.address)
        if self.close_reason is not None:  # closed before it was established
            self._transport.abort()
            return
        self._service.connected(self)
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        reason = self.close_reason or (f"connection lost: {exc}" if exc else "closed by the client")
        self.close_reason = reason
        self._transport = None
        self._budgets.unread.release(self)
        self._budgets.unfinished.release(self)
        calls, self._calls = self._calls, {}
        for one in calls.values():
            one.handler.cancelled()
        self._service.closed(self, reason)

    def eof_received(self) -> bool:
        if self.close_reason is None:
            self.close("the client closed its side")
        return False

    def leave(self, text: str) -> None:
        """Ask the client to open its next streams elsewhere; open calls go on."""
        if self.close_reason is None:
            self.http2.send_goaway(text)
            self._flush()

    def close(self, reason: str, *, at_once: bool = False) -> None:
        """Close the connection. Pending answers are still written, unless ``at_once``."""
        if self.close_reason is not None:
            return
        self.http2.send_goaway(reason)
        self._flush()
        self.close_reason = reason
        if self._transport is not None:
            if at_once:
                self._transport.abort()
            else:
                self._transport.close()

    def abort(self) -> None:
        """Abort a closed connection that the client keeps open."""
        if self._transport is not None:
            self._transport.abort()

    def check_idle(self, now_s: float) -> None:
        """Close a connection without calls, or one whose client does not read or answer. Called regularly by
        its owner."""
        limits = self._limits
        if self.close_reason is not None:
            return
        if self._stalled_since_s is not None and now_s - self._stalled_since_s > limits.write_stall_s_max:
            self.close(
                f"slow reader: nothing could be written for {limits.write_stall_s_max:g} s", at_once=True
            )
        elif self._pinged_s is not None and self.http2.pings_unanswered:
            if now_s - self._pinged_s > PONG_S:
                self.close(f"no answer to a ping for {PONG_S:g} s", at_once=True)
        elif not self._calls and now_s - self.active_s > limits.idle_s_max:
            self.close(f"no call for {limits.idle_s_max:g} s")
        elif self._calls and now_s - self.active_s > PING_S:
            self._pinged_s = now_s
            self.http2.send_ping()
            self._flush()

    # --- reading ---------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self.close_reason is not None:
            return
        self.active_s = now_s = self._clock.monotonic_s()
        self._in_pass = True
        try:
            for event in self.http2.receive(data, now_s):
                if isinstance(event, DataArrived):
                    self._take_data(event)
                elif isinstance(event, RequestBegun):
                    self._begin(event, now_s)
                else:
                    self._cancel(event)
        finally:
            self._in_pass = False
            self._flush()
        self._note_unfinished()
        error = self.http2.error
        if error is not None:
            log.warning(
                "http2_refused peer=%s error=%r next='check which program connects to this port'",
                self.address, str(error),
            )  # fmt: skip
            self.close(f"violation of HTTP/2: {error}")

    def _begin(self, event: RequestBegun, now_s: float) -> None:
        stream_id = event.stream_id
        self._has_called = True
        self.silent_since_s = now_s
        try:
            call = Call(self, stream_id, read_head(event.fields), now_s)
            handler = self._service.begin(call)
        except CallFailed as error:
            self.http2.send_end(stream_id, refusal(error.status, str(error)))
            return
        self._calls[stream_id] = _Open(call, handler, MessageReader(self._limits.message_bytes_max))
        if event.is_whole:
            self._take(stream_id, b"", is_last=True)

    def _take_data(self, event: DataArrived) -> None:
        # The data is in this connection's memory, where the budgets count it.
        self.http2.consumed(event.stream_id, event.window_bytes)
        self._take(event.stream_id, event.data, is_last=event.is_last)

    def _take(self, stream_id: int, data: bytes, *, is_last: bool) -> None:
        one = self._calls.get(stream_id)
        if one is None:  # it was refused
            return
        reader, handler = one.reader, one.handler
        before = reader.waiting_bytes
        try:
            for message in reader.feed(data):
                handler.message(message)
            if is_last:
                reader.check_end()
                handler.half_closed()
        except CallFailed as error:
            handler.cancelled()
            if one.call.is_open:
                one.call.finish(error.status, str(error))
        self._waiting_bytes += (reader.waiting_bytes if stream_id in self._calls else 0) - before

    def _cancel(self, event: RequestCancelled) -> None:
        one = self._calls.get(event.stream_id)
        if one is not None:
            self.end(event.stream_id)
            one.handler.cancelled()

    def end(self, stream_id: int) -> None:
        """Forget a call that has ended."""
        one = self._calls.pop(stream_id, None)
        if one is not None:
            self._waiting_bytes -= one.reader.waiting_bytes

    def _note_unfinished(self) -> None:
        size_bytes = self._waiting_bytes + self.http2.waiting_bytes
        if size_bytes == self._unfinished:
            return
        budget = self._budgets.unfinished
        if size_bytes < self._unfinished:
            budget.release(self)  # a message is complete; another one began
        self._unfinished = size_bytes
        if size_bytes and self.close_reason is None:
            budget.hold(self, size_bytes)

    # --- writing ---------------------------------------------------------------------------------

    def flush_soon(self) -> None:
        """Write what the calls have sent, once for all of them."""
        if not self._in_pass and not self._flush_is_due:
            self._flush_is_due = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_is_due = False
        out = self.http2.output
        if not out or self._transport is None or self.close_reason is not None:
            return
        self._transport.writelines(out)
        out.clear()
        waiting = self.http2.queued_bytes + self._transport.get_write_buffer_size()
        if waiting > self._limits.write_bytes_high:
            self._budgets.unread.hold(self, waiting)
        else:
            self._budgets.unread.release(self)

    def pause_writing(self) -> None:
        self._stalled_since_s = self._clock.monotonic_s()
        if self._transport is not None:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        self._stalled_since_s = None
        if self._transport is not None and self.close_reason is None:
            self._transport.resume_reading()

    def __repr__(self) -> str:
        state = f"closed: {self.close_reason}" if self.close_reason else "open"
        return f"<gRPC peer {self.address} {state}, {len(self._calls)} calls>"
