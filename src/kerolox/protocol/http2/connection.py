"""The server's end of one HTTP/2 connection, without I/O.

Bytes go into :meth:`ServerConnection.receive`, which returns events; responses go into its sending
methods; ``output`` holds the frames to write. The caller reports data that it has processed
(:meth:`ServerConnection.consumed`), which opens the windows again: what is not processed bounds what the peer
may send.
"""

from __future__ import annotations

from collections.abc import Callable

import hpack
import msgspec

from kerolox.protocol.http2 import frames
from kerolox.protocol.http2.errors import ErrorCode, Http2Error, StreamError, code_name
from kerolox.protocol.http2.header_list import Fields, content_length, request_fault, trailers_fault
from kerolox.protocol.http2.limits import DEFAULT, FRAME_BYTES, WINDOW_BYTES, WINDOW_BYTES_MAX, Http2Limits
from kerolox.protocol.http2.patience import Patience
from kerolox.protocol.http2.sending import Buffer, Outgoing, Sending

SMALL_BYTES = 64  # shorter data that does not end a request costs credit


class RequestBegun(msgspec.Struct, frozen=True, gc=False):
    """Headers of a new stream."""

    stream_id: int
    fields: Fields
    is_whole: bool  # no data follows


class DataArrived(msgspec.Struct, frozen=True, gc=False):
    """Data of a request."""

    stream_id: int
    data: bytes
    is_last: bool
    window_bytes: int  # for :meth:`ServerConnection.consumed`: the data with its padding


class RequestCancelled(msgspec.Struct, frozen=True, gc=False):
    """End of a stream before its response: the peer reset it or broke the protocol on it."""

    stream_id: int
    code: int


Event = RequestBegun | DataArrived | RequestCancelled


class _Incoming:
    """The request of one stream."""

    __slots__ = ("announced", "arrived", "is_whole", "owed", "window")

    def __init__(self, window: int, announced: int | None, is_whole: bool) -> None:
        self.window = window  # bytes that the peer may still send
        self.owed = 0  # consumed bytes by which the window was not opened yet
        self.announced = announced  # content-length
        self.arrived = 0
        self.is_whole = is_whole


class _Block(msgspec.Struct):
    """A header block without its end."""

    stream_id: int
    flags: int
    depends_on_itself: bool
    parts: list[bytes]
    size: int


