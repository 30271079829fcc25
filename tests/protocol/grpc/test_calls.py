"""gRPC calls in headers and data."""

from __future__ import annotations

import itertools

import hpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.protocol.grpc.calls import (
    CallFailed,
    CallHead,
    GrpcStatus,
    MessageReader,
    pack,
    read_head,
    refusal,
    trailers,
)
from kerolox.protocol.http2.header_list import Fields

HEAD: Fields = [
    (b":method", b"POST"),
    (b":scheme", b"http"),
    (b":path", b"/s/M"),
    (b"content-type", b"application/grpc+proto"),
]


def test_the_head_of_a_call() -> None:
    fields = [*HEAD, (b"x-mq-client-id", b"c@1"), (b"x-mq-client-id", b"again"), (b"x-mq-namespace", b"")]
    assert read_head(fields) == CallHead(
        "/s/M",
        {"content-type": "application/grpc+proto", "x-mq-client-id": "c@1", "x-mq-namespace": ""},
        None,
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("3S", 3), ("2M", 120), ("1H", 3600), ("250m", 0.25), ("5u", 5e-6), ("99999999n", 0.099999999)],
)
def test_timeouts(text: str, seconds: float) -> None:
    head = read_head([*HEAD, (b"grpc-timeout", text.encode())])
    assert head.timeout_s == pytest.approx(seconds)


@pytest.mark.parametrize(
    ("status", "fields"),
    [
        (GrpcStatus.UNKNOWN, [(b":method", b"GET"), *HEAD[1:]]),
        (GrpcStatus.UNKNOWN, HEAD[:3]),
        (GrpcStatus.UNKNOWN, [*HEAD[:3], (b"content-type", b"text/html")]),
        (GrpcStatus.UNIMPLEMENTED, [*HEAD, (b"grpc-encoding", b"gzip")]),
        (GrpcStatus.INVALID_ARGUMENT, [*HEAD, (b"grpc-timeout", b"soon")]),
        (GrpcStatus.INVALID_ARGUMENT, [*HEAD, (b"grpc-timeout", b"123456789S")]),
        (GrpcStatus.INVALID_ARGUMENT, [*HEAD, (b"grpc-timeout", b"1s")]),
    ],
)
def test_requests_that_are_no_calls(status: GrpcStatus, fields: Fields) -> None:
    with pytest.raises(CallFailed) as failed:
        read_head(fields)
    assert failed.value.status is status


def test_the_end_of_a_call() -> None:
    decoder = hpack.Decoder()
    assert decoder.decode(trailers(), raw=True) == [(b"grpc-status", b"0")]
    assert decoder.decode(trailers(GrpcStatus.INTERNAL, "50 % ü\n"), raw=True) == [
        (b"grpc-status", b"13"),
        (b"grpc-message", b"50 %25 %C3%BC%0A"),
    ]
    assert decoder.decode(refusal(GrpcStatus.UNAVAILABLE, "stop"), raw=True) == [
        (b":status", b"200"),
        (b"content-type", b"application/grpc"),
        (b"grpc-status", b"14"),
        (b"grpc-message", b"stop"),
    ]


@given(messages=st.lists(st.binary(max_size=300)), cuts=st.lists(st.integers(0, 2000)))
def test_messages_in_any_parts(messages: list[bytes], cuts: list[int]) -> None:
    data = b"".join(map(pack, messages))
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    reader = MessageReader(1000)
    got = [m for at, end in itertools.pairwise(places) for m in reader.feed(data[at:end])]
    assert got == messages
    assert reader.waiting_bytes == 0
    reader.check_end()


def test_messages_that_are_refused() -> None:
    with pytest.raises(CallFailed, match="11 bytes, the limit is 10") as failed:
        list(MessageReader(10).feed(pack(b"x" * 11)))
    assert failed.value.status is GrpcStatus.RESOURCE_EXHAUSTED
    with pytest.raises(CallFailed, match="compressed") as failed:
        list(MessageReader(10).feed(b"\1" + pack(b"x")[1:]))
    assert failed.value.status is GrpcStatus.UNIMPLEMENTED
    reader = MessageReader(10)
    assert list(reader.feed(pack(b"whole") + pack(b"torn")[:-1])) == [b"whole"]
    with pytest.raises(CallFailed, match="8 bytes into a message"):
        reader.check_end()
