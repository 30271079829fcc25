"""One connection, frame by frame: what is taken, what ends a stream, what ends the connection."""

from __future__ import annotations

import itertools
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.protocol.http2 import frames
from kerolox.protocol.http2.connection import DataArrived, RequestBegun, RequestCancelled, ServerConnection
from kerolox.protocol.http2.errors import ErrorCode
from kerolox.protocol.http2.header_list import Fields, encode
from kerolox.protocol.http2.limits import FRAME_BYTES, WINDOW_BYTES, Http2Limits

from .wire import REQUEST, Sent, Wire, data_frames, frame

OK = encode([(b":status", b"200"), (b"content-type", b"application/grpc")])
END = encode([(b"grpc-status", b"0")])


def begun(wire: Wire, stream_id: int = 1, *, is_whole: bool = True) -> None:
    flags = frames.END_STREAM if is_whole else 0
    (event,) = wire.feed(wire.headers(stream_id, flags))
    assert event == RequestBegun(stream_id, REQUEST, is_whole)


# --- a request and its response ---------------------------------------------------------------------


def test_a_request_with_data_and_its_response() -> None:
    wire = Wire()
    wire.greet()
    events = wire.feed(wire.headers(1, 0), frame(frames.DATA, frames.END_STREAM, 1, b"question"))
    assert events == [RequestBegun(1, REQUEST, False), DataArrived(1, b"question", True, 8)]
    server = wire.server
    server.send_headers(1, OK)
    server.send_data(1, b"answer")
    server.send_end(1, END)
    head, data, tail = wire.sent()
    assert wire.decoder.decode(head.payload, raw=True) == [
        (b":status", b"200"), (b"content-type", b"application/grpc")
    ]  # fmt: skip
    assert data.payload == b"answer"
    assert wire.decoder.decode(tail.payload, raw=True) == [(b"grpc-status", b"0")]
    assert tail.is_end
    assert not head.is_end
    assert not data.is_end
    assert server.open_streams == 0
    assert not server.is_open(1)


@given(cuts=st.lists(st.integers(0, 400), max_size=6))
def test_bytes_may_arrive_in_any_parts(cuts: list[int]) -> None:
    def stream() -> bytes:
        wire = Wire()
        body = frame(frames.DATA, 0, 1, b"a" * 100) + frame(frames.DATA, frames.END_STREAM, 1, b"b" * 50)
        return frames.PREFACE + frames.settings([]) + wire.headers(1, 0) + body

    whole = ServerConnection().receive(stream(), 0.0)
    source = stream()
    places = [0, *sorted(min(cut, len(source)) for cut in cuts), len(source)]
    server = ServerConnection()
    events = [
        event for at, end in itertools.pairwise(places) for event in server.receive(source[at:end], 0.0)
    ]
    assert events == whole
    assert len(whole) == 3
    assert server.waiting_bytes == 0


def test_trailers_end_a_request() -> None:
    wire = Wire()
    wire.greet()
    wire.feed(wire.headers(1, 0), frame(frames.DATA, 0, 1, b"x"))
    assert wire.feed(wire.headers(1, fields=[(b"checksum", b"1")])) == [DataArrived(1, b"", True, 0)]


def test_a_block_in_continuations() -> None:
    wire = Wire()
    wire.greet()
    fields: Fields = [*REQUEST, (b"name", b"v" * 300)]
    block = wire.encoder.encode(fields)
    events = wire.feed(
        frame(frames.HEADERS, frames.END_STREAM, 1, block[:50]),
        frame(frames.CONTINUATION, 0, 1, block[50:100]),
        frame(frames.CONTINUATION, frames.END_HEADERS, 1, block[100:]),
    )
    assert events == [RequestBegun(1, fields, True)]


def test_padding_and_priority_are_taken_off() -> None:
    wire = Wire()
    wire.greet()
    block = wire.encoder.encode(REQUEST)
    payload = b"\x05" + struct.pack(">IB", 0, 15) + block + b"\0" * 5
    flags = frames.PADDED | frames.HAS_PRIORITY | frames.END_HEADERS
    data = frame(frames.DATA, frames.PADDED | frames.END_STREAM, 1, b"\x03xyz\0\0\0")
    assert wire.feed(frame(frames.HEADERS, flags, 1, payload), data) == [
        RequestBegun(1, REQUEST, False),
        DataArrived(1, b"xyz", True, 7),
    ]


