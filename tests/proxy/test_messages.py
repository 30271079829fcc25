"""Messages in both forms, and the rules of their names."""

from __future__ import annotations

import gzip
import zlib
from typing import Any

import pytest

from kerolox.protocol import properties as packed
from kerolox.protocol.flags import COMPRESSED, TRANSACTION_PREPARED
from kerolox.protocol.grpc.messages import Code, Encoding, MessageType, make
from kerolox.protocol.message import StoredMessage
from kerolox.proxy.checks import Rejected, check_group, check_lite_topic, check_topic, resource_name
from kerolox.proxy.messages import Outgoing, outgoing, received

NOW_MS = 1_794_771_855_000
ID = "0102FC0000000141C00B0BA54500000000"


def message(**system: Any) -> Any:
    made = make("Message", body=b"body")
    made.system_properties.message_id = ID
    for name, value in system.items():
        if name == "keys":
            made.system_properties.keys.extend(value)
        elif name in ("delivery_timestamp", "born_timestamp"):
            getattr(made.system_properties, name).FromMilliseconds(value)
        else:
            setattr(made.system_properties, name, value)
    return made


def stored_form(made: Any) -> Outgoing:
    return outgoing(made, "T", NOW_MS, "10.0.0.7:41")


def code_of(made: Any) -> Code:
    with pytest.raises(Rejected) as refused:
        stored_form(made)
    return refused.value.status


def test_a_message_there_and_back() -> None:
    made = message(tag="paid", keys=["k1", "k2"], born_timestamp=NOW_MS - 5, trace_context="trace")
    made.user_properties["color"] = "blue"
    out = stored_form(made)
    assert out.properties == {
        "color": "blue",
        packed.TAGS: "paid",
        packed.KEYS: "k1 k2",
        packed.UNIQUE_KEY: ID,
        packed.PRODUCER_GROUP: "T",
        packed.BORN_HOST: "10.0.0.7:41",
        packed.BORN_TIMESTAMP: str(NOW_MS - 5),
        packed.TRACE_CONTEXT: "trace",
    }
    assert (out.born_ms, out.sys_flag, out.type) == (NOW_MS - 5, 0, MessageType.NORMAL)
    stored = StoredMessage(
        "T", out.body, 3, 7, 4096, packed_properties=packed.pack(out.properties), born_timestamp=out.born_ms,
        store_timestamp=NOW_MS,
    )  # fmt: skip
    back = received(stored, make("Resource", name="T"), "handle", 2)
    system = back.system_properties
    assert dict(back.user_properties) == {"color": "blue"}
    assert (back.body, system.tag, list(system.keys), system.message_id) == (
        b"body",
        "paid",
        ["k1", "k2"],
        ID,
    )
    assert (system.queue_id, system.queue_offset, system.delivery_attempt) == (3, 7, 2)
    assert (system.receipt_handle, system.trace_context) == ("handle", "trace")
    assert system.body_digest.checksum == "841A2D689AD86BD1611447453C22C6FC"
    assert (system.body_encoding, system.message_type) == (Encoding.IDENTITY, MessageType.NORMAL)
    assert system.born_timestamp.ToMilliseconds() == NOW_MS - 5


@pytest.mark.parametrize(
    ("system", "kind", "properties"),
    [
        ({"message_group": "g"}, MessageType.FIFO, {packed.SHARDING_KEY: "g"}),
        ({"delivery_timestamp": NOW_MS + 5000}, MessageType.DELAY,
         {packed.TIMER_DELIVER_MS: str(NOW_MS + 5000)}),
        ({"message_type": MessageType.TRANSACTION}, MessageType.TRANSACTION,
         {packed.TRANSACTION_PREPARED: "true"}),
        ({"priority": 2}, MessageType.PRIORITY, {"_SYS_MSG_PRIORITY_": "2"}),
        ({"lite_topic": "room-1"}, MessageType.LITE, {"__LITE_TOPIC": "room-1"}),
    ],
)  # fmt: skip
def test_what_a_message_is(system: dict[str, Any], kind: MessageType, properties: dict[str, str]) -> None:
    out = stored_form(message(**system))
    assert out.type is kind
    assert properties.items() <= out.properties.items()
    assert bool(out.sys_flag & TRANSACTION_PREPARED) is (kind is MessageType.TRANSACTION)
    stored = StoredMessage("T", b"b", 0, 0, 0, packed_properties=packed.pack(out.properties))
    back = received(stored, make("Resource"), None, 1)
    assert back.system_properties.message_type == kind
    assert dict(back.user_properties) == {}


