"""The conversations the codec benchmark speaks: each as bytes to decode and as values to encode.

Every one has a *naive* twin, the yardstick: the ``json`` module, a dict per command, ``struct`` for the
frame, and for records a dict per message. It does the same work for the same bytes.
"""

from __future__ import annotations

import json
import struct
import zlib
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import kerolox.protocol.fast_codecs  # noqa: F401  the short ways of the hot conversations, as in the servers
from bench.pretend_broker import question, registration, registration_question, topic_names
from kerolox.protocol.batch import Item, encode_batch, split_batch
from kerolox.protocol.bodies import heartbeat
from kerolox.protocol.bodies.registration import Registration, decode_registration, encode_registration
from kerolox.protocol.bodies.routes import BrokerData, QueueData, TopicRoute
from kerolox.protocol.codes import Language, RequestCode
from kerolox.protocol.command import Command, encode_answer, request
from kerolox.protocol.frame import BINARY, JSON
from kerolox.protocol.header import Header, encode_fields
from kerolox.protocol.headers.pull import PullAnswer, PullRequest
from kerolox.protocol.headers.registration import RegisterBrokerRequest
from kerolox.protocol.headers.route import RouteRequest
from kerolox.protocol.headers.send import SendAnswer, SendRequestV2
from kerolox.protocol.hosts import host_bytes
from kerolox.protocol.properties import pack
from kerolox.protocol.record import decode_records, encode_record, topic_field

BODY = bytes(range(128))
TOPIC = "bench-topic-0000"
PROPERTIES = pack({"UNIQ_KEY": "7F0000010A2B18B4AAC2123456780001", "WAIT": "true", "TAGS": "TagA"})
RECORDS = 32


@dataclass(frozen=True)
class Conversation:
    """``read`` takes a decoded command's body apart, ``encode`` makes the whole frame anew."""

    name: str
    frame: bytes
    header: type[Header] | None
    encode: Callable[[], bytes]
    naive_encode: Callable[[], bytes]
    read: Callable[[bytes], object] | None = None
    naive_read: Callable[[bytes], object] | None = None
    notes: str = field(default="")


# --- the yardstick --------------------------------------------------------------------------------


def naive_frame(table: dict[str, Any], body: bytes = b"") -> bytes:
    header = json.dumps(table).encode()
    return struct.pack(">ii", 4 + len(header) + len(body), len(header)) + header + body


def naive_frames(data: bytes) -> list[tuple[dict[str, Any], bytes]]:
    found = []
    at = 0
    while at < len(data):
        length, header_length = struct.unpack_from(">ii", data, at)
        body = at + 8 + header_length
        found.append((json.loads(data[at + 8 : body]), data[body : at + 4 + length]))
        at += 4 + length
    return found


def naive_table(code: int, header: Header | None, opaque: int, flag: int = 0) -> dict[str, Any]:
    return {
        "code": code,
        "extFields": {} if header is None else encode_fields(header),
        "flag": flag,
        "language": "JAVA",
        "opaque": opaque,
        "serializeTypeCurrentRPC": "JSON",
        "version": 479,
    }


def naive_batch(body: bytes) -> list[dict[str, Any]]:
    found = []
    at = 0
    while at < len(body):
        size, _, _, flag, length = struct.unpack_from(">iiiii", body, at)
        (properties_length,) = struct.unpack_from(">h", body, at + 20 + length)
        properties = body[at + 22 + length : at + 22 + length + properties_length]
        found.append({"flag": flag, "body": body[at + 20 : at + 20 + length], "properties": properties})
        at += size
    return found


RECORD_NAMES = [
    "size",
    "magic",
    "crc",
    "queueId",
    "flag",
    "queueOffset",
    "physicalOffset",
    "sysFlag",
    "bornTimestamp",
    "bornHost",
    "storeTimestamp",
    "storeHost",
    "reconsumeTimes",
    "preparedOffset",
]


def naive_records(data: bytes) -> list[dict[str, Any]]:
    found = []
    at = 0
    while at < len(data):
        values = struct.unpack_from(">iIiiiqqiq8sq8siq", data, at)
        message: dict[str, Any] = dict(zip(RECORD_NAMES, values, strict=True))
        (length,) = struct.unpack_from(">i", data, at + 84)
        place = at + 88
        message["body"] = data[place : place + length]
        place += length
        topic_length = data[place]
        message["topic"] = data[place + 1 : place + 1 + topic_length].decode()
        place += 1 + topic_length
        (length,) = struct.unpack_from(">h", data, place)
        text = data[place + 2 : place + 2 + length].decode()
        message["properties"] = dict(pair.split("\x01", 1) for pair in text.split("\x02") if pair)
        found.append(message)
        at += message["size"]
    return found