def test_an_early_answer_stops_the_request() -> None:
    wire = Wire()
    wire.greet()
    begun(wire, is_whole=False)
    wire.server.send_headers(1, OK)
    wire.server.send_end(1, END)
    last = wire.sent()[-1]
    assert last.kind == frames.RST_STREAM
    assert last.payload == struct.pack(">I", ErrorCode.NO_ERROR)
    assert wire.feed(frame(frames.DATA, frames.END_STREAM, 1, b"late")) == []  # it was under way
    assert wire.server.error is None


def test_a_cancelled_request_takes_no_response() -> None:
    wire = Wire()
    wire.greet()
    begun(wire)
    code = struct.pack(">I", ErrorCode.CANCEL)
    assert wire.feed(frame(frames.RST_STREAM, 0, 1, code)) == [RequestCancelled(1, ErrorCode.CANCEL)]
    wire.server.send_headers(1, OK)
    wire.server.send_data(1, b"late")
    wire.server.send_end(1, END)
    assert wire.sent() == []
    assert wire.server.queued_bytes == 0


def test_ping_and_settings_are_answered() -> None:
    wire = Wire()
    wire.feed(frames.PREFACE, frames.settings([]))
    assert wire.sent()[-1] == Sent(frames.SETTINGS, frames.ACK, 0, b"")
    wire.feed(frame(frames.PING, 0, 0, b"12345678"))
    (pong,) = wire.sent()
    assert (pong.kind, pong.flags, pong.payload) == (frames.PING, frames.ACK, b"12345678")
    wire.server.send_ping()
    assert wire.server.pings_unanswered == 1
    wire.feed(frame(frames.PING, frames.ACK, 0, b"\0" * 8))
    assert wire.server.pings_unanswered == 0


def test_goaway_refuses_new_streams_and_serves_open_ones() -> None:
    wire = Wire()
    wire.greet()
    begun(wire)
    wire.server.send_goaway("the server stops")
    (goaway,) = wire.sent()
    assert frames.read_goaway(goaway.payload) == (1, ErrorCode.NO_ERROR)
    assert wire.feed(wire.headers(3)) == []
    (refusal,) = wire.sent()
    assert refusal.payload == struct.pack(">I", ErrorCode.REFUSED_STREAM)
    wire.server.send_headers(1, OK)
    wire.server.send_end(1, END)
    assert wire.sent()[-1].is_end


# --- windows ------------------------------------------------------------------------------------------


def test_data_waits_for_the_windows_and_the_end_behind_it() -> None:
    wire = Wire()
    wire.greet((frames.INITIAL_WINDOW_SIZE, 10))
    begun(wire)
    wire.server.send_headers(1, OK)
    wire.server.send_data(1, b"0123456789abcde")
    wire.server.send_end(1, END)
    sent = wire.sent()
    assert wire.data_of(1, sent) == b"0123456789"
    assert not sent[-1].is_end
    assert wire.server.queued_bytes == 5
    wire.feed(frames.window_update(1, 4))
    assert wire.data_of(1, wire.sent()) == b"abcd"
    wire.feed(frames.settings([(frames.INITIAL_WINDOW_SIZE, 11)]))
    sent = wire.sent()
    assert wire.data_of(1, sent) == b"e"
    assert sent[-1].is_end
    assert wire.server.queued_bytes == 0
    assert wire.server.open_streams == 0


def test_a_lowered_window_may_be_negative() -> None:
    wire = Wire()
    wire.greet((frames.INITIAL_WINDOW_SIZE, 10))
    begun(wire)
    wire.server.send_headers(1, OK)
    wire.server.send_data(1, b"0123456789")
    wire.feed(frames.settings([(frames.INITIAL_WINDOW_SIZE, 0)]))
    wire.server.send_data(1, b"x")
    wire.feed(frames.window_update(1, 10))
    assert wire.data_of(1, wire.sent()) == b"0123456789"  # 0 - 10 + 10: nothing is left
    wire.feed(frames.window_update(1, 1))
    assert wire.data_of(1, wire.sent()) == b"x"


