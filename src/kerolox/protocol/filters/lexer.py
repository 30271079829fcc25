"""The words of a condition, one at a time.

Never further than the parser looks: the original does not mind what stands behind a finished condition,
as long as the next word is one.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from kerolox.errors import InvalidRequest
from kerolox.protocol.codes import ResponseCode

END: Final = "end"
NAME: Final = "name"
TEXT: Final = "text"
WHOLE: Final = "whole"
DECIMAL: Final = "decimal"

KEYWORDS: Final = frozenset({
    "NOT", "AND", "OR", "BETWEEN", "IN", "TRUE", "FALSE", "NULL", "IS", "CONTAINS", "STARTSWITH", "ENDSWITH",
})  # fmt: skip

# A line comment must end with its line: without that, "--" is two signs. No letter class may be asked to
# ignore case here: that would let in letters from outside of ASCII.
_BLANK = re.compile(r"(?:[ \t\n\r\f]|--[^\n\r]*(?:\r\n|\n|\r)|/\*(?:[^*]|\*(?!/))*\*/)+")
_WORD = re.compile(
    r"""
      (?P<decimal> [0-9]+\.[0-9]*(?:[eE][+-]?[0-9]+)? | \.[0-9]+(?:[eE][+-]?[0-9]+)? | [0-9]+[eE][+-]?[0-9]+ )
    | (?P<whole> 0 | [1-9][0-9]*[lL]? )
    | (?P<text> '(?:''|[^'])*' )
    | (?P<name> [a-zA-Z_$][a-zA-Z0-9_$]* )
    | (?P<sign> <> | >= | <= | [=<>(),+-] )
    """,
    re.VERBOSE,
)
_LINE_SHOWN_MAX: Final = 160


class FilterError(InvalidRequest):
    """A condition that cannot be used: where, and what was expected there."""

    code = ResponseCode.SUBSCRIPTION_PARSE_FAILED

    def __init__(self, expression: str, at: int, what: str) -> None:
        self.expression = expression
        self.at = at
        before = expression[:at]
        self.line = before.count("\n") + 1
        line_start = before.rfind("\n") + 1
        self.column = at - line_start + 1
        self.what = what
        line = expression[line_start:].partition("\n")[0]
        first = max(0, self.column - 1 - _LINE_SHOWN_MAX // 2)
        shown = line[first : first + _LINE_SHOWN_MAX].replace("\t", " ").rstrip("\r")
        # A client shows all of it to whoever subscribed.
        super().__init__(
            f"invalid condition at line {self.line}, column {self.column}: {what}\n"
            f"  {shown}\n  {' ' * (self.column - 1 - first)}^"
        )


class Word(NamedTuple):
    """``kind`` is one of the constants above, a keyword in capitals, or a sign."""

    kind: str
    text: str
    at: int
    end: int


def next_word(expression: str, at: int) -> Word:
    """The first word from ``at`` on, behind blanks and comments."""
    blank = _BLANK.match(expression, at)
    if blank is not None:
        at = blank.end()
    if at >= len(expression):
        return Word(END, "", at, at)
    found = _WORD.match(expression, at)
    if found is None:
        raise FilterError(expression, at, _why_no_word(expression, at))
    kind = found.lastgroup or ""
    text = found.group()
    if kind == "sign":
        kind = text
    elif kind == NAME and text.upper() in KEYWORDS:
        kind = text.upper()
    return Word(kind, text, at, found.end())


def _why_no_word(expression: str, at: int) -> str:
    character = expression[at]
    if character == "'":
        return "this text has no end: expected another '"
    if expression.startswith("/*", at):
        return "this comment has no end: expected */"
    if character == '"':
        return "unexpected \": texts stand between '"
    if character == "!":
        return "unexpected !: write <> for not equal"
    return f"unexpected character {character!r}"
