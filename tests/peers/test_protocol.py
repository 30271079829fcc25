"""What our encoders write, Apache's own classes read."""

from __future__ import annotations

import base64
import random
from typing import Any
from zlib import crc32

import pytest

from kerolox.protocol import fast_codecs as hot  # noqa: F401 — as servers and clients have it
from kerolox.protocol.batch import split_batch
from kerolox.protocol.command import decode_command, encode_answer
from kerolox.protocol.frame import BINARY, JSON, FrameSplitter
from kerolox.protocol.headers.pull import PullAnswer
from kerolox.protocol.headers.send import SendAnswer
from kerolox.protocol.hosts import host_bytes
from kerolox.protocol.java import java_hash
from kerolox.protocol.record import encode_record, topic_field

from ..protocol.golden import rows
from .driver import JavaDriver


def java_reads(driver: JavaDriver, frame: bytes) -> dict[str, Any]:
    return dict(driver.call("codec.decode", bytes=base64.b64encode(frame).decode()))


def b64(data: bytes) -> str:
    return base64.b64encode(data).decode()


@pytest.mark.parametrize("kind", ["json", "binary"])
def test_recorded_frames_encoded_again_read_the_same_in_java(java_driver: JavaDriver, kind: str) -> None:
    compared = 0
    for row in list(rows(kind))[:: 5 if kind == "json" else 4]:
        (frame,) = FrameSplitter().feed(row.frame)
        seen = java_reads(java_driver, decode_command(*frame).encode())
        original = java_reads(java_driver, row.frame)
        for key in ("code", "opaque", "flag", "version", "remark", "language"):
            assert seen[key] == original[key], (row.conversation, key)
        assert present(seen.get("extFields")) == present(original.get("extFields"))
        assert seen.get("body") == original.get("body")
        compared += 1
    assert compared > 50


def present(fields: dict[str, str | None] | None) -> dict[str, str]:
    return {name: value for name, value in (fields or {}).items() if value}


@pytest.mark.parametrize("encoding", [JSON, BINARY])
def test_hot_answers_read_in_java(java_driver: JavaDriver, encoding: int) -> None:
    send = SendAnswer(
        msg_id="0A00000100002A9F0000000000000400", queue_id=3, queue_offset=2**40, transaction_id="AB12",
        region_id="DefaultRegion", trace_on=True,
    )  # fmt: skip
    seen = java_reads(java_driver, encode_answer(encoding, -5, 0, send))
    assert (seen["code"], seen["opaque"], seen["flag"], seen["language"]) == (0, -5, 1, "PYTHON")
    assert seen["extFields"] == {
        "msgId": send.msg_id, "queueId": "3", "queueOffset": str(2**40), "transactionId": "AB12",
        "MSG_REGION": "DefaultRegion", "TRACE_ON": "true",
    }  # fmt: skip
    pull = PullAnswer(
        suggest_which_broker_id=0,
        next_begin_offset=8,
        min_offset=0,
        max_offset=9,
        topic_sys_flag=0,
        group_sys_flag=0,
    )
    seen = java_reads(java_driver, encode_answer(encoding, 1, 0, pull, "FOUND", [b"ab", b"c"]))
    assert seen["remark"] == "FOUND"
    assert seen["extFields"]["nextBeginOffset"] == "8"


def test_records_of_every_shape_read_in_java(java_driver: JavaDriver) -> None:
    hosts = {4: host_bytes("10.1.2.3:5555"), 6: host_bytes("[2001:db8::7]:10911")}
    # RocketMQ 4 has no long topics.
    topics = ["T", "TopicTest", "x" * 127, *([] if java_driver.jars.is_4x else ["%RETRY%" + "y" * 200])]
    expected, records = [], b""
    for number, (born, store, topic) in enumerate((b, s, t) for b in (4, 6) for s in (4, 6) for t in topics):
        body = bytes([number]) * (number * 37)
        records += encode_record(
            number, 7, 1000 + number, len(records), 0, 1_700_000_000_000, hosts[born], 1_700_000_000_001,
            hosts[store], number % 3, 0, body, topic_field(topic),
            b"KEYS\x01k%d\x02TAGS\x01t\xc3\xa9\x02" % number,
        )  # fmt: skip
        expected.append((topic, number, 1000 + number, body, f"k{number}"))
    seen = java_driver.call("codec.decodeMessages", bytes=b64(records))
    assert len(seen) == len(expected)
    for got, (topic, queue_id, queue_offset, body, key) in zip(seen, expected, strict=True):
        assert (got["topic"], got["queueId"], got["queueOffset"]) == (topic, queue_id, queue_offset)
        # Java knows an empty body as no body.
        assert (got.get("bodySize", 0), got.get("bodyCrc", 0)) == (len(body), crc32(body) & 0x7FFFFFFF)
        assert got["properties"]["KEYS"] == key
        assert got["properties"]["TAGS"] == "té"


def test_batches_java_encodes_split_here(java_driver: JavaDriver) -> None:
    messages = [
        {"topic": "T", "text": f"text {n}" * n, "tags": f"t{n}", "keys": f"k{n}"} for n in range(1, 20)
    ]
    packed = base64.b64decode(java_driver.call("codec.encodeMessages", messages=messages))
    items = split_batch(packed)
    assert [body.decode() for _, body, _ in items] == [m["text"] for m in messages]


def test_string_hashes_agree(java_driver: JavaDriver) -> None:
    chance = random.Random(7)
    alphabets = ["abcXYZ019_-%", "äöüßéñ", "漢字かな", "😀𝄞🀄", "\x00\x01\uffff"]
    texts = ["", "polygenelubricants", "TagA"] + [
        "".join(chance.choice(chance.choice(alphabets)) for _ in range(chance.randrange(60)))
        for _ in range(200)
    ]
    assert java_driver.call("codec.hashCode", strings=texts) == [java_hash(text) for text in texts]
