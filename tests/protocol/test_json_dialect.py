"""The reader takes all that fastjson writes and reads; the writer writes what all peers read."""

from __future__ import annotations

import contextlib
import json
import math
from enum import StrEnum
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerolox.errors import ProtocolError
from kerolox.protocol import json_dialect
from kerolox.protocol.bodies.topics import TopicConfig
from kerolox.protocol.json_dialect import ObjectKey, dumps, loads
from kerolox.protocol.limits import (
    JSON_BYTES_MAX,
    JSON_DEPTH_MAX,
    JSON_NUMBER_LENGTH_MAX,
    JSON_SCAN_STEPS_MAX,
)

QUEUE = {"brokerName": "broker-a", "queueId": 0, "topic": "TopicTest"}


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{0:"10.0.0.1:10911",1:"b"}', {"0": "10.0.0.1:10911", "1": "b"}),
        ('{"a":{-1:2, 3 : 4}}', {"a": {"-1": 2, "3": 4}}),
        ("{code:7,_x$1:true}", {"code": 7, "_x$1": True}),
        ("{'a':'it\"s'}", {"a": 'it"s'}),
        ('{"a":1,}', {"a": 1}),
        ("{,,'a':1,,b:2,}", {"a": 1, "b": 2}),
        ("[1,,2,]", [1, 2]),
        ("[,]", []),
        (' \t\r\n{ "a" : [ 1 , 2 ] } \n', {"a": [1, 2]}),
        ("/* why */ {a:1 // end\n}", {"a": 1}),
        ("\ufeff{a:1}", {"a": 1}),
        ('{"a":null,b:undefined}', {"a": None, "b": None}),
        (r"""['\x41\u0042\/\'\v\0\7']""", ["AB/'\v\0\7"]),
        (r"['\ud83d\ude00']", ["\U0001f600"]),
        ("['line\nbreak\x01']", ["line\nbreak\x01"]),
        ("[5L,1.5D,2f,007,+3,.5,1.]", [5, 1.5, 2, 7, 3, 0.5, 1.0]),
        ('{"a":{"$ref":"$.b"},1:2}', {"a": {"$ref": "$.b"}, "1": 2}),
        ('{"a:{1:2,":1, 3:4}', {"a:{1:2,": 1, "3": 4}),
        (r'{"a\",{1:":1, 3:4}', {'a",{1:': 1, "3": 4}),
        ("7", 7),
        ("'x'", "x"),
        ("{}", {}),
    ],
)
def test_reads_the_dialect(text: str, value: object) -> None:
    assert loads(text) == value
    assert loads(text.encode()) == value


def test_object_keys() -> None:
    text = '{"offsetTable":{{"brokerName":"broker-a","queueId":0,"topic":"TopicTest"}:{0:5}}}'
    table = loads(text)["offsetTable"]
    ((key, value),) = table.items()
    assert isinstance(key, ObjectKey)
    assert key == QUEUE
    assert dict(key) == QUEUE
    assert value == {"0": 5}
    assert table[ObjectKey(dict(reversed(QUEUE.items())))] == {"0": 5}  # order does not count
    assert ObjectKey({"a": 1}) != ObjectKey({"a": 2})


def test_nested_and_array_keys() -> None:
    assert loads('{{"a":[1,{b:2}]}:1}') == {ObjectKey({"a": [1, {"b": 2}]}): 1}
    assert loads("{[1,2]:3}") == {(1, 2): 3}


def test_numbers_that_are_none() -> None:
    nan, low, high = loads("[NaN,-Infinity,Infinity]")
    assert math.isnan(nan)
    assert (low, high) == (-math.inf, math.inf)


def test_half_of_a_surrogate_pair_is_replaced() -> None:
    assert loads(rb'"a\ud800b"') == "a\ufffdb"
    assert loads(b'"a\xffb"') == "a\ufffdb"


