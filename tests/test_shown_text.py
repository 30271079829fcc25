from __future__ import annotations

import pytest

from kerolox.shown_text import shortened, visible


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain, with äöü and 日本語　x", "plain, with äöü and 日本語　x"),
        ("\x1b[2J\x1b]0;owned\x07", "\\x1b[2J\\x1b]0;owned\\x07"),
        ("\x9b31m", "\\x9b31m"),
        ("a\nb\tc\r", "a\\nb\\tc\\r"),
        ("user‮gpj.exe", "user\\u202egpj.exe"),
        ("half \ud83d", "half \\ud83d"),
        ("😀 👩‍👩‍👧", "😀 👩‍👩‍👧"),
    ],
)
def test_what_steers_a_terminal_is_escaped(text: str, shown: str) -> None:
    assert visible(text) == shown
    assert visible(visible(text)) == shown


def test_line_breaks_are_kept_where_lines_are_wanted() -> None:
    assert visible("a\nb\x1b[m\r\n", lines=True) == "a\nb\\x1b[m\\r\n"


def test_a_long_text_keeps_its_beginning_and_its_end() -> None:
    assert shortened("x" * 100, 100) == "x" * 100
    text = "topic " + "t" * 900_000 + " is unknown: create it"
    short = shortened(text, 300)
    assert short.startswith("topic tt")
    assert short.endswith("is unknown: create it")
    assert f"({len(text) - 300} characters)" in short
    assert len(short) < 340
