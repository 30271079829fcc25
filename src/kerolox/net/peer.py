"""Peer: one open connection, the same on both ends.

A read pass decodes and handles all complete frames that have arrived, then writes all resulting output at
once. Requests go to the handlers, answers to their callers. Both directions are limited: a server stops
reading from a peer that does not read its answers, and closes a peer whose write buffer exceeds its limit or
stays full too long, with the reason.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from math import inf
from typing import Any, Protocol, cast

import msgspec

from kerolox.clock import SYSTEM_CLOCK, Clock, TimerHandle
from kerolox.errors import ConnectionLost, Overloaded, ProtocolError, RequestTimeout
from kerolox.front.requests import Answer, Request
from kerolox.net.address import address_text, source_of
from kerolox.net.handlers import RemotingHandlers
from kerolox.net.memory_budget import UNFINISHED_BYTES_MAX, UNREAD_BYTES_MAX, MemoryBudget
from kerolox.net.places import KNOWN, SPOKE, STRANGER
from kerolox.net.turns import PASS_S_MAX, Turns
from kerolox.net.work_budget import LONG_FRAME_BYTES, MEASURED_FRAME_BYTES, WorkBudget
from kerolox.protocol.codes import Language, language_named, language_numbered, request_name
from kerolox.protocol.command import (
    ANSWER,
    ONE_WAY,
    Command,
    answer_head,
    decode_command,
    encode_answer,
    request,
)
from kerolox.protocol.exchange import Exchange, OnAnswer
from kerolox.protocol.frame import JSON, Frame, FrameSplitter
from kerolox.protocol.header import Header
from kerolox.protocol.header_json import UnusualHeader
from kerolox.protocol.limits import FRAME_BYTES_MAX

log = logging.getLogger(__name__)

LONG_BYTES = 64 * 1024  # longer answers are written unchanged, not joined with those before them
FLUSH_BYTES = 1024 * 1024  # a pass writes at the latest when its answers have grown this large
SWEEP_S = 0.1  # how often deadlines of open calls are looked at
AGE_CHECK_FRAMES = 8  # inside a long pass the clock is read again after this many frames
NOTED_S = 0.001  # of a long frame: many of them, in one turn of the loop, would hold up others
NOTED_FRAMES = 2048  # in one read; likewise
CLOSE_WAIT = 8  # state of a TCP connection whose other side has closed (linux/tcp_states.h)


class Budgets(msgspec.Struct, frozen=True):
    """Limits that all connections of a server share."""

    unfinished: MemoryBudget = msgspec.field(
        default_factory=lambda: MemoryBudget("frames that are not handled yet", UNFINISHED_BYTES_MAX)
    )
    unread: MemoryBudget = msgspec.field(
        default_factory=lambda: MemoryBudget("answers that are not read", UNREAD_BYTES_MAX)
    )
    work: WorkBudget = msgspec.field(default_factory=WorkBudget)
    turns: Turns = msgspec.field(default_factory=Turns)


class _WorkSpent(Exception):
    """A frame has to wait until its source address has paid back what earlier ones cost."""


class PeerLimits(msgspec.Struct, frozen=True):
    """Limits of one connection."""

    frame_bytes_max: int = FRAME_BYTES_MAX
    write_bytes_high: int = 4 * 1024 * 1024  # stop reading from the peer above this
    write_bytes_max: int = 64 * 1024 * 1024  # close the connection above this
    write_stall_s_max: float = 60.0  # close it after this time without a write
    in_flight_max: int = 65_535  # own requests without an answer
    idle_s_max: float = 120.0  # close it after this time without traffic


class PeerEvents(Protocol):
    """Callbacks when connections open and close. Override as needed. CallerEvents has the same methods."""

    def connected(self, peer: Peer, /) -> None:
        return

    def closed(self, peer: Peer, reason: str, /) -> None:
        return


class Peer(asyncio.Protocol):
    """One connection, made by a Server or a Dialer. For handlers it is a caller."""

    def __init__(
        self,
        handlers: RemotingHandlers,
        events: PeerEvents,
        *,
        limits: PeerLimits = PeerLimits(),
        clock: Clock = SYSTEM_CLOCK,
        server_side: bool = True,
        encoding: int = JSON,
        budgets: Budgets | None = None,
    ) -> None:
        self.address = ""
        self.local_address = ""
        self.source = ""  # key of limits per source address
        self.close_reason: str | None = None
        self.data: dict[str, Any] = {}  # data that roles keep for this connection
        self.version = 0  # release of the other side, as in its last request
        self._language: int | str | None = None  # language of the other side, as in its last request
        self.active_s = self.silent_since_s = clock.monotonic_s()
        self._has_spoken = False
        self._received_s = self.active_s  # arrival time of the requests in the current pass
        self.stalled_since_s: float | None = None
        self.limits = limits
        self.encoding = encoding  # of own requests; answers use the encoding of their request
        self._handlers = handlers
        self._events = events
        self._clock = clock
        self._server_side = server_side
        self._splitter = FrameSplitter(limits.frame_bytes_max)
        self._exchange = Exchange(limits.in_flight_max)
        self._transport: asyncio.Transport | None = None
        self._loop = asyncio.get_running_loop()
        self._out: list[bytes] = []
        self._out_bytes = 0
        self._in_pass = False
        self._flush_scheduled = False
        # read but not handled yet: answers cannot be written, or other peers come first
        self._held: list[Frame] = []
        self._sweep: TimerHandle | None = None
        self._budgets = budgets or (Budgets() if server_side else None)  # one that connects chose its peers
        self._unfinished = 0  # bytes of frames that are not handled, as the budget was told
        self._held_bytes = 0
        self._unsplit = b""  # read when others came first; not counted, for a read has 256 KiB at most

    # --- requests to the other side ------------------------------------------------------------

    def ask(self, question: Command, on_answer: OnAnswer, timeout_s: float) -> None:
        """Send a request; `on_answer` is called once with the answer or the error."""
        if self._transport is None or self.close_reason is not None:
            raise ConnectionLost(self.address, self.close_reason or "not connected")
        buffered = self._out_bytes + self._transport.get_write_buffer_size()
        if buffered > self.limits.write_bytes_max:
            raise Overloaded(f"{buffered} bytes wait to be written to {self.address}, which does not read")
        for hook in self._handlers.hooks:
            hook.before_request(self, question)
        self._exchange.ask(question, on_answer, self._clock.monotonic_s() + timeout_s)
        if self._sweep is None:
            self._sweep = self._clock.call_later(SWEEP_S, self._give_up_late)
        self._write(question.encode())

    async def call(
        self,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout_s: float = 3.0,
        fields: dict[str, str] | None = None,
    ) -> Answer:
        """Send a request as handlers do: by code, header and body, without a Command."""
        answer = await self.request(code, header, body, timeout_s=timeout_s, fields=fields)
        return Answer(code=answer.code, body=answer.body, remark=answer.remark)

    async def request(
        self,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout_s: float = 3.0,
        fields: dict[str, str] | None = None,
    ) -> Command:
        """Send a request and return its answer, whatever its code."""
        question = request(
            code, header, body, opaque=self._exchange.next_opaque(), fields=fields, encoding=self.encoding
        )
        future: asyncio.Future[Command] = self._loop.create_future()

        def on_answer(answer: Command | Exception) -> None:
            if future.done():
                return
            if isinstance(answer, RequestTimeout):
                future.set_exception(RequestTimeout(self.address, request_name(code), timeout_s))
            elif isinstance(answer, Exception):
                future.set_exception(answer)
            else:
                future.set_result(answer)

        self.ask(question, on_answer, timeout_s)
        try:
            return await future
        except asyncio.CancelledError:
            self._exchange.take(question.opaque)
            raise

    def tell(
        self,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        fields: dict[str, str] | None = None,
    ) -> None:
        """Send a one-way request."""
        if self._transport is None or self.close_reason is not None:
            raise ConnectionLost(self.address, self.close_reason or "not connected")
        message = request(
            code,
            header,
            body,
            opaque=self._exchange.next_opaque(),
            one_way=True,
            fields=fields,
            encoding=self.encoding,
        )
        for hook in self._handlers.hooks:
            hook.before_request(self, message)
        self._write(message.encode())

    def next_opaque(self) -> int:
        return self._exchange.next_opaque()

    # --- answers -----------------------------------------------------------------------------

    def answer(self, asked: Request[Any], answer: Answer) -> None:
        """Write the answer to a request of this peer, in the encoding of the request."""
        command: Command = asked.ticket
        if self._handlers.answered is not None:
            self._handlers.answered(asked, answer)
        if command.flag & ONE_WAY or self.close_reason is not None:
            return
        how = command.encoding, command.opaque, answer.code, answer.header, answer.remark
        body = answer.body
        if isinstance(body, list) and len(body) == 1 and len(body[0]) >= LONG_BYTES:
            self._write(answer_head(*how, len(body[0])))
            self._write(body[0])
        else:
            self._write(encode_answer(*how, body))

    def proof(self, asked: Request[Any], /) -> Command:
        """Return the request's command: it carries its signature."""
        command: Command = asked.ticket
        return command

    def write_answers(self, frames: bytes) -> None:
        """Write many encoded answers at once."""
        if frames and self.close_reason is None:
            self._out.append(frames)
            self._out_bytes += len(frames)
            if not self._in_pass:
                self._flush()

    # --- life cycle --------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        return self.close_reason is not None

    @property
    def rank(self) -> int:
        """Rank of the connection when a full port closes connections (:mod:`kerolox.net.places`)."""
        return KNOWN if self.data else SPOKE if self._has_spoken else STRANGER

    @property
    def is_stalled(self) -> bool:
        return self.stalled_since_s is not None

    @property
    def language(self) -> Language:
        language = self._language
        if isinstance(language, str):
            return language_named(language)
        return language_numbered(language or 0)

    @property
    def in_flight(self) -> int:
        """Number of own requests without an answer."""
        return len(self._exchange)

    def close(self, reason: str, *, at_once: bool = False) -> None:
        """Close the connection. Pending answers are still written, unless ``at_once``."""
        if self.close_reason is not None:
            return
        self._flush()
        self.close_reason = reason
        self._drop_unhandled()
        if self._transport is not None:
            if at_once:
                self._transport.abort()
            else:
                self._transport.close()

    def abort(self) -> None:
        """Abort a closed connection that the other side keeps open."""
        if self._transport is not None:
            self._transport.abort()

    @property
    def is_gone(self) -> bool:
        """True once the transport is closed. With TLS both sides exchange close notifications before."""
        return self._transport is None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=self.limits.write_bytes_high)
        self.address = address_text(transport.get_extra_info("peername"))
        self.local_address = address_text(transport.get_extra_info("sockname"))
        self.source = source_of(self.address)
        if self.close_reason is not None:  # closed before it was established
            self._transport.abort()
            return
        self._events.connected(self)

    def connection_lost(self, exc: Exception | None) -> None:
        reason = self.close_reason or (f"connection lost: {exc}" if exc else "closed by the peer")
        self.close_reason = reason
        self._transport = None
        if self._sweep is not None:
            self._sweep.cancel()
            self._sweep = None
        self._out.clear()
        self._drop_unhandled()
        if self._budgets is not None:
            self._budgets.unread.release(self)
        for on_answer in self._exchange.take_all():
            on_answer(ConnectionLost(self.address, reason))
        self._events.closed(self, reason)

    def eof_received(self) -> bool:
        # No peer of this protocol half-closes on purpose. Pending answers are still flushed.
        if self.close_reason is None:
            self.close("the peer closed its side")
        return False

    # --- reading -----------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self.close_reason is not None:
            return
        self.active_s = now_s = self._clock.monotonic_s()
        if not self._held:
            if not self._unsplit:
                self._received_s = now_s
            if self._unsplit or (self._budgets is not None and now_s > self._budgets.turns.ends_s):
                self._put_off([], data)
                return
            if len(data) >= LONG_BYTES and self._budgets is not None:
                self._budgets.turns.begin()  # the loop reads on while more comes: reading takes its time, too
        self._read(data, now_s)

    def _read(self, data: bytes, now_s: float) -> None:
        splitter = self._splitter
        frames = splitter.feed(data)
        if frames:
            self.silent_since_s = self.active_s
            self._has_spoken = True
            if len(frames) > NOTED_FRAMES and self._budgets is not None:
                self._budgets.turns.begin()
            self._pass(frames, now_s)
        if splitter.waiting_bytes or self._unfinished or self._held:
            self._note_unfinished()
        if splitter.error is not None:
            self._break(splitter.error)

    def _note_unfinished(self) -> None:
        size_bytes = self._splitter.waiting_bytes + self._held_bytes
        if size_bytes == self._unfinished or self._budgets is None:
            return
        budget = self._budgets.unfinished
        if size_bytes < self._unfinished:
            budget.release(self)  # that frame is complete; another one began
        self._unfinished = size_bytes
        if size_bytes and self.close_reason is None:
            budget.hold(self, size_bytes)

    def _drop_unhandled(self) -> None:
        """Drop received frames that were not handled: their answers can no longer be sent."""
        self._held.clear()
        self._unsplit = b""
        self._splitter.clear()
        self._unfinished = self._held_bytes = 0
        if self._budgets is not None:
            self._budgets.unfinished.release(self)
            self._budgets.turns.leave(self)

    def _pass(self, frames: list[Frame], now_s: float) -> None:
        if self._held:
            self._hold(self._held + frames)
            return
        budgets = self._budgets
        if budgets is None:
            pass_s_max, ends_s = PASS_S_MAX, inf
        else:
            pass_s_max, ends_s = budgets.turns.turn_s_max, budgets.turns.ends_s
        received_s = self._received_s
        began_s = now_s
        handlers = self._handlers
        self._in_pass = True
        try:
            runs = handlers.runs
            taken = 0  # frames before this index were handled
            for number, (encoding, header, body) in enumerate(frames):
                if number < taken:
                    continue
                if self.close_reason is not None:
                    return
                if self._out_bytes > FLUSH_BYTES:
                    self._flush()
                    if self._server_side:  # others come first, who may have asked for less
                        self._put_off(frames[number:])
                        return
                if number % AGE_CHECK_FRAMES == 0 and number:
                    now_s = self._clock.monotonic_s()
                    if now_s - began_s > pass_s_max and self._server_side:
                        self._put_off(frames[number:])
                        return
                decoded: Command | None = None
                if runs:
                    run = runs.get(header[:12] if encoding == JSON else header[:2])
                    if run is not None and now_s - received_s <= run[1].age_s_max:
                        count = run[0](self, frames, number)
                        if isinstance(count, Command):
                            decoded = count
                        elif count:
                            taken = number + count
                            continue
                size_bytes = len(header) + len(body)
                if size_bytes < LONG_FRAME_BYTES or budgets is None:
                    self._take(encoding, header, body, now_s, decoded)
                else:
                    now_s = self._clock.monotonic_s()
                    if now_s - began_s > pass_s_max or now_s > ends_s:
                        self._put_off(frames[number:])
                        return
                    if size_bytes < MEASURED_FRAME_BYTES:
                        self._take(encoding, header, body, now_s, decoded)
                    else:
                        self._take_long(frames[number], budgets, now_s, decoded)
                        ends_s = budgets.turns.ends_s
        except _WorkSpent:
            self._wait_for_work(frames[number:])
        finally:
            handlers.end_pass()
            self._in_pass = False
            self._flush()

    def _take(
        self, encoding: int, header: bytes, body: bytes, now_s: float, command: Command | None = None
    ) -> None:
        """Handle a frame. ``command``: the decoded frame, if it is decoded already."""
        try:
            if command is None:
                command = decode_command(encoding, header, body, is_strict=True)
        except UnusualHeader:
            pass
        except ProtocolError as error:
            self._break(error)
            return
        if command is None:
            command = self._read_unusual(header, body)
            if command is None:
                return
        if command.flag & ANSWER:
            self._take_answer(command)
            return
        self._language = command.language
        self.version = command.version
        asked = Request(self, command.code, None, command.body, self._received_s, command)
        self._handlers.handle(asked, now_s)

    def _read_unusual(self, header: bytes, body: bytes) -> Command | None:
        """Read a header that is not strict JSON, and charge its source address with what that has cost."""
        budgets, now_s = self._budgets, self._clock.monotonic_s()
        if budgets is not None and budgets.work.wait_s(self.source, now_s):
            raise _WorkSpent
        before_s = self._clock.cpu_s()
        try:
            return decode_command(JSON, header, body)
        except ProtocolError as error:
            self._break(error)
            return None
        finally:
            if budgets is not None:
                budgets.work.charge(self.source, self._clock.cpu_s() - before_s, now_s)

    def _take_long(self, frame: Frame, budgets: Budgets, now_s: float, command: Command | None) -> None:
        """Handle a long frame, and charge its source address with what it has cost."""
        if budgets.work.wait_s(self.source, now_s):
            raise _WorkSpent
        before_s = self._clock.cpu_s()
        self._take(*frame, now_s, command)
        cost_s = self._clock.cpu_s() - before_s
        budgets.work.charge_frame(self.source, len(frame[1]) + len(frame[2]), cost_s, now_s)
        if cost_s > NOTED_S:
            budgets.turns.begin()

    def _hold(self, frames: list[Frame]) -> None:
        """Keep frames that cannot be handled now, and read no others."""
        self._held = frames
        self._held_bytes = sum(len(header) + len(body) for _, header, body in frames)
        if self._transport is not None:
            self._transport.pause_reading()

    def _put_off(self, frames: list[Frame], unsplit: bytes = b"") -> None:
        """Let other peers be served before the rest of what this peer sent."""
        self._hold(frames)
        self._unsplit += unsplit
        if self._budgets is not None and self.stalled_since_s is None:
            size_bytes = self._held_bytes + len(self._unsplit) + self._splitter.waiting_bytes
            self._budgets.turns.add(self, is_short=size_bytes < MEASURED_FRAME_BYTES)

    def _wait_for_work(self, frames: list[Frame]) -> None:
        """Handle the frames when their source address has paid back what earlier ones cost."""
        assert self._budgets is not None
        self._hold(frames)
        work, source, clock = self._budgets.work, self.source, self._clock
        self._budgets.turns.wait(self, lambda: work.wait_s(source, clock.monotonic_s()))

    def waited(self) -> None:
        """See :class:`kerolox.net.turns.Holder`."""
        if self._is_left:
            self.close("the peer closed its side before its requests were handled", at_once=True)
        else:
            self.take_turn()

    def take_turn(self) -> None:
        """See :class:`kerolox.net.turns.Holder`."""
        if self.close_reason is not None or self.stalled_since_s is not None:
            return  # the connection is closed; or reading goes on when the answers can be written
        held, self._held, self._held_bytes = self._held, [], 0
        unsplit, self._unsplit = self._unsplit, b""
        now_s = self._clock.monotonic_s()
        if held:
            self._pass(held, now_s)
            self._note_unfinished()
        if unsplit and self.close_reason is None:
            self._read(unsplit, now_s)
        self._read_on()

    @property
    def _is_left(self) -> bool:
        """True if the other side has closed a connection that is not being read."""
        if self._transport is None or not hasattr(socket, "TCP_INFO"):
            return self._transport is None
        sock = self._transport.get_extra_info("socket")
        try:
            return bool(sock.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == CLOSE_WAIT)
        except (OSError, ValueError):  # the descriptor is closed
            return True

    def _read_on(self) -> None:
        if self._transport is None or self.close_reason is not None:
            return
        if self.stalled_since_s is None and not self._held:
            self._transport.resume_reading()

    def _take_answer(self, command: Command) -> None:
        on_answer = self._exchange.take(command.opaque)
        if on_answer is None:
            log.debug("answer_unexpected peer=%s opaque=%d", self.address, command.opaque)
            return
        on_answer(command)

    def _break(self, error: ProtocolError) -> None:
        log.warning(
            "frame_refused peer=%s error=%r next='check which program connects to this port'",
            self.address,
            str(error),
        )
        self.close(f"malformed frame: {error}")

    # --- writing -----------------------------------------------------------------------------

    def _write(self, frame: bytes) -> None:
        self._out.append(frame)
        self._out_bytes += len(frame)
        if not self._in_pass and not self._flush_scheduled:
            # Late answers come in groups (one flush, one arriving message): write them at once.
            self._flush_scheduled = True
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        self._flush_scheduled = False
        out = self._out
        if not out or self._transport is None or self.close_reason is not None:
            return
        if self._out_bytes > LONG_BYTES and len(out) > 1:
            self._transport.writelines(out)
            self._out = []
        else:
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))
            out.clear()
        self._out_bytes = 0
        self.active_s = self._clock.monotonic_s()
        buffered = self._transport.get_write_buffer_size()
        if buffered > self.limits.write_bytes_max:
            log.warning(
                "slow_reader peer=%s buffered=%d next='the peer does not read its answers'",
                self.address,
                buffered,
            )
            self.close(
                f"slow reader: {buffered} bytes unread, the limit is {self.limits.write_bytes_max}",
                at_once=True,
            )

    def pause_writing(self) -> None:
        self.stalled_since_s = self._clock.monotonic_s()
        # Only servers stop reading: a client that stopped could deadlock with a server that waits for it.
        if self._server_side and self._transport is not None:
            self._transport.pause_reading()
            if self._budgets is not None:
                self._budgets.unread.hold(self, self._transport.get_write_buffer_size())

    def resume_writing(self) -> None:
        self.stalled_since_s = None
        if self._budgets is not None:
            self._budgets.unread.release(self)
        if self._server_side:
            self.take_turn()

    # --- deadlines ---------------------------------------------------------------------------

    def check_idle(self, now_s: float) -> None:
        """Close a connection without traffic, or one whose peer does not read. Called regularly by its
        owner."""
        if self.close_reason is not None:
            return
        if self.stalled_since_s is not None and now_s - self.stalled_since_s > self.limits.write_stall_s_max:
            self.close(
                f"slow reader: nothing could be written for {self.limits.write_stall_s_max:g} s", at_once=True
            )
        elif now_s - self.active_s > self.limits.idle_s_max:
            self.close(f"idle for {self.limits.idle_s_max:g} s")

    def _give_up_late(self) -> None:
        self._sweep = None
        now_s = self._clock.monotonic_s()
        for on_answer, command in self._exchange.take_expired(now_s):
            on_answer(RequestTimeout(self.address, request_name(command.code), 0))
        if len(self._exchange):
            self._sweep = self._clock.call_later(SWEEP_S, self._give_up_late)

    def __repr__(self) -> str:
        state = f"closed: {self.close_reason}" if self.close_reason else "open"
        return f"<peer {self.address} {state}, {self.in_flight} in flight>"
