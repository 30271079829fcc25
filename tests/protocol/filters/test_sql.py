"""SQL92 conditions: the answers of RocketMQ, errors that show the place, and limits."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerolox.errors import ProtocolError
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.filters.lexer import FilterError, Lexer
from kerolox.protocol.filters.numbers import Unanswerable
from kerolox.protocol.filters.sql import (
    ANSWER_BYTES,
    ANSWERS_BYTES_MAX,
    CHARACTERS_MAX,
    DEPTH_MAX,
    NESTING_MAX,
    TERMS_MAX,
    compile_filter,
)
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.properties import pack
from kerolox.protocol.record import encode_message
from tests.protocol.filters.golden import GOLDEN, ours

CASES = json.loads(GOLDEN.read_text(encoding="utf-8"))


def ask(expression: str, **properties: str) -> bool | None:
    return compile_filter(expression).evaluate(pack(properties))


def recorded(properties: bytes) -> bytes:
    return encode_message(StoredMessage("T", b"body", 0, 0, 0, properties))


def test_every_recorded_answer_is_rocketmqs() -> None:
    assert len(CASES) > 400
    for case in CASES:
        assert ours(case) == case["answers"], case


@pytest.mark.parametrize(
    ("expression", "answer"),
    [
        ("a > 5", True),
        ("a > 7 OR b = 'hz'", True),
        ("a BETWEEN 1 AND 6", False),
        ("missing > 5", None),
        ("missing > 5 OR TRUE", True),
        ("missing IS NULL AND b IN ('x', 'hz')", True),
        ("missing = 'x'", None),  # what is missing on the left makes it unknown,
        ("'x' = missing", False),  # on the right false
        ("missing = gone", True),  # and two that are missing are equal
        ("NOT b", True),  # a text is not true
        ("b NOT CONTAINS 'q'", True),
        ("missing NOT CONTAINS 'q'", False),
    ],
)
def test_three_answers(expression: str, answer: bool | None) -> None:
    assert ask(expression, a="7", b="hz") is answer


def test_what_cannot_be_compared_does_not_match() -> None:
    for expression, value in (
        ("a > 5", "seven"),
        ("a > 5", "7.0"),
        ("a > 5", "3000000000"),
        ("TRUE = a", "true"),
    ):
        compiled = compile_filter(expression)
        with pytest.raises(Unanswerable):
            compiled.evaluate(pack({"a": value}))
        assert not compiled.matches(pack({"a": value}))
    assert compile_filter("a > 5.0").matches(pack({"a": "3e9"}))


def test_a_filter_looks_only_at_whole_names_and_the_last_value() -> None:
    compiled = compile_filter("a = 'x'")
    assert compiled.names == {"a"}
    assert not compiled.matches(pack({"ba": "x", "aa": "x", "v": "a\x01x"}))
    assert compiled.matches(b"a\x01y\x02b\x01z\x02a\x01x")


def test_records_are_answered_as_their_properties_are() -> None:
    compiled = compile_filter("a > 5 AND b IS NOT NULL")
    both = [pack({"a": str(a), **more}) for a in (5, 6, 7, "x") for more in ({}, {"b": "y"}, {"c": "z"})]
    records = [recorded(packed) for packed in both]
    data = b"".join(records)
    for _ in "12":  # the second time it remembers
        at = 0
        for packed, record in zip(both, records, strict=True):
            assert compiled(data, at, len(record)) is compiled.matches(packed)
            at += len(record)
    many = compile_filter(
        " AND ".join(f"p{number} IS NULL" for number in range(20))
    )  # more than are compared
    assert many(data, 0, len(records[0]))
    with pytest.raises(ProtocolError):
        compiled(data, 0, 80)


def test_what_a_filter_remembers_is_bounded() -> None:
    compiled = compile_filter(f"a = 'x' OR a = '{7:0>100}'")
    for number in [*range(1100), 7, 8]:
        record = recorded(pack({"a": f"{number:0>100}"}))
        assert compiled(record, 0, len(record)) is (number == 7)
    taken = sum(len(values) + ANSWER_BYTES for values in compiled.answers)
    assert 0 < taken == compiled._answers_bytes <= ANSWERS_BYTES_MAX
    before = len(compiled.answers)
    record = recorded(pack({"a": "x" * 300}))
    assert not compiled(record, 0, len(record))
    assert len(compiled.answers) == before


@pytest.mark.parametrize(
    ("expression", "line", "column", "what"),
    [
        ("a >", 1, 4, "found the end"),
        ("a >\n  'x'", 2, 3, "only numbers"),
        ("a = 1\nAND b ! 2", 2, 7, "write <>"),
        ("a IN ('x' 'y')", 1, 11, ", or )"),
        ("a = NULL", 1, 5, "IS NULL"),
        ("a BETWEEN 5 AND 1", 1, 11, "must not be above"),
        ("a = 1 AND 'x'", 1, 11, "expected a condition"),
        ("a = 'its", 1, 5, "no end"),
        ("a = 9223372036854775808", 1, 5, "9223372036854775807"),
        ("a NOT 5", 1, 7, "BETWEEN, IN, CONTAINS"),
        ("-5 IN ('x')", 1, 1, "name of a property"),
    ],
)
def test_an_error_shows_the_place(expression: str, line: int, column: int, what: str) -> None:
    with pytest.raises(FilterError) as caught:
        compile_filter(expression)
    error = caught.value
    assert (error.line, error.column) == (line, column)
    assert what in error.what
    text = str(error)
    assert text.startswith(f"invalid condition at line {line}, column {column}: ")
    shown, caret = text.splitlines()[-2:]
    assert shown.strip() == expression.split("\n")[line - 1].strip()
    assert caret.index("^") - 2 == column - 1
    assert error.code == ResponseCode.SUBSCRIPTION_PARSE_FAILED


def test_words_behind_the_condition_are_ignored_and_told() -> None:
    assert compile_filter("a = 1").ignored_from == -1
    assert compile_filter("a = 1 LIKE 'x'").ignored_from == 6


def test_deep_ones_are_refused_and_long_ones_are_not() -> None:
    assert ask("(" * NESTING_MAX + "a = 1" + ")" * NESTING_MAX, a="1") is True
    with pytest.raises(FilterError, match="brackets"):
        compile_filter("(" * (NESTING_MAX + 1) + "a = 1" + ")" * (NESTING_MAX + 1))
    with pytest.raises(FilterError, match="deep"):
        compile_filter("NOT " * (DEPTH_MAX + 1) + "a")
    with pytest.raises(FilterError, match="deep"):
        compile_filter("a = 1" + " = TRUE" * DEPTH_MAX)
    assert ask(" OR ".join(f"a = {number}" for number in range(1000)), a="999") is True
    assert ask("- " * 3001 + "5 < a", a="1") is True
    listed = ",".join(f"'{number}'" for number in range(9000))
    assert ask(f"a IN ({listed})", a="8999") is True


def test_a_condition_has_so_many_terms_and_characters() -> None:
    with pytest.raises(FilterError, match=f"more than {TERMS_MAX} comparisons"):
        compile_filter(" OR ".join(["a = 1"] * TERMS_MAX))
    whole = "a = 1" + " " * (CHARACTERS_MAX - 5)
    assert ask(whole, a="1") is True
    with pytest.raises(FilterError, match=f"{CHARACTERS_MAX + 1} characters, .* at most {CHARACTERS_MAX}"):
        compile_filter(whole + " ")


@pytest.mark.parametrize("piece", ["-", "--", "- ", "-- -\t", "/**/", "--\n", "(", "NOT ", "a,", "\r", "+.5"])
def test_no_text_makes_the_lexer_look_again_at_what_it_has_seen(piece: str) -> None:
    """A million characters: what looks at the rest for each of them would take hours."""
    lexer = Lexer(piece * (1_000_000 // len(piece)))
    at = 0
    while at < len(lexer.expression):
        word = lexer.word(at)
        assert word.end > at
        at = word.end


@pytest.mark.parametrize("rest", ["-" * 60_000, "'" * 60_001, "/*" * 30_000, "1" * 60_000])
def test_errors_are_short_in_long_conditions(rest: str) -> None:
    with pytest.raises(FilterError) as raised:
        compile_filter("a > " + rest)
    assert len(str(raised.value)) < 500


@settings(max_examples=100, deadline=None)
@given(st.text(alphabet=st.sampled_from("ab'()=<>-+,.05lE /*\n NOTINISULRAD"), max_size=30))
def test_any_text_is_compiled_or_refused(text: str) -> None:
    try:
        compiled = compile_filter(text)
    except FilterError:
        return
    assert compiled.matches(pack({"a": "5"})) in (True, False)


@settings(max_examples=100, deadline=None)
@given(st.binary(max_size=40))
def test_any_bytes_can_be_asked(properties: bytes) -> None:
    for expression in ("a > 5", "a > 5.5", "a = 5000000000", "a = b", "a > b", "a CONTAINS 'x'", "a = TRUE"):
        compile_filter(expression).matches(properties)
        compile_filter(expression).matches(b"a\x01" + properties)