class ServerConnection:
    """State of one connection. After ``error`` is set, write ``output`` and close the connection."""

    def __init__(self, limits: Http2Limits = DEFAULT) -> None:
        self.error: Http2Error | None = None
        self.is_leaving = False  # GOAWAY was sent or received: no new streams
        self.pings_unanswered = 0  # own PINGs
        self._limits = limits
        self._sending = Sending(limits)
        self._patience = Patience(limits)
        self._buffer = bytearray()
        self._preface_left = frames.PREFACE
        self._has_settings = False
        self._streams: dict[int, _Incoming] = {}
        self._last_stream = 0
        self._reset_here: dict[int, None] = {}  # late frames on these are ignored
        self._block: _Block | None = None
        self._window = limits.connection_window_bytes
        self._owed = 0
        self._decoder = hpack.Decoder(max_header_list_size=limits.header_bytes_max)
        self._events: list[Event] = []
        self._handlers: dict[int, Callable[[int, int, bytes], None]] = {
            frames.DATA: self._on_data,
            frames.HEADERS: self._on_headers,
            frames.PRIORITY: self._on_priority,
            frames.RST_STREAM: self._on_rst_stream,
            frames.SETTINGS: self._on_settings,
            frames.PUSH_PROMISE: self._on_push_promise,
            frames.PING: self._on_ping,
            frames.GOAWAY: self._on_goaway,
            frames.WINDOW_UPDATE: self._on_window_update,
            frames.CONTINUATION: self._on_continuation,
        }
        self.output.append(
            frames.settings(
                [
                    (frames.MAX_CONCURRENT_STREAMS, limits.streams_max),
                    (frames.INITIAL_WINDOW_SIZE, limits.stream_window_bytes),
                    (frames.MAX_FRAME_SIZE, limits.frame_bytes_max),
                    (frames.MAX_HEADER_LIST_SIZE, limits.header_bytes_max),
                ]
            )
        )
        if limits.connection_window_bytes > WINDOW_BYTES:
            self.output.append(frames.window_update(0, limits.connection_window_bytes - WINDOW_BYTES))

    @property
    def output(self) -> list[Buffer]:
        """Frames to write, in order. The owner empties the list."""
        return self._sending.output

    @property
    def queued_bytes(self) -> int:
        """Bytes of responses that wait for windows of the peer."""
        return self._sending.queued_bytes

    @property
    def open_streams(self) -> int:
        """Number of streams without a complete response."""
        return len(self._streams)

    @property
    def waiting_bytes(self) -> int:
        """Bytes of the incomplete frame and header block."""
        return len(self._buffer) + (self._block.size if self._block else 0)

    def is_open(self, stream_id: int) -> bool:
        """Return True while a response on the stream can be sent."""
        stream = self._sending.streams.get(stream_id)
        return stream is not None and not stream.is_finished

    # --- responses ------------------------------------------------------------------------------

    def send_headers(self, stream_id: int, block: bytes) -> None:
        """Send the header block of a response. Does nothing if the stream was reset."""
        stream = self._response(stream_id)
        if stream is not None:
            self._sending.headers(stream, block)

    def send_data(self, stream_id: int, data: Buffer) -> None:
        """Send data of a response, as the windows allow. Does nothing if the stream was reset."""
        stream = self._response(stream_id)
        if stream is not None:
            try:
                self._sending.data(stream, data)
            except Http2Error as error:
                self._fail(error)

    def send_end(self, stream_id: int, trailers: bytes | None = None) -> None:
        """End a response. Does nothing if the stream was reset."""
        stream = self._response(stream_id)
        if stream is not None and self._sending.finish(stream, trailers):
            self._answered(stream_id)

    def send_reset(self, stream_id: int, code: ErrorCode) -> None:
        """Give up a stream. Does nothing if it was reset."""
        if stream_id in self._streams:
            self._reset(stream_id, code)

    def send_ping(self, payload: bytes = b"\0" * 8) -> None:
        """Ask the peer for a sign of life."""
        self.pings_unanswered += 1
        self.output.append(frames.ping(payload))

    def send_goaway(self, text: str = "") -> None:
        """Tell the peer to open new streams on another connection. Open streams go on."""
        if not self.is_leaving:
            self.is_leaving = True
            self.output.append(frames.goaway(self._last_stream, ErrorCode.NO_ERROR, text))

    def consumed(self, stream_id: int, window_bytes: int) -> None:
        """Open the windows by data that was processed."""
        limits = self._limits
        self._owed += window_bytes
        if self._owed * 2 >= limits.connection_window_bytes:
            self.output.append(frames.window_update(0, self._owed))
            self._window += self._owed
            self._owed = 0
        stream = self._streams.get(stream_id)
        if stream is not None and not stream.is_whole:
            stream.owed += window_bytes
            if stream.owed * 2 >= limits.stream_window_bytes:
                self.output.append(frames.window_update(stream_id, stream.owed))
                stream.window += stream.owed
                stream.owed = 0

    def _response(self, stream_id: int) -> Outgoing | None:
        stream = self._sending.streams.get(stream_id)
        if self.error is not None or stream is None:
            return None
        assert not stream.is_finished, f"a response on stream {stream_id} is ended twice"
        return stream

    def _answered(self, stream_id: int) -> None:
        """Forget a stream whose response is complete. A request that goes on is of no use then."""
        stream = self._streams.pop(stream_id)
        self._sending.drop(stream_id)
        self._patience.earn(self._limits.credit_per_request)
        if not stream.is_whole:
            self._remember_reset(stream_id)
            self.output.append(frames.rst_stream(stream_id, ErrorCode.NO_ERROR))

    # --- bytes of the peer ----------------------------------------------------------------------

    def receive(self, data: bytes, now_s: float) -> list[Event]:
        """Return what these bytes complete. Events before a violation are still returned."""
        if self.error is not None:
            return []
        self._patience.passed(now_s)
        events = self._events = []
        buffer = self._buffer
        source: bytes | bytearray = data
        if buffer:
            buffer += data
            source = buffer
        at = 0
        try:
            if self._preface_left:
                at = self._take_preface(source)
            at = self._take_frames(source, at)
        except Http2Error as error:
            self._fail(error)
            buffer.clear()
            return events
        if source is buffer:
            del buffer[:at]
        elif at < len(source):
            buffer += source[at:]
        return events

    def _take_preface(self, source: bytes | bytearray) -> int:
        left = self._preface_left
        size = min(len(left), len(source))
        if source[:size] != left[:size]:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "the connection does not begin with HTTP/2's preface")
        self._preface_left = left[size:]
        return size

    def _take_frames(self, source: bytes | bytearray, at: int) -> int:
        """Handle all complete frames. Return where the incomplete one begins."""
        size, frame_bytes_max, handlers = len(source), self._limits.frame_bytes_max, self._handlers
        while size - at >= frames.HEAD_BYTES:
            length, kind, flags, stream_id = frames.read_head(source, at)
            if length > frame_bytes_max:
                raise Http2Error(
                    ErrorCode.FRAME_SIZE_ERROR, f"a frame of {length} bytes, the limit is {frame_bytes_max}"
                )
            begin = at + frames.HEAD_BYTES
            if begin + length > size:
                break
            at = begin + length
            if not self._has_settings and (kind != frames.SETTINGS or flags & frames.ACK):
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "the first frame is not SETTINGS")
            if self._block is not None and kind != frames.CONTINUATION:
                raise Http2Error(
                    ErrorCode.PROTOCOL_ERROR,
                    f"a frame of type {kind} inside the header block of stream {self._block.stream_id}",
                )
            handler = handlers.get(kind)
            if handler is None:
                self._patience.spend(1, f"unknown type {kind}")
                continue
            try:
                handler(flags, stream_id, bytes(source[begin:at]))
            except StreamError as error:
                self._patience.spend(1, str(error))
                self._reset(error.stream_id, error.http2_code, is_news=True)
        return at

    def _fail(self, error: Http2Error) -> None:
        """End the connection."""
        self.error = error
        self.is_leaving = True
        self.output.append(frames.goaway(self._last_stream, error.http2_code, str(error)))

    def _reset(self, stream_id: int, code: ErrorCode, *, is_news: bool = False) -> None:
        """Send RST_STREAM and forget the stream; with ``is_news`` its request is reported as cancelled."""
        self.output.append(frames.rst_stream(stream_id, code))
        self._remember_reset(stream_id)
        self._sending.drop(stream_id)
        if self._streams.pop(stream_id, None) is not None and is_news:
            self._events.append(RequestCancelled(stream_id, code))

    def _remember_reset(self, stream_id: int) -> None:
        self._reset_here[stream_id] = None
        if len(self._reset_here) > self._limits.remembered_resets:
            del self._reset_here[next(iter(self._reset_here))]

    # --- requests -------------------------------------------------------------------------------

    def _on_data(self, flags: int, stream_id: int, payload: bytes) -> None:
        size = len(payload)
        stream = self._streams.get(stream_id)
        if stream is None:
            self._check_known(stream_id, "DATA")
        self._window -= size
        if self._window < 0:
            raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, "more data than the connection's window allows")
        if stream is None:
            self._patience.spend(1, "DATA on a stream that was reset")
            self.consumed(stream_id, size)
            return
        if stream.is_whole:
            self.consumed(stream_id, size)
            raise StreamError(stream_id, ErrorCode.STREAM_CLOSED, "DATA after the end of the request")
        stream.window -= size
        if stream.window < 0:
            self.consumed(0, size)
            raise StreamError(stream_id, ErrorCode.FLOW_CONTROL_ERROR, "more data than the window allows")
        data = _without_padding(payload, 1, payload[0]) if flags & frames.PADDED and payload else payload
        if flags & frames.PADDED and not payload:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "padded DATA without the length of the padding")
        is_last = bool(flags & frames.END_STREAM)
        if len(data) >= SMALL_BYTES:
            self._patience.earn(len(data) / 1024 * self._limits.credit_per_kib)
        elif not is_last:
            self._patience.spend(0.1 if data else 1, "short DATA")
        stream.arrived += len(data)
        if is_last:
            self._complete(stream_id, stream)
        self._events.append(DataArrived(stream_id, data, is_last, size))

    def _complete(self, stream_id: int, stream: _Incoming) -> None:
        stream.is_whole = True
        if stream.announced is not None and stream.announced != stream.arrived:
            raise StreamError(
                stream_id,
                ErrorCode.PROTOCOL_ERROR,
                f"content-length is {stream.announced}, the data had {stream.arrived} bytes",
            )

    def _on_headers(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "HEADERS on stream 0")
        at = padding = 0
        depends_on_itself = False
        if flags & frames.PADDED:
            if not payload:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "padded HEADERS without the padding's length")
            padding, at = payload[0], 1
        if flags & frames.HAS_PRIORITY:
            if len(payload) < at + 5:
                raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, "HEADERS without the announced priority")
            depends_on_itself = _dependency(payload[at : at + 4]) == stream_id
            at += 5
        part = _without_padding(payload, at, padding)
        block = _Block(stream_id, flags, depends_on_itself, [part], len(part))
        if flags & frames.END_HEADERS:
            self._take_block(block)
        else:
            self._block = block

    def _on_continuation(self, flags: int, stream_id: int, payload: bytes) -> None:
        block = self._block
        if block is None or block.stream_id != stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"CONTINUATION on stream {stream_id} without HEADERS")
        block.parts.append(payload)
        block.size += len(payload)
        limits = self._limits
        if len(block.parts) > 1 + limits.continuations_max or block.size > limits.header_bytes_max:
            raise Http2Error(
                ErrorCode.ENHANCE_YOUR_CALM,
                f"a header block of {block.size} bytes in {len(block.parts)} frames, the limits are "
                f"{limits.header_bytes_max} and {1 + limits.continuations_max}",
            )
        if flags & frames.END_HEADERS:
            self._block = None
            self._take_block(block)

    def _take_block(self, block: _Block) -> None:
        try:  # also of a stream that is refused: the block may change the table
            fields: Fields = self._decoder.decode(b"".join(block.parts), raw=True)  # type: ignore[assignment]
        except hpack.OversizedHeaderListError as error:
            raise Http2Error(
                ErrorCode.ENHANCE_YOUR_CALM,
                f"a header list of more than {self._limits.header_bytes_max} bytes",
            ) from error
        except hpack.HPACKError as error:
            raise Http2Error(ErrorCode.COMPRESSION_ERROR, f"{type(error).__name__}: {error}") from error
        stream_id, is_last = block.stream_id, bool(block.flags & frames.END_STREAM)
        stream = self._streams.get(stream_id)
        if stream is not None:
            self._take_trailers(stream_id, stream, fields, is_last)
            return
        if stream_id in self._reset_here:
            self._patience.spend(1, "HEADERS on a stream that was reset")
            return
        if not stream_id & 1:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"a client opens stream {stream_id}, which is even")
        if stream_id <= self._last_stream:
            raise Http2Error(ErrorCode.STREAM_CLOSED, f"HEADERS on stream {stream_id}, which is closed")
        self._last_stream = stream_id
        self._begin(stream_id, fields, is_last, block.depends_on_itself)

    def _begin(self, stream_id: int, fields: Fields, is_last: bool, depends_on_itself: bool) -> None:
        if self.is_leaving or len(self._streams) >= self._limits.streams_max:
            raise StreamError(stream_id, ErrorCode.REFUSED_STREAM, "no more streams are accepted")
        if depends_on_itself:
            raise StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, "the stream depends on itself")
        fault = request_fault(fields)
        announced = content_length(fields)
        if fault is None and (announced == -1 or (is_last and announced)):
            fault = "content-length does not fit the request"
        if fault is not None:
            raise StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, fault)
        self._streams[stream_id] = _Incoming(self._limits.stream_window_bytes, announced, is_last)
        self._sending.open(stream_id)
        self._events.append(RequestBegun(stream_id, fields, is_last))

    def _take_trailers(self, stream_id: int, stream: _Incoming, fields: Fields, is_last: bool) -> None:
        if stream.is_whole:
            raise StreamError(stream_id, ErrorCode.STREAM_CLOSED, "HEADERS after the end of the request")
        fault = trailers_fault(fields) if is_last else "HEADERS inside a request do not end it"
        if fault is not None:
            raise StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, fault)
        self._complete(stream_id, stream)
        self._events.append(DataArrived(stream_id, b"", True, 0))

    def _on_rst_stream(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"RST_STREAM of {len(payload)} bytes")
        self._patience.spend(1, "RST_STREAM")
        if self._streams.pop(stream_id, None) is None:
            self._check_begun(stream_id, "RST_STREAM")
            return
        self._sending.drop(stream_id)
        self._events.append(RequestCancelled(stream_id, frames.read_word(payload)[0]))

    def _on_priority(self, flags: int, stream_id: int, payload: bytes) -> None:
        if not stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, "PRIORITY on stream 0")
        if len(payload) != 5:
            raise StreamError(stream_id, ErrorCode.FRAME_SIZE_ERROR, f"PRIORITY of {len(payload)} bytes")
        self._patience.spend(1, "PRIORITY")
        if _dependency(payload[:4]) == stream_id:
            raise StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, "the stream depends on itself")

    # --- the connection -------------------------------------------------------------------------

    def _on_settings(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"SETTINGS on stream {stream_id}")
        if len(payload) % 6 or (flags & frames.ACK and payload):
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"SETTINGS of {len(payload)} bytes")
        if flags & frames.ACK:
            self._patience.spend(1, "SETTINGS with ACK")
            return
        self._has_settings = True
        initial_window = None
        for setting, value in frames.read_settings(payload):
            if setting == frames.ENABLE_PUSH and value > 1:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"ENABLE_PUSH = {value}")
            if setting == frames.INITIAL_WINDOW_SIZE:
                if value > WINDOW_BYTES_MAX:
                    raise Http2Error(ErrorCode.FLOW_CONTROL_ERROR, f"INITIAL_WINDOW_SIZE = {value}")
                initial_window = value
            if setting == frames.MAX_FRAME_SIZE:
                if not FRAME_BYTES <= value < 1 << 24:
                    raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"MAX_FRAME_SIZE = {value}")
                self._sending.frame_bytes(min(value, self._limits.frame_bytes_max))
        self._patience.spend(1 + len(payload) / 60 + len(self._streams) / 100, "SETTINGS")
        self.output.append(frames.SETTINGS_ACK)
        if initial_window is not None:
            self._all_answered(self._sending.initial_windows(initial_window))

    def _on_push_promise(self, flags: int, stream_id: int, payload: bytes) -> None:
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, "a client sends PUSH_PROMISE")

    def _on_ping(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"PING on stream {stream_id}")
        if len(payload) != 8:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"PING of {len(payload)} bytes")
        self._patience.spend(1, "PING")
        if flags & frames.ACK:
            self.pings_unanswered = 0
        else:
            self.output.append(frames.ping_ack(payload))

    def _on_goaway(self, flags: int, stream_id: int, payload: bytes) -> None:
        if stream_id:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"GOAWAY on stream {stream_id}")
        if len(payload) < 8:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"GOAWAY of {len(payload)} bytes")
        self._patience.spend(1, f"GOAWAY {code_name(frames.read_goaway(payload)[1])}")
        self.is_leaving = True

    def _on_window_update(self, flags: int, stream_id: int, payload: bytes) -> None:
        if len(payload) != 4:
            raise Http2Error(ErrorCode.FRAME_SIZE_ERROR, f"WINDOW_UPDATE of {len(payload)} bytes")
        size = frames.read_word(payload)[0] & WINDOW_BYTES_MAX
        sending = self._sending
        before = sending.sent_bytes
        self._patience.spend(1, "WINDOW_UPDATE")
        if not stream_id:
            if not size:
                raise Http2Error(ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
            self._all_answered(sending.open_window(size))
        else:
            stream = sending.streams.get(stream_id)
            if stream is None:
                self._check_begun(stream_id, "WINDOW_UPDATE")
                return
            if not size:
                raise StreamError(stream_id, ErrorCode.PROTOCOL_ERROR, "WINDOW_UPDATE by 0")
            if stream.window + size > WINDOW_BYTES_MAX:
                raise StreamError(
                    stream_id,
                    ErrorCode.FLOW_CONTROL_ERROR,
                    f"the window grows to {stream.window + size} bytes",
                )
            if sending.open_stream_window(stream, size):
                self._answered(stream_id)
        self._patience.earn((sending.sent_bytes - before) / 1024 * self._limits.credit_per_kib)

    def _all_answered(self, stream_ids: list[int]) -> None:
        for stream_id in stream_ids:
            self._answered(stream_id)

    def _check_begun(self, stream_id: int, name: str) -> None:
        """Refuse a frame on a stream that no HEADERS frame opened."""
        if not stream_id or not stream_id & 1 or stream_id > self._last_stream:
            raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"{name} on stream {stream_id}, which is idle")

    def _check_known(self, stream_id: int, name: str) -> None:
        """Refuse a frame on a stream that is idle, or closed but not reset here."""
        if stream_id in self._reset_here:
            return
        self._check_begun(stream_id, name)
        raise Http2Error(ErrorCode.STREAM_CLOSED, f"{name} on stream {stream_id}, which is closed")

    def __repr__(self) -> str:
        state = f"failed: {self.error}" if self.error else "leaving" if self.is_leaving else "open"
        return f"<HTTP/2 connection {state}, {len(self._streams)} streams, {self.queued_bytes} bytes queued>"


def _without_padding(payload: bytes, at: int, padding: int) -> bytes:
    end = len(payload) - padding
    if end < at:
        raise Http2Error(ErrorCode.PROTOCOL_ERROR, f"{padding} bytes of padding in {len(payload)} bytes")
    return payload[at:end]


def _dependency(word: bytes) -> int:
    number: int = frames.read_word(word)[0]
    return number & 0x7FFFFFFF