def test_streams_share_the_connections_window() -> None:
    wire = Wire()
    wire.greet((frames.INITIAL_WINDOW_SIZE, 1 << 20))
    for stream_id in (1, 3):
        begun(wire, stream_id)
        wire.server.send_headers(stream_id, OK)
    for stream_id in (1, 3):
        wire.server.send_data(stream_id, bytes([stream_id]) * 100_000)
        wire.server.send_end(stream_id, END)
    sent = wire.sent()
    assert len(wire.data_of(1, sent)) == WINDOW_BYTES
    assert wire.data_of(3, sent) == b""
    wire.feed(frames.window_update(0, 4 * FRAME_BYTES))
    sent = wire.sent()
    assert [one.stream_id for one in sent if one.kind == frames.DATA] == [1, 3, 1, 3]
    wire.feed(frames.window_update(0, 1 << 20))
    ended = [one.stream_id for one in wire.sent() if one.is_end]
    assert sorted(ended) == [1, 3]


@given(
    data=st.lists(st.binary(min_size=1, max_size=200), min_size=1, max_size=8),
    opened=st.lists(st.tuples(st.sampled_from([0, 1, 3]), st.integers(1, 300)), max_size=40),
)
def test_every_byte_comes_once_in_order_within_the_windows(
    data: list[bytes], opened: list[tuple[int, int]]
) -> None:
    wire = Wire()
    wire.greet((frames.INITIAL_WINDOW_SIZE, 0))
    window = {0: WINDOW_BYTES, 1: 0, 3: 0}
    got = {1: b"", 3: b""}
    for stream_id in (1, 3):
        begun(wire, stream_id)
        wire.server.send_headers(stream_id, OK)
        for part in data:
            wire.server.send_data(stream_id, part)
        wire.server.send_end(stream_id)
    total = b"".join(data)
    for stream_id, size in [*opened, (1, len(total)), (3, len(total))]:
        wire.feed(frames.window_update(stream_id, size))
        window[stream_id] += size
        for one in wire.sent():
            if one.kind == frames.DATA and one.stream_id:
                got[one.stream_id] += one.payload
                window[one.stream_id] -= len(one.payload)
                window[0] -= len(one.payload)
        assert min(window.values()) >= 0
    assert got == {1: total, 3: total}
    assert wire.server.open_streams == 0


def test_windows_open_by_what_was_consumed() -> None:
    wire = Wire(Http2Limits(stream_window_bytes=70_000, connection_window_bytes=100_000))
    wire.greet()
    begun(wire, is_whole=False)
    data = data_frames(1, b"x" * 40_000)
    wire.feed(data)
    assert wire.sent() == []
    wire.server.consumed(1, 40_000)
    (update,) = wire.sent()
    assert (update.kind, update.stream_id) == (frames.WINDOW_UPDATE, 1)  # more than half of its window
    wire.feed(data)
    wire.server.consumed(1, 40_000)
    assert sorted(one.stream_id for one in wire.sent()) == [0, 1]


def test_data_beyond_a_streams_window_ends_it() -> None:
    wire = Wire(Http2Limits(stream_window_bytes=70_000))
    wire.greet()
    begun(wire, is_whole=False)
    data = data_frames(1, b"x" * 40_000)
    events = wire.feed(data, data)
    assert events[-1] == RequestCancelled(1, ErrorCode.FLOW_CONTROL_ERROR)
    assert wire.server.error is None


def test_data_beyond_the_connections_window_ends_it() -> None:
    wire = Wire(Http2Limits(stream_window_bytes=70_000, connection_window_bytes=70_000))
    wire.greet()
    begun(wire, 1, is_whole=False)
    begun(wire, 3, is_whole=False)
    wire.feed(data_frames(1, b"x" * 40_000), data_frames(3, b"x" * 40_000))
    assert wire.end() == ErrorCode.FLOW_CONTROL_ERROR


def test_a_peer_that_opens_no_window_is_left() -> None:
    wire = Wire(Http2Limits(send_bytes_max=1000))
    wire.greet((frames.INITIAL_WINDOW_SIZE, 0))
    begun(wire)
    wire.server.send_headers(1, OK)
    wire.server.send_data(1, b"x" * 1000)
    assert wire.server.error is None
    wire.server.send_data(1, b"x")
    assert wire.end() == ErrorCode.ENHANCE_YOUR_CALM


# --- violations ---------------------------------------------------------------------------------------

BEGIN = b"begin"  # stands for HEADERS that open stream 1 without ending it
WHOLE = b"whole"  # stands for HEADERS that open stream 1 and end its request


