"""The sending half of a connection: data that fits the peer's windows goes out, the rest waits in order."""

from __future__ import annotations

from collections import deque

from kerolox.protocol.http2 import frames
from kerolox.protocol.http2.errors import ErrorCode, Http2Error
from kerolox.protocol.http2.header_list import NO_TABLE
from kerolox.protocol.http2.limits import FRAME_BYTES, WINDOW_BYTES, WINDOW_BYTES_MAX, Http2Limits

Buffer = bytes | memoryview


class Outgoing:
    """The response of one stream."""

    __slots__ = ("has_headers", "is_finished", "queue", "stream_id", "trailers", "window")

    def __init__(self, stream_id: int, window: int) -> None:
        self.stream_id = stream_id
        self.window = window  # bytes that the peer takes now; negative after it has lowered its windows
        self.queue: deque[Buffer] = deque()  # data that waits for a window
        self.trailers: bytes | None = None  # block that ends the stream, after the queue
        self.has_headers = False
        self.is_finished = False  # the end is sent or waits behind the queue


class Sending:
    """Frames to send, the windows of the peer, and the data that waits for them."""

    __slots__ = (
        "_frame_bytes_max", "_limits", "_ready", "_starts_table", "initial_window", "output", "queued_bytes",
        "sent_bytes", "streams", "window",
    )  # fmt: skip

    def __init__(self, limits: Http2Limits) -> None:
        self.output: list[Buffer] = []  # frames to write, taken by the owner of the connection
        self.queued_bytes = 0  # data of all streams that waits for windows
        self.sent_bytes = 0  # data in frames, since the start
        self.window = WINDOW_BYTES  # of the connection
        self.initial_window = WINDOW_BYTES  # of new streams
        self.streams: dict[int, Outgoing] = {}
        self._limits = limits
        self._frame_bytes_max = FRAME_BYTES  # limit of the peer
        self._ready: dict[int, Outgoing] = {}  # have data and a window of their own; in turn
        self._starts_table = NO_TABLE

    # --- responses ------------------------------------------------------------------------------

    def open(self, stream_id: int) -> None:
        """Add a stream."""
        self.streams[stream_id] = Outgoing(stream_id, self.initial_window)

    def drop(self, stream_id: int) -> None:
        """Remove a stream, with the data that waits."""
        stream = self.streams.pop(stream_id, None)
        if stream is not None:
            self._ready.pop(stream_id, None)
            self.queued_bytes -= sum(len(part) for part in stream.queue)

    def headers(self, stream: Outgoing, block: bytes) -> None:
        """Send the headers of a response."""
        self._block(stream.stream_id, block, 0)
        stream.has_headers = True

    def data(self, stream: Outgoing, data: Buffer) -> None:
        """Send data, or as much as the windows allow; the rest follows when they open."""
        size = len(data)
        if not stream.queue and size <= stream.window and size <= self.window:
            self._data(stream, data)
            return
        if not size:
            return
        self.queued_bytes += size
        if self.queued_bytes > self._limits.send_bytes_max:
            raise Http2Error(
                ErrorCode.ENHANCE_YOUR_CALM,
                f"{self.queued_bytes} bytes of responses wait because the peer does not open its windows",
            )
        stream.queue.append(data)
        self._pump_one(stream)

    def finish(self, stream: Outgoing, trailers: bytes | None) -> bool:
        """End a response, with a block of trailers or without. Return False if data still waits."""
        stream.is_finished = True
        stream.trailers = trailers
        if stream.queue:
            return False
        self._end(stream)
        return True

    def _end(self, stream: Outgoing) -> None:
        if stream.trailers is None:
            self.output.append(frames.head(0, frames.DATA, frames.END_STREAM, stream.stream_id))
        else:
            self._block(stream.stream_id, stream.trailers, frames.END_STREAM)

    def _block(self, stream_id: int, block: bytes, flags: int) -> None:
        if self._starts_table:
            block, self._starts_table = self._starts_table + block, b""
        self.output.append(frames.header_frames(stream_id, block, flags, self._frame_bytes_max))

    def _data(self, stream: Outgoing, data: Buffer) -> None:
        """Add the frames of data that fits both windows."""
        size, limit = len(data), self._frame_bytes_max
        stream.window -= size
        self.window -= size
        self.sent_bytes += size
        if size <= limit:
            self.output += (frames.head(size, frames.DATA, 0, stream.stream_id), data)
            return
        view = memoryview(data)
        for at in range(0, size, limit):
            part = view[at : at + limit]
            self.output += (frames.head(len(part), frames.DATA, 0, stream.stream_id), part)

    # --- windows --------------------------------------------------------------------------------

    def frame_bytes(self, size: int) -> None:
        """Set the longest frame that the peer accepts."""
        self._frame_bytes_max = size

    def initial_windows(self, size: int) -> list[int]:
        """Apply a new initial window to all streams. Return the streams that ended with the data sent now."""
        change, self.initial_window = size - self.initial_window, size
        for stream in self.streams.values():
            stream.window += change
            if stream.window > WINDOW_BYTES_MAX:
                raise Http2Error(
                    ErrorCode.FLOW_CONTROL_ERROR,
                    f"the window of stream {stream.stream_id} grows to {stream.window} bytes",
                )
            if stream.queue and stream.window > 0:
                self._ready[stream.stream_id] = stream
        return self._pump()

    def open_window(self, size: int) -> list[int]:
        """Enlarge the connection's window. Return the streams that ended with the data sent now."""
        self.window += size
        if self.window > WINDOW_BYTES_MAX:
            raise Http2Error(
                ErrorCode.FLOW_CONTROL_ERROR, f"the window of the connection grows to {self.window} bytes"
            )
        return self._pump()

    def open_stream_window(self, stream: Outgoing, size: int) -> bool:
        """Enlarge the window of a stream. Return True if it ended with the data sent now."""
        stream.window += size
        return self._pump_one(stream)

    def _pump_one(self, stream: Outgoing) -> bool:
        """Send what waits on one stream, as far as both windows allow. Return True if that ended it."""
        queue = stream.queue
        while queue and stream.window > 0 and self.window > 0:
            part = queue.popleft()
            room = min(stream.window, self.window)
            if len(part) > room:
                view = memoryview(part)
                queue.appendleft(view[room:])
                part = view[:room]
            self.queued_bytes -= len(part)
            self._data(stream, part)
        if queue and stream.window > 0:
            self._ready[stream.stream_id] = stream
        else:
            self._ready.pop(stream.stream_id, None)
        if queue or not stream.is_finished:
            return False
        self._end(stream)
        return True

    def _pump(self) -> list[int]:
        """Send what waits, a frame for each stream in turn. Return the streams that ended."""
        ended = []
        while self._ready and self.window > 0:
            stream_id = next(iter(self._ready))
            stream = self._ready.pop(stream_id)
            queue = stream.queue
            room = min(stream.window, self.window, self._frame_bytes_max)
            part = queue.popleft()
            if len(part) > room:
                view = memoryview(part)
                queue.appendleft(view[room:])
                part = view[:room]
            self.queued_bytes -= len(part)
            self._data(stream, part)
            if queue:
                if stream.window > 0:
                    self._ready[stream_id] = stream
            elif stream.is_finished:
                self._end(stream)
                ended.append(stream_id)
        return ended
