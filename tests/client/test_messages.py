"""What users send and get."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from kerolox import Message, Queue, Received
from kerolox.client.errors import InvalidMessage
from kerolox.client.messages import decode_received, decode_some, iter_received, received
from kerolox.protocol.batch import encode_batch
from kerolox.protocol.bodies.body import MessageQueue
from kerolox.protocol.compression import compress
from kerolox.protocol.flags import COMPRESSED, COMPRESSION_ZLIB, COMPRESSION_ZSTD, INNER_BATCH, NEEDS_UNWRAP
from kerolox.protocol.limits import INFLATED_BODY_BYTES_MAX
from kerolox.protocol.properties import unpack
from kerolox.protocol.record import encode_record

BORN = bytes([10, 0, 0, 9, 0, 0, 0x15, 0xB3])
STORE = bytes([10, 0, 0, 1, 0, 0, 0x2A, 0x9F])
# remoting.md 5.2
GOLDEN = bytes.fromhex(
    "0000007edaa320a73610a686000000020000000000000000000000070000000000000400000000000000018bcfe568000a0000"
    "09000015b30000018bcfe568010a00000100002a9f0000000000000000000000000000000568656c6c6f09546f706963546573"
    "740015544147530154616741024b455953016b31206b3202"
)


def record(body: bytes, sys_flag: int = 0, properties: bytes = b"") -> bytes:
    return encode_record(2, 0, 7, 1024, sys_flag, 1, BORN, 2, STORE, 0, 0, body, b"\x09TopicTest", properties)


def table(message: Message, **more: str) -> dict[str, str]:
    return unpack(message.pack("U1").encode())


def test_properties_travel_under_their_wire_names() -> None:
    message = Message("t", b"x", tags="A", keys=["k1", "k2"], properties={"colour": "red"}, wait_stored=False)
    assert table(message) == {
        "TAGS": "A",
        "KEYS": "k1 k2",
        "colour": "red",
        "UNIQ_KEY": "U1",
        "WAIT": "false",
    }


def test_delays_travel_in_three_ways() -> None:
    at = datetime(2030, 1, 1, tzinfo=UTC)
    assert table(Message("t", b"x", delay_level=3))["DELAY"] == "3"
    assert table(Message("t", b"x", delay=1.5))["TIMER_DELAY_MS"] == "1500"
    assert table(Message("t", b"x", delay=timedelta(minutes=1)))["TIMER_DELAY_MS"] == "60000"
    assert table(Message("t", b"x", deliver_at=at))["TIMER_DELIVER_MS"] == str(int(at.timestamp()) * 1000)
    assert table(Message("t", b"x", deliver_at=2.0))["TIMER_DELIVER_MS"] == "2000"


@pytest.mark.parametrize(
    "message",
    [
        Message("t", b"x", properties={"KEYS": "k"}),
        Message("t", b"x", properties={"a": ""}),
        Message("t", b"x", properties={"a\x01": "b"}),
        Message("t", b"x", properties={"a": "b\x02c"}),
        Message("t", b"x", properties={"a": 1}),  # type: ignore[dict-item]
        Message("t", b"x", tags="a\x02b"),
        Message("t", b"x", keys=["a\x02b"]),
        Message("t", b"x", delay_level=1, delay=1),
        Message("t", b"x", delay=-1),
    ],
    ids=lambda message: repr(message)[:60],
)
def test_what_would_be_read_as_something_else_is_refused(message: Message) -> None:
    with pytest.raises(InvalidMessage):
        message.pack("U")


def test_two_messages_do_not_share_properties() -> None:
    Message("t", b"x").properties["a"] = "b"
    assert Message("t", b"x").properties == {}


def test_a_received_message_says_where_it_comes_from() -> None:
    (message,) = decode_received(GOLDEN, "broker-a")
    assert type(message) is Received
    assert (message.topic, message.body, message.text) == ("TopicTest", b"hello", "hello")
    assert message.queue == Queue("TopicTest", "broker-a", 2)
    assert message.queue_offset == 7
    assert (message.tags, message.keys, message.broker) == ("TagA", ("k1", "k2"), "broker-a")
    assert message.offset_msg_id == message.msg_id == "0A00000100002A9F0000000000000400"
    assert (message.born_address, message.store_address) == ("10.0.0.9:5555", "10.0.0.1:10911")
    assert message.stored_at - message.born_at == timedelta(milliseconds=1)
    assert message.get("TAGS") == "TagA"
    assert message.get("none", "else") == "else"


def test_compressed_bodies_come_inflated() -> None:
    flags = COMPRESSED | COMPRESSION_ZSTD
    data = record(compress(b"long" * 2000, COMPRESSION_ZSTD), flags, b"UNIQ_KEY\x01U\x02") + GOLDEN
    first, second = decode_received(data)
    assert first.body == b"long" * 2000
    assert first.sys_flag == 0
    assert first.msg_id == "U"
    assert second.body == b"hello"


def test_a_body_that_cannot_be_inflated_is_given_as_it_came() -> None:
    flags = COMPRESSED | COMPRESSION_ZSTD
    (message,) = decode_received(record(b"no zstd", flags))
    assert (message.body, message.sys_flag) == (b"no zstd", flags)


def test_inner_batches_are_unwrapped() -> None:
    body = encode_batch([(0, b"one", b""), (0, b"two", b"TAGS\x01A\x02")])
    messages = decode_received(record(body, INNER_BATCH | NEEDS_UNWRAP), "b")
    assert [(m.body, m.queue_offset, m.tags, m.broker, type(m)) for m in messages] == [
        (b"one", 7, "", "b", Received),
        (b"two", 8, "A", "b", Received),
    ]


def test_a_queue_goes_over_the_wire_and_back() -> None:
    queue = Queue("t", "b", 3)
    assert queue.wire() == MessageQueue("t", "b", 3)
    assert Queue.of(queue.wire()) == queue


def test_received_keeps_what_is_received() -> None:
    (message,) = decode_received(GOLDEN)
    assert received(message) is message


def test_an_answer_is_inflated_up_to_a_bound() -> None:
    """60 messages of 60 MiB each would be 3.6 GB: what does not fit is pulled again."""
    flags = COMPRESSED | COMPRESSION_ZLIB
    large = compress(bytes(20 << 20))
    data = record(b"plain", 0) + record(large, flags) * 4 + record(b"last", 0)
    messages, left_from = decode_some(data, "b")
    assert [len(message.body) for message in messages] == [5, 20 << 20, 20 << 20, 20 << 20]
    assert left_from == messages[0].queue_offset
    assert not any(message.sys_flag & COMPRESSED for message in messages)
    assert len(list(iter_received(data, "b"))) == 6
    few, left_from = decode_some(record(large, flags) + record(b"x", 0), "b")
    assert (len(few), left_from) == (2, None)


def test_a_body_beyond_the_limit_is_given_as_it_came(caplog: pytest.LogCaptureFixture) -> None:
    flags = COMPRESSED | COMPRESSION_ZLIB
    bomb = compress(bytes(INFLATED_BODY_BYTES_MAX + 1))
    messages, left_from = decode_some(record(bomb, flags) * 3 + record(b"x", 0), "b")
    assert [message.body for message in messages] == [bomb, bomb, bomb, b"x"]
    assert left_from is None
    assert messages[0].sys_flag & COMPRESSED
    assert caplog.text.count("body_not_inflated") == 3