@pytest.mark.parametrize(
    ("code", "parts"),
    [
        (ErrorCode.FRAME_SIZE_ERROR, [frame(frames.DATA, 0, 1, b"x" * 70_000)]),
        (ErrorCode.PROTOCOL_ERROR, [frame(frames.DATA, 0, 0, b"x")]),
        (ErrorCode.PROTOCOL_ERROR, [frame(frames.DATA, 0, 1, b"x")]),
        (ErrorCode.PROTOCOL_ERROR, [BEGIN, frame(frames.DATA, frames.PADDED, 1, b"\x05x")]),
        (ErrorCode.FRAME_SIZE_ERROR, [BEGIN, frame(frames.DATA, frames.PADDED, 1)]),
        (ErrorCode.PROTOCOL_ERROR, [frame(frames.HEADERS, frames.END_HEADERS, 0)]),
        (ErrorCode.PROTOCOL_ERROR, [frame(frames.HEADERS, frames.END_HEADERS, 2)]),
        (ErrorCode.COMPRESSION_ERROR, [frame(frames.HEADERS, frames.END_HEADERS, 1, b"\xff" * 5)]),
        (ErrorCode.PROTOCOL_ERROR, [frame(frames.HEADERS, 0, 1), frame(frames.PING, 0, 0, b"x" * 8)]),
        (ErrorCode.PROTOCOL_ERROR, [frame(frames.HEADERS, 0, 1), frame(frames.CONTINUATION, 0, 3)]),
        (ErrorCode.PROTOCOL_ERROR, [frame(frames.HEADERS, 0, 1), frame(0x77, 0, 0)]),
        (ErrorCode.PROTOCOL_ERROR, [frame(frames.CONTINUATION, frames.END_HEADERS, 1)]),
        (ErrorCode.PROTOCOL_ERROR, [frame(frames.PRIORITY, 0, 0, b"x" * 5)]),
        (ErrorCode.PROTOCOL_ERROR, [frame(frames.RST_STREAM, 0, 1, b"\0" * 4)]),
        (ErrorCode.FRAME_SIZE_ERROR, [BEGIN, frame(frames.RST_STREAM, 0, 1, b"\0" * 3)]),
        (ErrorCode.PROTOCOL_ERROR, [frame(frames.SETTINGS, 0, 1)]),
        (ErrorCode.FRAME_SIZE_ERROR, [frame(frames.SETTINGS, 0, 0, b"\0" * 5)]),
        (ErrorCode.FRAME_SIZE_ERROR, [frame(frames.SETTINGS, frames.ACK, 0, b"\0" * 6)]),
        (ErrorCode.PROTOCOL_ERROR, [frames.settings([(frames.ENABLE_PUSH, 2)])]),
        (ErrorCode.FLOW_CONTROL_ERROR, [frames.settings([(frames.INITIAL_WINDOW_SIZE, 2**31)])]),
        (ErrorCode.PROTOCOL_ERROR, [frames.settings([(frames.MAX_FRAME_SIZE, 100)])]),
        (ErrorCode.PROTOCOL_ERROR, [frames.settings([(frames.MAX_FRAME_SIZE, 2**24)])]),
        (ErrorCode.PROTOCOL_ERROR, [frame(frames.PUSH_PROMISE, 0, 1, b"\0" * 4)]),
        (ErrorCode.PROTOCOL_ERROR, [frame(frames.PING, 0, 1, b"x" * 8)]),
        (ErrorCode.FRAME_SIZE_ERROR, [frame(frames.PING, 0, 0, b"x")]),
        (ErrorCode.PROTOCOL_ERROR, [frame(frames.GOAWAY, 0, 1, b"\0" * 8)]),
        (ErrorCode.FRAME_SIZE_ERROR, [frame(frames.GOAWAY, 0, 0, b"\0" * 7)]),
        (ErrorCode.PROTOCOL_ERROR, [frames.window_update(0, 0)]),
        (ErrorCode.PROTOCOL_ERROR, [frames.window_update(1, 1)]),
        (ErrorCode.FLOW_CONTROL_ERROR, [frames.window_update(0, 2**31 - 1)]),
        (ErrorCode.FRAME_SIZE_ERROR, [frame(frames.WINDOW_UPDATE, 0, 0, b"\0" * 3)]),
        (ErrorCode.FLOW_CONTROL_ERROR,
         [WHOLE, frames.window_update(1, 2**30), frames.settings([(frames.INITIAL_WINDOW_SIZE, 2**31 - 1)])]),
    ],
)  # fmt: skip
def test_violations_that_end_the_connection(code: ErrorCode, parts: list[bytes]) -> None:
    wire = Wire()
    wire.greet()
    for part in parts:
        if part is BEGIN or part is WHOLE:
            part = wire.headers(1, frames.END_STREAM if part is WHOLE else 0)
        wire.feed(part)
    assert wire.end() == code
    assert wire.feed(wire.headers(5)) == []  # nothing is taken any more