def test_rules_at_their_bounds() -> None:
    assert code_of(make("Message")) is Code.MESSAGE_BODY_EMPTY
    big = message()
    big.body = bytes(4 * 1024 * 1024)
    stored_form(big)
    big.body += b"x"
    assert code_of(big) is Code.MESSAGE_BODY_TOO_LARGE
    stored_form(message(message_group="x" * 63))
    assert code_of(message(message_group="x" * 64)) is Code.ILLEGAL_MESSAGE_GROUP
    assert code_of(message(message_group=" ")) is Code.ILLEGAL_MESSAGE_GROUP
    stored_form(message(delivery_timestamp=NOW_MS + 86_400_000))
    assert code_of(message(delivery_timestamp=NOW_MS + 86_400_001)) is Code.ILLEGAL_DELIVERY_TIME
    assert code_of(message(message_id=" ")) is Code.ILLEGAL_MESSAGE_ID
    assert code_of(message(tag="a|b")) is Code.ILLEGAL_MESSAGE_TAG
    assert code_of(message(tag="  ")) is Code.ILLEGAL_MESSAGE_TAG
    assert code_of(message(keys=["ok", "\n"])) is Code.ILLEGAL_MESSAGE_KEY
    assert code_of(message(priority=-1)) is Code.BAD_REQUEST
    transaction = message(message_type=MessageType.TRANSACTION)
    transaction.system_properties.orphaned_transaction_recovery_duration.FromSeconds(3601)
    assert code_of(transaction) is Code.BAD_REQUEST


def test_user_properties_at_their_bounds() -> None:
    many = message()
    many.user_properties.update({f"p{number}": "v" for number in range(128)})
    stored_form(many)
    many.user_properties["more"] = "v"
    assert code_of(many) is Code.MESSAGE_PROPERTIES_TOO_LARGE
    full = message(tag="t" * 10)
    full.user_properties["name"] = "v" * (16_384 - 10 - 4)
    stored_form(full)
    full.user_properties["name"] += "v"
    assert code_of(full) is Code.MESSAGE_PROPERTIES_TOO_LARGE


@pytest.mark.parametrize(
    "name", ["KEYS", "UNIQ_KEY", "__SHARDINGKEY", "INNER_MULTI_DISPATCH", "TRAN_MSG", "a\nb"]
)
def test_properties_that_forge_are_refused(name: str) -> None:
    made = message()
    made.user_properties[name] = "x"
    assert code_of(made) is Code.ILLEGAL_MESSAGE_PROPERTY_KEY


def test_compressed_bodies() -> None:
    plain = b"text " * 1000
    by_zlib = message(body_encoding=Encoding.GZIP)
    by_zlib.body = zlib.compress(plain)
    assert (stored_form(by_zlib).body, stored_form(by_zlib).sys_flag) == (zlib.compress(plain), COMPRESSED)
    by_gzip = message(body_encoding=Encoding.GZIP)
    by_gzip.body = gzip.compress(plain)
    out = stored_form(by_gzip)
    stored = StoredMessage("T", out.body, 0, 0, 0, sys_flag=out.sys_flag)
    assert stored.plain_body() == plain  # as consumers by remoting read it
    assert received(stored, make("Resource"), None, 1).body == plain
    by_gzip.body = by_gzip.body[:-9]
    assert code_of(by_gzip) is Code.MESSAGE_CORRUPTED


@pytest.mark.parametrize(
    "name", ["", " ", "x" * 128, "a b", "a.b", "SCHEDULE_TOPIC_XXXX", "rmq_sys_REVIVE_LOG_c"]
)
def test_topics_that_are_refused(name: str) -> None:
    with pytest.raises(Rejected) as refused:
        check_topic(name)
    assert refused.value.status is Code.ILLEGAL_TOPIC


def test_names_that_are_taken() -> None:
    for name in ("x" * 127, "a-b_c|%", "%DLQ%group", "%RETRY%group"):
        assert check_topic(name) == name
    assert check_group("x" * 120) == "x" * 120
    for name in ("", "x" * 121, "CID_RMQ_SYS_g", "a/b"):
        with pytest.raises(Rejected):
            check_group(name)
    check_lite_topic("room-1")
    for name in ("", "a.b", "x" * 65):
        with pytest.raises(Rejected):
            check_lite_topic(name)


def test_namespaces() -> None:
    assert resource_name(make("Resource", name="T")) == "T"
    assert resource_name(make("Resource", name="T", resource_namespace="ns")) == "ns%T"
