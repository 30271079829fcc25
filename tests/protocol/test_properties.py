from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerolox.errors import InvalidRequest
from kerolox.protocol import properties as names
from kerolox.protocol.properties import append, find, marker, pack, remove, replace, unpack

word = st.text(
    st.characters(exclude_characters="\x01\x02", exclude_categories=["Cs"]), min_size=1, max_size=8
)
# Bytes in which separators, the names looked for, and broken UTF-8 are all likely.
packed_bytes = st.lists(
    st.sampled_from([b"\x01", b"\x02", b"TAGS", b"KEYS", b"a", b"", b"\xff", "ü".encode()]), max_size=14
).map(b"".join)


def test_known_bytes() -> None:
    packed = pack({"TAGS": "TagA", "KEYS": "k1 k2"})
    assert packed == b"TAGS\x01TagA\x02KEYS\x01k1 k2\x02"
    assert unpack(packed) == {"TAGS": "TagA", "KEYS": "k1 k2"}


@pytest.mark.parametrize(
    ("packed", "table"),
    [
        (b"", {}),
        (b"a\x01b\x02c\x01d", {"a": "b", "c": "d"}),  # the last separator is missing
        (b"a\x01b\x02a\x01c\x02", {"a": "c"}),  # the last counts
        (b"a\x01b\x02a\x01\x02", {"a": "b"}),  # an empty one does not
        (b"c\x01\x02a\x01b\x02", {"a": "b"}),
        (b"e\x02a\x01b\x02", {"a": "b"}),
        (b"\x01v\x02a\x01b\x02", {"a": "b"}),
        (b"a\x01b\x01c\x02", {"a": "b\x01c"}),  # later \x01 belong to the value
        (b"\x02\x02a\x01b\x02\x02", {"a": "b"}),
        ("ключ\x01値\x02".encode(), {"ключ": "値"}),
        (b"a\x01\xff\x02", {"a": "�"}),
    ],
)
def test_what_readers_accept(packed: bytes, table: dict[str, str]) -> None:
    assert unpack(packed) == table
    for name, value in table.items():
        found = find(packed, marker(name))
        assert found is not None
        assert found.decode("utf-8", "replace") == value


@settings(max_examples=100)
@given(packed_bytes)
def test_find_agrees_with_unpack_on_any_bytes(packed: bytes) -> None:
    table = unpack(packed)
    for name in ("TAGS", "KEYS", "a", "ü"):
        found = find(packed, marker(name))
        assert (None if found is None else found.decode("utf-8", "replace")) == table.get(name)


@settings(max_examples=100)
@given(st.dictionaries(word, word, max_size=6))
def test_round_trip_with_and_without_the_last_separator(table: dict[str, str]) -> None:
    packed = pack(table)
    assert unpack(packed) == table
    assert unpack(packed[:-1]) == table


def test_find_does_not_take_a_value_or_a_longer_name_for_the_name() -> None:
    packed = b"x\x01TAGS\x01v\x02MYTAGS\x01w\x02TAGS2\x01u\x02"
    assert find(packed, names.AT_TAGS) is None
    assert find(packed + b"TAGS\x01t", names.AT_TAGS) == b"t"


def test_none_is_left_out_and_empty_values_are_written_but_not_read() -> None:
    packed = pack({"a": None, "b": "", "c": "1"})
    assert packed == b"b\x01\x02c\x011\x02"
    assert unpack(packed) == {"c": "1"}


@pytest.mark.parametrize("table", [{"": "v"}, {"a\x01": "v"}, {"a\x02": "v"}, {"a": "v\x02w"}])
def test_separators_where_they_would_break_the_text_are_refused(table: dict[str, str]) -> None:
    with pytest.raises(InvalidRequest, match="separators"):
        pack(table)


def test_append_adds_the_separator_that_is_missing() -> None:
    assert append(b"a\x01b", b"c\x01d\x02") == b"a\x01b\x02c\x01d\x02"
    assert append(b"a\x01b\x02", b"c\x01d\x02") == b"a\x01b\x02c\x01d\x02"
    assert append(b"", b"c\x01d\x02") == b"c\x01d\x02"
    assert append(b"a\x01b", b"") == b"a\x01b"


def test_remove_takes_every_occurrence_and_nothing_else() -> None:
    packed = b"POP_CK\x011\x02a\x01b\x02POP_CK\x012\x02POP_CK_OFFSET\x013\x02POP_CK\x014"
    assert remove(packed, names.AT_POP_CHECKPOINT) == b"a\x01b\x02POP_CK_OFFSET\x013"
    assert remove(b"a\x01b\x02", names.AT_POP_CHECKPOINT) == b"a\x01b\x02"
    assert remove(b"POP_CK\x011\x02", names.AT_POP_CHECKPOINT) == b""


@settings(max_examples=100)
@given(packed_bytes)
def test_remove_and_replace_change_one_property_only(packed: bytes) -> None:
    table = unpack(packed)
    assert unpack(replace(packed, "TAGS", "new")) == {**table, "TAGS": "new"}
    table.pop("TAGS", None)
    assert unpack(remove(packed, names.AT_TAGS)) == table


def test_reserved_names_are_those_of_rocketmq() -> None:
    assert len(names.RESERVED) == 51
    assert {"KEYS", "TAGS", "UNIQ_KEY", "WAIT", "DELAY", "1ST_POP_TIME", "__CRC32#"} <= names.RESERVED
    assert names.RESERVED.isdisjoint({"__SHARDINGKEY", "__transactionId__", "INNER_NUM", "TRACE_CONTEXT"})