@pytest.mark.parametrize(
    ("code", "part"),
    [
        (ErrorCode.STREAM_CLOSED, frame(frames.DATA, 0, 1, b"x")),
        (ErrorCode.PROTOCOL_ERROR, frames.window_update(1, 0)),
        (ErrorCode.FLOW_CONTROL_ERROR, frames.window_update(1, 2**31 - 1)),
        (ErrorCode.PROTOCOL_ERROR, frame(frames.PRIORITY, 0, 1, struct.pack(">IB", 1, 0))),
        (ErrorCode.FRAME_SIZE_ERROR, frame(frames.PRIORITY, 0, 1, b"\0" * 4)),
    ],
)
def test_violations_that_end_a_stream(code: ErrorCode, part: bytes) -> None:
    wire = Wire()
    wire.greet()
    begun(wire)
    begun(wire, 3)
    assert wire.feed(part) == [RequestCancelled(1, code)]
    (reset,) = wire.sent()
    assert (reset.kind, reset.payload) == (frames.RST_STREAM, struct.pack(">I", code))
    wire.server.send_headers(3, OK)  # others go on
    wire.server.send_end(3, END)
    assert wire.sent()[-1].is_end


@pytest.mark.parametrize(
    "fields",
    [
        [*REQUEST, (b"Upper", b"x")],
        [*REQUEST, (b"connection", b"close")],
        [*REQUEST, (b"te", b"gzip")],
        [*REQUEST, (b":path", b"/again")],
        [*REQUEST, (b":status", b"200")],
        [*REQUEST[:4], (b"a", b"b"), (b":other", b"x")],
        [(b"a", b"b"), *REQUEST],
        REQUEST[1:],
        [*REQUEST[:2], (b":path", b""), *REQUEST[3:]],
        [*REQUEST, (b"content-length", b"4")],  # the request ends with its headers
        [*REQUEST, (b"content-length", b"four")],
        [*REQUEST, (b"value", b"line\r\nfeed")],
        [*REQUEST, (b"", b"value")],
    ],
)
def test_malformed_requests_never_begin(fields: Fields) -> None:
    wire = Wire()
    wire.greet()
    assert wire.feed(wire.headers(1, fields=fields)) == []
    (reset,) = wire.sent()
    assert (reset.kind, reset.payload) == (frames.RST_STREAM, struct.pack(">I", ErrorCode.PROTOCOL_ERROR))
    begun(wire, 3)


def test_data_of_another_length_than_announced() -> None:
    wire = Wire()
    wire.greet()
    wire.feed(wire.headers(1, 0, [*REQUEST, (b"content-length", b"4")]))
    events = wire.feed(frame(frames.DATA, frames.END_STREAM, 1, b"three"))
    assert events == [RequestCancelled(1, ErrorCode.PROTOCOL_ERROR)]


def test_trailers_must_end_the_request() -> None:
    wire = Wire()
    wire.greet()
    begun(wire, is_whole=False)
    assert wire.feed(wire.headers(1, 0, [(b"a", b"b")])) == [RequestCancelled(1, ErrorCode.PROTOCOL_ERROR)]


def test_a_closed_stream_is_not_opened_again() -> None:
    wire = Wire()
    wire.greet()
    begun(wire)
    wire.server.send_headers(1, OK)
    wire.server.send_end(1, END)
    wire.feed(wire.headers(1))
    assert wire.end() == ErrorCode.STREAM_CLOSED


