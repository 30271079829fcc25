from __future__ import annotations

import pytest

from kerolox.errors import InvalidRequest, ProtocolError
from kerolox.protocol.compression import compress
from kerolox.protocol.flags import COMPRESSED, COMPRESSION_ZLIB
from kerolox.protocol.hosts import host_bytes
from kerolox.protocol.message import OutgoingMessage, StoredMessage


def stored(packed: bytes = b"", **fields: object) -> StoredMessage:
    values = {
        "topic": "t",
        "body": b"",
        "queue_id": 0,
        "queue_offset": 0,
        "physical_offset": 1024,
        "store_host": host_bytes("10.0.0.1:10911"),
        "born_host": host_bytes("[::1]:5555"),
        "packed_properties": packed,
        **fields,
    }
    return StoredMessage(**values)  # type: ignore[arg-type]


def test_wire_properties_of_a_bare_message() -> None:
    assert OutgoingMessage("t", b"b").wire_properties() == {"WAIT": "true"}


def test_wire_properties_of_a_full_message() -> None:
    message = OutgoingMessage(
        "t",
        b"b",
        tag="TagA",
        keys=("k1", "k2"),
        properties={"color": "red"},
        delay_level=3,
        deliver_at_ms=1700000000000,
        wait_stored=False,
        unique_key="U",
    )
    assert message.wire_properties() == {
        "color": "red",
        "TAGS": "TagA",
        "KEYS": "k1 k2",
        "DELAY": "3",
        "TIMER_DELIVER_MS": "1700000000000",
        "UNIQ_KEY": "U",
        "WAIT": "false",
    }
    assert message.properties == {"color": "red"}


@pytest.mark.parametrize("properties", [{"TAGS": "x"}, {"UNIQ_KEY": "x"}, {"": "x"}, {"a": ""}])
def test_properties_a_user_may_not_set(properties: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest):
        OutgoingMessage("t", b"b", properties=properties).wire_properties()


def test_two_messages_do_not_share_properties() -> None:
    OutgoingMessage("t", b"").properties["a"] = "b"
    assert OutgoingMessage("t", b"").properties == {}


def test_properties_are_read_on_demand_and_kept() -> None:
    message = stored(b"TAGS\x01TagA\x02KEYS\x01k1  k2\x02UNIQ_KEY\x01U\x02")
    assert message.table is None
    assert (message.tag, message.keys, message.unique_key) == ("TagA", ("k1", "k2"), "U")
    assert message.table is None, "single values need no table"
    message.properties["MIN_OFFSET"] = "0"
    assert message.properties["MIN_OFFSET"] == "0"
    assert (message.tag, message.keys, message.message_id) == ("TagA", ("k1", "k2"), "U")


def test_a_message_without_properties() -> None:
    message = stored()
    assert (message.tag, message.keys, message.unique_key, message.properties) == ("", (), "", {})
    assert message.message_id == message.offset_id == "0A00000100002A9F0000000000000400"


def test_addresses() -> None:
    message = stored()
    assert message.store_address == "10.0.0.1:10911"
    assert message.born_address == "[::1]:5555"


def test_plain_body() -> None:
    assert stored(body=b"plain").plain_body() == b"plain"
    flags = COMPRESSED | COMPRESSION_ZLIB
    assert stored(body=compress(b"long"), sys_flag=flags).plain_body() == b"long"
    with pytest.raises(ProtocolError):
        stored(body=b"long", sys_flag=flags).plain_body()