def naive_record(values: dict[str, Any]) -> bytes:
    """Field by field into a buffer, as one would begin."""
    topic = values["topic"].encode()
    properties = "".join(f"{name}\x01{value}\x02" for name, value in values["properties"].items()).encode()
    size = 91 + len(values["body"]) + len(topic) + len(properties)
    record = bytearray(size)
    struct.pack_into(">i", record, 0, size)
    struct.pack_into(">I", record, 4, 0xDAA320A7)
    struct.pack_into(">i", record, 8, zlib.crc32(values["body"]) & 0x7FFFFFFF)
    struct.pack_into(">i", record, 12, values["queueId"])
    struct.pack_into(">i", record, 16, values["flag"])
    struct.pack_into(">q", record, 20, values["queueOffset"])
    struct.pack_into(">q", record, 28, values["physicalOffset"])
    struct.pack_into(">i", record, 36, values["sysFlag"])
    struct.pack_into(">q", record, 40, values["bornTimestamp"])
    record[48:56] = values["bornHost"]
    struct.pack_into(">q", record, 56, values["storeTimestamp"])
    record[64:72] = values["storeHost"]
    struct.pack_into(">i", record, 72, 0)
    struct.pack_into(">q", record, 76, 0)
    struct.pack_into(">i", record, 84, len(values["body"]))
    place = 88 + len(values["body"])
    record[88:place] = values["body"]
    record[place] = len(topic)
    record[place + 1 : place + 1 + len(topic)] = topic
    place += 1 + len(topic)
    struct.pack_into(">h", record, place, len(properties))
    record[place + 2 :] = properties
    return bytes(record)


# --- records --------------------------------------------------------------------------------------

HOST = host_bytes("10.0.0.1:10911")
TOPIC_FIELD = topic_field(TOPIC)


def record(number: int = 0) -> bytes:
    return encode_record(
        3,
        0,
        number,
        number * 300,
        0,
        1_700_000_000_000,
        HOST,
        1_700_000_000_001,
        HOST,
        0,
        0,
        BODY,
        TOPIC_FIELD,
        PROPERTIES,
    )


def records(count: int = RECORDS) -> bytes:
    return b"".join(record(number) for number in range(count))


# --- the conversations ----------------------------------------------------------------------------


def _send_header(batch: bool = False) -> SendRequestV2:
    return SendRequestV2(
        producer_group="bench-producers",
        topic=TOPIC,
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=3,
        sys_flag=0,
        born_timestamp=1_700_000_000_000,
        flag=0,
        properties=PROPERTIES.decode(),
        reconsume_times=0,
        unit_mode=False,
        max_reconsume_times=0,
        batch=batch,
        broker_name="bench-broker",
    )


def _pull_header() -> PullRequest:
    return PullRequest(
        consumer_group="bench-consumers",
        topic=TOPIC,
        queue_id=3,
        queue_offset=123_456,
        max_msg_nums=32,
        sys_flag=3,
        commit_offset=123_424,
        suspend_timeout_millis=15_000,
        sub_version=1_700_000_000_000,
        subscription="*",
        expression_type="TAG",
        max_msg_bytes=2_147_483_647,
        request_source=0,
        broker_name="bench-broker",
    )


def _send_answer() -> SendAnswer:
    return SendAnswer(
        msg_id="0A00000100002A9F0000000000000C3B",
        queue_id=3,
        queue_offset=123_456,
        transaction_id="7F0000010A2B18B4AAC2123456780001",
        region_id="DefaultRegion",
        trace_on=True,
    )


def _pull_answer() -> PullAnswer:
    return PullAnswer(
        suggest_which_broker_id=0,
        next_begin_offset=123_488,
        min_offset=0,
        max_offset=200_000,
        topic_sys_flag=0,
        group_sys_flag=0,
    )


def _heartbeat() -> heartbeat.HeartbeatData:
    def subscription(topic: str) -> heartbeat.SubscriptionData:
        return heartbeat.SubscriptionData(topic=topic, sub_string="*", sub_version=1_700_000_000_000)

    return heartbeat.HeartbeatData(
        client_id="10.0.0.7@4711#123456789",
        producer_data_set=(heartbeat.ProducerData(group_name="CLIENT_INNER_PRODUCER"),),
        consumer_data_set=(
            heartbeat.ConsumerData(
                group_name="bench-consumers",
                consume_from_where=heartbeat.ConsumeFromWhere.CONSUME_FROM_LAST_OFFSET,
                consume_type=heartbeat.ConsumeType.CONSUME_PASSIVELY,
                message_model=heartbeat.MessageModel.CLUSTERING,
                subscription_data_set=(subscription(TOPIC), subscription("%RETRY%bench-consumers")),
            ),
        ),
    )


