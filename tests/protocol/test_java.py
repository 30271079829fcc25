from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerolox.protocol.java import index_hash, java_hash, wrap32, wrap64


def slow_hash(text: str, seed: int = 0) -> int:
    """The definition, one UTF-16 unit at a time."""
    raw = text.encode("utf-16-be", "surrogatepass")
    for at in range(0, len(raw), 2):
        seed = wrap32(seed * 31 + int.from_bytes(raw[at : at + 2], "big"))
    return seed


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", 0),
        ("a", 97),
        ("TagA", 2598919),
        ("TopicTest#k1", 2746024),
        ("polygenelubricants", -2147483648),
        ("Aa", 2112),
        ("BB", 2112),
        ("\U0001f600", 1772899),  # two units, D83D DE00
    ],
)
def test_known_hashes(text: str, expected: int) -> None:
    assert java_hash(text) == expected
    assert java_hash(text.encode()) == expected


@settings(max_examples=100)
@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=300))
def test_hash_is_the_definition_for_any_text(text: str) -> None:
    assert java_hash(text) == java_hash(text.encode()) == slow_hash(text)


@settings(max_examples=50)
@given(st.text(st.characters(min_codepoint=0, max_codepoint=127), max_size=400))
def test_hash_is_the_definition_for_ascii_of_every_length(text: str) -> None:
    assert java_hash(text) == slow_hash(text)


@pytest.mark.parametrize("length", [7, 8, 9, 127, 128, 129, 256, 257, 5000])
def test_hash_where_the_method_changes(length: int) -> None:
    text = "".join(chr(33 + number % 90) for number in range(length))
    assert java_hash(text) == slow_hash(text)
    assert java_hash("é" + text) == slow_hash("é" + text)


@given(st.text(max_size=40), st.text(max_size=40))
def test_a_hash_goes_on_from_a_kept_prefix(head: str, tail: str) -> None:
    assert java_hash(tail, java_hash(head)) == slow_hash(tail, slow_hash(head))


def test_lone_surrogates_and_broken_utf8_have_a_hash() -> None:
    assert java_hash("\ud800") == 0xD800
    assert java_hash(b"\xff") == 0xFFFD


def test_index_hash_is_never_negative() -> None:
    assert index_hash(-2147483648) == 0
    assert index_hash(-5) == 5
    assert index_hash(2147483647) == 2147483647
    assert index_hash(-2147483647) == 2147483647


def test_wrap_around() -> None:
    assert wrap32(2**31 - 1) == 2**31 - 1
    assert wrap32(2**31) == -(2**31)
    assert wrap32(-(2**31) - 1) == 2**31 - 1
    assert wrap32(2**32) == 0
    assert wrap64(2**63 - 1) == 2**63 - 1
    assert wrap64(2**63) == -(2**63)
    assert wrap64(-(2**63) - 1) == 2**63 - 1
    assert wrap64(-1) == -1
