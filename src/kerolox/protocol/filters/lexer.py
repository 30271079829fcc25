"""The words of a condition, one at a time.

It reads no further than the parser asks: RocketMQ ignores what stands behind a finished condition, as long
as the next word is a word.
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

_SPACES = re.compile(r"[ \t\n\r\f]+")
_LINE_END = re.compile(r"\r\n|\n|\r")
# No letter class may be asked to ignore case here: that would let in letters from outside of ASCII.
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


class Token(NamedTuple):
    """``kind`` is one of the constants above, a keyword in capitals, or a sign."""

    kind: str
    text: str
    at: int
    end: int


class Lexer:
    """Gives the words of one condition. However it is written, that costs a few looks at each character."""

    __slots__ = ("_last_line_end", "expression")

    def __init__(self, expression: str) -> None:
        self.expression = expression
        # A line comment must end with its line: without that, "--" is two signs. Where the last line ends is
        # found once, because a search from every pair of dashes would make a row of dashes cost its square.
        self._last_line_end = max(expression.rfind("\n"), expression.rfind("\r"))

    def word(self, at: int) -> Token:
        """The first word from ``at`` on, behind blanks and comments."""
        expression = self.expression
        at = self._behind_blanks(at)
        if at >= len(expression):
            return Token(END, "", at, at)
        found = _WORD.match(expression, at)
        if found is None:
            raise FilterError(expression, at, _why_no_word(expression, at))
        kind = found.lastgroup or ""
        text = found.group()
        if kind == "sign":
            kind = text
        elif kind == NAME and text.upper() in KEYWORDS:
            kind = text.upper()
        return Token(kind, text, at, found.end())

    def _behind_blanks(self, at: int) -> int:
        expression = self.expression
        while True:
            spaces = _SPACES.match(expression, at)
            if spaces is not None:
                at = spaces.end()
            if at < self._last_line_end and expression.startswith("--", at):
                line_end = _LINE_END.search(expression, at)
                assert line_end is not None  # the last one at the latest
                at = line_end.end()
            elif expression.startswith("/*", at):
                end = expression.find("*/", at + 2)
                if end < 0:
                    return at  # no word either: it is refused there
                at = end + 2
            else:
                return at


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