@pytest.mark.parametrize(
    ("text", "at"),
    [
        ("", 0),
        ("   ", 3),
        ("[1 2]", 3),
        ('{"a"}', 4),
        ('{"a":}', 5),
        ("{a:1", 4),
        ('"abc', 4),
        (r'"a\q"', 2),
        (r'"\u12"', 1),
        ("[1]]", 3),
        ("{a:1}}", 5),
        ("nul", 0),
        ("[--1]", 1),
        ("[1x]", 1),
        ("{é:1,x}", 7),
        ("/* open", 0),
        ("{:1}", 1),
    ],
)
def test_refuses_and_says_where(text: str, at: int) -> None:
    with pytest.raises(ProtocolError) as caught:
        loads(text)
    assert caught.value.at == at


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"a":', "}"), ("{a:", "}"), ("{", ":1}")])
def test_depth_is_limited(opening: str, closing: str) -> None:
    inner = "1" if closing != ":1}" else "{}"
    levels = JSON_DEPTH_MAX if inner == "1" else JSON_DEPTH_MAX - 1
    loads(opening * levels + inner + closing * levels)
    with pytest.raises(ProtocolError, match="JSON_DEPTH_MAX"):
        loads(opening * (levels + 1) + inner + closing * (levels + 1))


def test_brackets_in_text_are_no_depth() -> None:
    texts = ["[" * 100, '{"\\' * 100]
    assert loads(json.dumps(texts)) == texts


def test_hopeless_depth_is_refused_at_once() -> None:
    for text in ("[" * 200_000, "{1:" * 100_000, '{"a":' * 100_000):
        with pytest.raises(ProtocolError, match="JSON_DEPTH_MAX"):
            loads(text)


def test_size_is_limited() -> None:
    with pytest.raises(ProtocolError, match="JSON_BYTES_MAX"):
        loads(b" " * (JSON_BYTES_MAX + 1))


def test_length_of_numbers_is_limited() -> None:
    with pytest.raises(ProtocolError):
        loads("[" + "9" * 5000 + "]")
    assert loads("{a:" + "9" * JSON_NUMBER_LENGTH_MAX + "}") == {"a": int("9" * JSON_NUMBER_LENGTH_MAX)}


JSON_TEXT = st.text(st.characters(exclude_categories=["Cs"]))
JSON_VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**63 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | JSON_TEXT,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(JSON_TEXT, inner, max_size=4),
    max_leaves=20,
)


@settings(max_examples=100, deadline=None)
@given(JSON_VALUES, st.booleans())
def test_strict_json_reads_as_python_reads_it(value: object, ascii_only: bool) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only)
    assert loads(text) == json.loads(text) == value


@settings(max_examples=100, deadline=None)
@given(JSON_VALUES)
def test_the_scanner_agrees_with_the_strict_reader(value: object) -> None:
    # A trailing comma sends the same text through the scanner.
    text = json.dumps([value])[:-1] + ",]"
    assert loads(text) == [value]


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=200) | st.text(alphabet="{}[]:,\"'\\/*u0a1 -.eL\n\ud800", max_size=60))
def test_any_input_is_read_or_refused(data: Any) -> None:
    try:
        loads(data)
    except ProtocolError:
        pass


@settings(max_examples=100, deadline=None)
@given(
    st.dictionaries(JSON_TEXT, JSON_VALUES.filter(lambda value: value is not None), max_size=5),
    st.booleans(),
)
def test_what_is_written_reads_back(table: dict[str, Any], ascii_only: bool) -> None:
    written = dumps(table, ascii_only=ascii_only)
    assert loads(written) == _without_none(table)
    assert written.isascii() or not ascii_only
    json.loads(written)  # and it is standard JSON


def _without_none(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _without_none(member) for key, member in value.items() if member is not None}
    if isinstance(value, list):
        return [_without_none(item) for item in value]
    return value


class _Colour(StrEnum):
    RED = "RED"


class _Queue(msgspec.Struct, frozen=True, order=True, rename="camel"):
    topic: str
    queue_id: int
    note: str | None = None


def test_writes_compact_sorted_without_nulls() -> None:
    value = {"b": [1, 2.5, None, True], "a": {"z": None, "y": _Colour.RED}, "c": b"\x03\x02"}
    assert dumps(value) == b'{"a":{"y":"RED"},"b":[1,2.5,null,true],"c":"AwI="}'
    assert dumps({"x": 0.0, "n": math.nan, "s": {3, 1, 2}}) == b'{"n":null,"s":[1,2,3],"x":0.0}'