def test_the_connection_begins_with_the_preface_and_settings() -> None:
    wire = Wire()
    wire.feed(b"GET / HTTP/1.1\r\n")
    assert wire.end() == ErrorCode.PROTOCOL_ERROR
    wire = Wire()
    wire.feed(frames.PREFACE, frame(frames.PING, 0, 0, b"x" * 8))
    assert wire.end() == ErrorCode.PROTOCOL_ERROR


# --- peers that only cost -------------------------------------------------------------------------------


def flood(wire: Wire, part: bytes, count: int = 5000) -> ErrorCode:
    for _ in range(count):
        wire.feed(part)
        if wire.server.error is not None:
            return wire.end()
        wire.server.output.clear()
    raise AssertionError("the flood was never stopped")


@pytest.mark.parametrize(
    "part",
    [
        frame(frames.PING, 0, 0, b"x" * 8),
        frames.settings([]),
        frames.settings([(frames.INITIAL_WINDOW_SIZE, 1)] * 1000),
        frame(frames.SETTINGS, frames.ACK, 0),
        frames.window_update(0, 1),
        frame(frames.PRIORITY, 0, 1, struct.pack(">IB", 0, 1)),
        frame(0x99, 0, 0, b"unknown"),
        frame(frames.DATA, 0, 1),
        frame(frames.DATA, 0, 1, b"x") * 10,
    ],
)
def test_floods_end_the_connection(part: bytes) -> None:
    wire = Wire()
    wire.greet()
    begun(wire, is_whole=False)
    assert flood(wire, part) == ErrorCode.ENHANCE_YOUR_CALM


def test_rapid_resets_end_the_connection() -> None:
    wire = Wire()
    wire.greet()
    for stream_id in range(1, 10_001, 2):
        wire.feed(wire.headers(stream_id), frame(frames.RST_STREAM, 0, stream_id, b"\0\0\0\x08"))
        assert wire.server.open_streams <= 1
        if wire.server.error is not None:
            break
    assert wire.end() == ErrorCode.ENHANCE_YOUR_CALM


def test_streams_beyond_the_limit_are_refused_then_the_connection_ends() -> None:
    wire = Wire(Http2Limits(streams_max=10))
    wire.greet()
    for stream_id in range(1, 10_001, 2):
        wire.feed(wire.headers(stream_id))
        assert wire.server.open_streams <= 10
    assert wire.end() == ErrorCode.ENHANCE_YOUR_CALM


def test_time_requests_and_data_bring_credit_back() -> None:
    wire = Wire()
    wire.greet()
    ping = frame(frames.PING, 0, 0, b"x" * 8)
    for number in range(20_000):
        wire.now_s = number / 90  # ninety a second
        wire.feed(ping)
        wire.server.output.clear()
    for stream_id in range(1, 20_001, 2):  # four frames of this kind for each request
        wire.feed(wire.headers(stream_id), ping, ping, ping)
        wire.server.send_headers(stream_id, OK)
        wire.server.send_end(stream_id, END)
        wire.server.output.clear()
    assert wire.server.error is None


def test_endless_headers_end_the_connection() -> None:
    wire = Wire()
    wire.greet()
    wire.feed(frame(frames.HEADERS, 0, 1))
    assert flood(wire, frame(frames.CONTINUATION, 0, 1), 10) == ErrorCode.ENHANCE_YOUR_CALM
    wire = Wire()
    wire.greet()
    wire.feed(frame(frames.HEADERS, 0, 1))
    assert flood(wire, frame(frames.CONTINUATION, 0, 1, b"x" * 16_000), 10) == ErrorCode.ENHANCE_YOUR_CALM
    assert wire.server.waiting_bytes < 100_000


def test_a_header_bomb_ends_the_connection() -> None:
    wire = Wire()
    wire.greet()
    wire.feed(wire.headers(1, fields=[*REQUEST, (b"big", b"x" * 3000)]))
    bomb = frame(frames.HEADERS, frames.END_HEADERS, 3, b"\xbe" * 1000)  # one byte repeats 3,000
    wire.feed(bomb)
    assert wire.end() == ErrorCode.ENHANCE_YOUR_CALM


@given(st.binary(max_size=300))
def test_arbitrary_frames_never_raise(data: bytes) -> None:
    wire = Wire()
    wire.greet()
    begun(wire, is_whole=False)
    wire.feed(data)
    wire.feed(*(frame(kind, data[0] if data else 0, 1, data[1:]) for kind in range(11)))
    wire.sent()