def _route() -> TopicRoute:
    return TopicRoute(
        broker_datas=(
            BrokerData(
                cluster="DefaultCluster", broker_name="bench-broker", broker_addrs={0: "10.0.0.1:10911"}
            ),
        ),
        queue_datas=(
            QueueData(
                broker_name="bench-broker", read_queue_nums=8, write_queue_nums=8, perm=6, topic_sys_flag=0
            ),
        ),
    )


def _items() -> list[Item]:
    return [(0, BODY, PROPERTIES) for _ in range(RECORDS)]


def _as_java(command: Command) -> bytes:
    command.language = Language.JAVA
    return command.encode()


def _request(
    name: str, code: int, header: Header | None, make_body: Callable[[], bytes], encoding: int, **more: Any
) -> Conversation:
    body = make_body()
    naive_body = more.pop("naive_body", lambda: body)
    return Conversation(
        name,
        question(code, header, body, opaque=1_234_567, encoding=encoding),
        None if header is None else type(header),
        lambda: _as_java(request(code, header, make_body(), opaque=1_234_567, encoding=encoding)),
        lambda: naive_frame(naive_table(code, header, 1_234_567), naive_body()),
        **more,
    )


def _answer(name: str, header: Header | None, body: bytes, encoding: int, **more: Any) -> Conversation:
    return Conversation(
        name,
        encode_answer(encoding, 1_234_567, 0, header, None, body),
        None if header is None else type(header),
        lambda: encode_answer(encoding, 1_234_567, 0, header, None, body),
        lambda: naive_frame(naive_table(0, header, 1_234_567, flag=1), body),
        **more,
    )


def conversations(encoding: int) -> list[Conversation]:
    """All of them with headers in one encoding. Broker registrations and heartbeats come as JSON alone."""
    small = lambda: BODY  # noqa: E731
    none = lambda: b""  # noqa: E731
    route = _route().encode()
    items = _items()
    naive_items = naive_batch(encode_batch(items))
    found = [
        _request(
            "route query", RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteRequest(topic=TOPIC), none, encoding
        ),
        _answer("route answer", None, route, encoding),
        _request("send V2, 128 B", RequestCode.SEND_MESSAGE_V2, _send_header(), small, encoding),
        _answer("send answer", _send_answer(), b"", encoding),
        _request(
            f"batch send of {RECORDS}",
            RequestCode.SEND_BATCH_MESSAGE,
            _send_header(batch=True),
            lambda: encode_batch(items),
            encoding,
            read=split_batch,
            naive_read=naive_batch,
            naive_body=lambda: _naive_encode_batch(naive_items),
        ),
        _request("pull request", RequestCode.PULL_MESSAGE, _pull_header(), none, encoding),
        _answer(
            f"pull answer of {RECORDS}",
            _pull_answer(),
            records(),
            encoding,
            read=decode_records,
            naive_read=naive_records,
        ),
    ]
    if encoding == BINARY:
        return found
    assert encoding == JSON
    beat = _heartbeat()
    beat_tree = json.loads(beat.encode())
    topics = topic_names(100)
    whole: Registration = registration(topics)
    whole_tree = json.loads(encode_registration(whole))
    registering = RegisterBrokerRequest(
        broker_name="bench-broker",
        broker_addr="10.0.0.1:10911",
        cluster_name="DefaultCluster",
        broker_id=0,
        ha_server_addr="10.0.0.1:10912",
    )
    return [
        *found,
        _request(
            "heartbeat",
            RequestCode.HEART_BEAT,
            None,
            beat.encode,
            encoding,
            read=heartbeat.HeartbeatData.decode,
            naive_read=json.loads,
            naive_body=lambda: json.dumps(beat_tree).encode(),
        ),
        Conversation(
            "registration of 100 topics",
            registration_question(topics),
            RegisterBrokerRequest,
            lambda: _as_java(
                request(RequestCode.REGISTER_BROKER, registering, encode_registration(whole), opaque=1)
            ),
            lambda: naive_frame(
                naive_table(RequestCode.REGISTER_BROKER, registering, 1), json.dumps(whole_tree).encode()
            ),
            read=decode_registration,
            naive_read=json.loads,
        ),
    ]


def _naive_encode_batch(items: list[dict[str, Any]]) -> bytes:
    data = b""
    for item in items:
        body, properties = item["body"], item["properties"]
        size = 22 + len(body) + len(properties)
        data += struct.pack(">iiiii", size, 0, 0, item["flag"], len(body)) + body
        data += struct.pack(">h", len(properties)) + properties
    return data