def test_integer_keys_quoted_or_bare_in_numeric_order() -> None:
    addresses = {10: "c", 9: "b", 0: "a"}
    assert dumps(addresses) == b'{"0":"a","9":"b","10":"c"}'
    assert dumps(addresses, quote_integer_keys=False) == b'{0:"a",9:"b",10:"c"}'


def test_object_keys_are_written_bare() -> None:
    table = {_Queue("t", 1): 5, _Queue("t", 0): 4}
    written = dumps(table)
    assert written == b'{{"queueId":0,"topic":"t"}:4,{"queueId":1,"topic":"t"}:5}'
    assert dumps(loads(written)) == written


def test_text_raw_or_escaped() -> None:
    assert dumps({"k": "é\n"}) == '{"k":"é\\n"}'.encode()
    assert dumps({"k": "é"}, ascii_only=True) == b'{"k":"\\u00e9"}'
    assert dumps("a\ud800") == b'"a?"'


def test_cannot_write_what_is_no_json() -> None:
    with pytest.raises(TypeError, match="object"):
        dumps({"a": object()})


def test_brackets_inside_a_text_are_no_depth() -> None:
    # Found by fuzzing: more brackets than levels allowed, all of them in one string.
    text = "[{" * 100
    assert loads(json.dumps(text)) == text
    assert loads(json.dumps({"a": text, "b": [text, 1]})) == {"a": text, "b": [text, 1]}
    assert loads(json.dumps([[]] * 200)) == [[]] * 200


def test_what_is_read_step_by_step_has_so_many_steps() -> None:
    """Strict JSON of any length is read at once; what is not costs a microsecond a step."""
    few = "{a:1," + "1,".join(f"k{number}:" for number in range(JSON_SCAN_STEPS_MAX - 10)) + "1}"
    assert len(loads(few)) == JSON_SCAN_STEPS_MAX - 9
    for text in (
        "[" + "a," * 10 + "1," * (JSON_SCAN_STEPS_MAX + 10) + "'']",
        "['" + "\\n" * (JSON_SCAN_STEPS_MAX + 10) + "']",
        "{" + "".join(f"k{number}:1," for number in range(JSON_SCAN_STEPS_MAX + 1)) + "}",
    ):
        with pytest.raises(ProtocolError, match=r"JSON_SCAN_STEPS_MAX|a value"):
            loads(text)
    assert len(loads("[" + "1," * 1_000_000 + "1]")) == 1_000_001


@pytest.mark.parametrize("head", ["", "{", "[", "{a:", '{a:"', "{a:'", "[1 "])
@pytest.mark.parametrize(
    "piece",
    ["\\", '\\"', "/*", "//", "/**/", "//\n", ",", "1", "1.", "1e", "-", ":", " ", "{1:", "'", '"', "\ufeff"],
)
def test_no_text_is_looked_at_again_and_again(head: str, piece: str) -> None:
    """Two million characters: what looks at the rest for each of them would take hours."""
    with contextlib.suppress(ProtocolError):
        loads(head + piece * (2_000_000 // len(piece)))


@settings(max_examples=200, deadline=None)
@given(
    st.text(),
    st.dictionaries(st.text(), st.text(), max_size=4),
    st.integers(-(2**63), 2**63 - 1),
    st.booleans(),
)
def test_plain_structs_are_written_the_same_by_both_writers(
    name: str, attributes: dict[str, str], number: int, order: bool
) -> None:
    config = TopicConfig(topic_name=name, attributes=attributes, perm=number, order=order)
    assert json_dialect._is_plain(TopicConfig)
    for ascii_only in (False, True):
        quick = dumps({"t": config}, ascii_only=ascii_only)
        json_dialect._IS_PLAIN[TopicConfig] = False
        try:
            assert dumps({"t": config}, ascii_only=ascii_only) == quick
        finally:
            del json_dialect._IS_PLAIN[TopicConfig]
