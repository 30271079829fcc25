"""Messages of RocketMQ 5's clients: the bytes of golden values, presence, and unknown fields."""

from __future__ import annotations

import pytest

from kerolox.protocol.grpc.messages import MessageType, make, parse


def test_golden_bytes() -> None:
    """Numbers and types of fields, by the bytes that the official client's classes write."""
    status = make("Status", code=20000, message="OK")
    entry = make(
        "SendResultEntry", status=status, message_id="m", transaction_id="t", offset=300, recall_handle="r"
    )
    response = make("SendMessageResponse", status=status, entries=[entry])
    assert response.SerializeToString().hex() == (
        "0a0808a09c0112024f4b" "1216" "0a0808a09c0112024f4b" "12016d" "1a0174" "20ac02" "2a0172"
    )  # fmt: skip
    queue = make(
        "MessageQueue", id=3, permission=4, accept_message_types=[MessageType.NORMAL, MessageType.FIFO]
    )
    assert queue.SerializeToString().hex() == "100318042a020102"
    message = make("Message", user_properties={"k": "v"}, body=b"b")
    assert message.SerializeToString().hex() == "12060a016b120176220162"


def test_presence_is_known() -> None:
    absent, empty = make("SystemProperties"), make("SystemProperties", tag="", delivery_attempt=0)
    assert not absent.HasField("tag")
    assert empty.HasField("tag")
    assert empty.HasField("delivery_attempt")
    settings = make("Settings", publishing=make("Publishing"))
    assert settings.WhichOneof("pub_sub") == "publishing"
    assert make("Settings").WhichOneof("pub_sub") is None


def test_unknown_fields_are_echoed() -> None:
    data = bytes.fromhex("0801fa3e0378797a")  # client_type, and field 1007
    assert parse("Settings", data).SerializeToString() == data


def test_times() -> None:
    frame = make("ReceiveMessageResponse")
    frame.delivery_timestamp.FromMilliseconds(1_794_771_855_026)
    again = parse("ReceiveMessageResponse", frame.SerializeToString())
    assert again.WhichOneof("content") == "delivery_timestamp"
    assert again.delivery_timestamp.ToMilliseconds() == 1_794_771_855_026


def test_bytes_that_hold_no_message() -> None:
    with pytest.raises(ValueError, match="3 bytes are no Status"):
        parse("Status", b"\xff\xff\xff")
