"""SQL92 conditions on a message's properties: parsed once, asked often.

    or      := and { OR and }
    and     := equal { AND equal }
    equal   := compare { '=' compare | '<>' compare | IS [NOT] NULL }
    compare := sign { ('>' | '>=' | '<' | '<=') sign | [NOT] BETWEEN sign AND sign
             | [NOT] IN '(' text { ',' text } ')' | [NOT] (CONTAINS | STARTSWITH | ENDSWITH) text }
    sign    := { '+' | '-' | NOT } ( text | number | TRUE | FALSE | NULL | name | '(' or ')' )

What is accepted, and what it answers, is RocketMQ's to the letter, with its oddities: see the tests. One
of them is that words behind a finished condition are ignored; ``SqlFilter.ignored_from`` tells where.
"""

from __future__ import annotations

from sys import getsizeof
from typing import Final, NoReturn

from kerolox.protocol.filters import operands
from kerolox.protocol.filters.lexer import DECIMAL, END, NAME, TEXT, WHOLE, FilterError, Lexer, Token
from kerolox.protocol.filters.numbers import Long, Unanswerable
from kerolox.protocol.filters.operands import (
    Answered,
    Condition,
    Constant,
    Nothing,
    Operand,
    Property,
    Truth,
)
from kerolox.protocol.limits import INT32_MAX, INT64_MAX
from kerolox.protocol.record import properties_of, property_values

# RocketMQ has none of these limits: its parser takes what fits into a frame and its thread's stack.
CHARACTERS_MAX: Final = 65_536
TERMS_MAX: Final = 1024  # comparisons and what joins them: each is asked for each message
NESTING_MAX: Final = 100  # brackets within brackets
DEPTH_MAX: Final = 200  # conditions within conditions
REMEMBERED_BYTES_MAX: Final = 128  # of the values one answer is for
ANSWERS_BYTES_MAX: Final = 64 << 10  # all answers that one condition remembers
ANSWER_BYTES: Final = 150  # of one answer, beside its values: objects and their place in the table
WORD_BYTES: Final = 160  # of one word of a condition, compiled: objects, closures and their cells

_SIGNS = (">", ">=", "<", "<=")
_SEARCHES = ("CONTAINS", "STARTSWITH", "ENDSWITH")


class SqlFilter:
    """A compiled condition. ``names`` are the properties it looks at, and all that its answer depends on."""

    __slots__ = (
        "_answers_bytes",
        "_ask",
        "answers",
        "expression",
        "ignored_from",
        "keys",
        "names",
        "size_bytes",
        "terms",
    )

    def __init__(
        self,
        expression: str,
        ask: Condition,
        names: frozenset[str],
        ignored_from: int,
        terms: int,
        words: int,
    ) -> None:
        self.expression = expression
        self.names = names
        self.ignored_from = ignored_from  # where words begin that are not part of the condition; -1: nowhere
        self.terms = terms  # how many questions one answer may take
        self._ask = ask
        self.keys = tuple(name.encode() for name in sorted(names))
        self.answers: dict[bytes, bool] = {}  # by the values of these
        self._answers_bytes = 0
        # Approximate size in memory, with the largest cache of answers.
        self.size_bytes = getsizeof(expression) + words * WORD_BYTES + ANSWERS_BYTES_MAX

    def __repr__(self) -> str:
        return f"SqlFilter({self.expression!r})"

    def evaluate(self, properties: bytes) -> Truth:
        """True, False or None (unknown) for packed properties. Raises :class:`Unanswerable`."""
        return self._ask(properties)

    def matches(self, properties: bytes) -> bool:
        """Return whether a message with these packed properties matches."""
        try:
            return self._ask(properties) is True
        except Unanswerable:
            return False

    def __call__(self, data: bytes, at: int, size: int) -> bool:
        """Return whether the record at a position matches. Property values repeat, so answers are cached."""
        values = property_values(data, at, size, self.keys)
        if values is None:
            return self.matches(properties_of(data[at : at + size]))
        answer = self.answers.get(values)
        if answer is None:
            answer = self.matches(properties_of(data[at : at + size]))
            if len(values) <= REMEMBERED_BYTES_MAX:
                self._answers_bytes += len(values) + ANSWER_BYTES
                if self._answers_bytes > ANSWERS_BYTES_MAX:
                    self.answers.clear()
                    self._answers_bytes = len(values) + ANSWER_BYTES
                self.answers[values] = answer
        return answer


def compile_filter(expression: str) -> SqlFilter:
    """Raises :class:`FilterError` when the condition cannot be used."""
    if len(expression) > CHARACTERS_MAX:
        raise FilterError(
            expression, 0, f"{len(expression)} characters, a condition has at most {CHARACTERS_MAX}"
        )
    parser = _Parser(expression)
    at = parser.word.at
    found = parser.condition(parser.either(), at)
    ignored_from = -1 if parser.word.kind == END else parser.word.at
    return SqlFilter(expression, found.ask, frozenset(parser.names), ignored_from, parser.terms, parser.words)


class _Parser:
    def __init__(self, expression: str) -> None:
        self.expression = expression
        self.names: set[str] = set()
        self.lexer = Lexer(expression)
        self.word = self.lexer.word(0)
        self.nesting = 0
        self.terms = 1
        self.words = 1

    # --- words -------------------------------------------------------------------------------------------

    def take(self) -> Token:
        word = self.word
        self.word = self.lexer.word(word.end)
        self.words += 1
        return word

    def expect(self, kind: str, what: str) -> Token:
        if self.word.kind != kind:
            self.fail_here(what)
        return self.take()

    def fail_here(self, expected: str) -> NoReturn:
        word = self.word
        found = (
            "the end" if word.kind == END else word.text if len(word.text) < 40 else word.text[:40] + "..."
        )
        raise FilterError(self.expression, word.at, f"expected {expected}, found {found}")

    def fail(self, at: int, what: str) -> NoReturn:
        raise FilterError(self.expression, at, what)

    # --- grammar, loosest first --------------------------------------------------------------------------

    def either(self) -> Operand:
        at = self.word.at
        left = self.all_of()
        if self.word.kind != "OR":
            return left
        parts = [self.condition(left, at)]
        while self.word.kind == "OR":
            self.take()
            at = self.word.at
            parts.append(self.condition(self.all_of(), at))
        return self.answered(operands.some(part.ask for part in parts), *parts)

    def all_of(self) -> Operand:
        at = self.word.at
        left = self.equality()
        if self.word.kind != "AND":
            return left
        parts = [self.condition(left, at)]
        while self.word.kind == "AND":
            self.take()
            at = self.word.at
            parts.append(self.condition(self.equality(), at))
        return self.answered(operands.every(part.ask for part in parts), *parts)

    def equality(self) -> Operand:
        at = self.word.at
        left = self.comparison()
        while True:
            kind = self.word.kind
            if kind in ("=", "<>"):
                sign_at = self.take().at
                right_at = self.word.at
                right = self.comparison()
                self.check_equal(left, right, at, sign_at, right_at)
                ask = operands.equal(left, right)
                left = self.answered(ask if kind == "=" else operands.negated(ask), left, right)
            elif kind == "IS":
                self.take()
                wanted = self.word.kind != "NOT"
                if not wanted:
                    self.take()
                self.expect("NULL", "NULL" if not wanted else "NULL or NOT NULL")
                ask = operands.equal(left, Constant(None))
                left = self.answered(ask if wanted else operands.negated(ask), left)
            else:
                return left

    def comparison(self) -> Operand:
        at = self.word.at
        left = self.signed()
        while True:
            kind = self.word.kind
            if kind in _SIGNS:
                self.take()
                right_at = self.word.at
                right = self.signed()
                left = self.compared(kind, left, at, right, right_at)
                continue
            wanted = kind != "NOT"
            if not wanted:
                self.take()
                kind = self.word.kind
                if kind not in (*_SEARCHES, "BETWEEN", "IN"):
                    self.fail_here("BETWEEN, IN, CONTAINS, STARTSWITH or ENDSWITH after NOT")
            if kind in _SEARCHES:
                self.take()
                text = self.text(f"after {kind}")
                left = self.answered(operands.searched(kind, left, text, wanted=wanted), left)
            elif kind == "BETWEEN":
                left = self.between(left, at, wanted)
            elif kind == "IN":
                left = self.among(left, at, wanted)
            else:
                return left

    def between(self, value: Operand, at: int, wanted: bool) -> Operand:
        self.take()
        low_at = self.word.at
        low = self.signed()
        self.expect("AND", "AND between the two bounds")
        high_at = self.word.at
        high = self.signed()
        if not wanted:
            parts = (
                self.compared("<", value, at, low, low_at),
                self.compared(">", value, at, high, high_at),
            )
            return self.answered(operands.some(part.ask for part in parts), *parts)
        parts = (
            self.compared(">=", value, at, low, low_at),
            self.compared("<=", value, at, high, high_at),
        )
        if isinstance(low, Constant) and isinstance(high, Constant) and low.literal and high.literal:
            assert low.value is not None
            assert high.value is not None
            if operands.order(high.value, low.value) < 0:
                self.fail(low_at, f"the lower bound {low.value} must not be above the upper, {high.value}")
        return self.answered(operands.every(part.ask for part in parts), *parts)

    def among(self, value: Operand, at: int, wanted: bool) -> Operand:
        self.take()
        if not isinstance(value, Property):
            self.fail(at, "expected the name of a property before IN")
        self.expect("(", "( after IN")
        texts = [self.text("in the list after IN")]
        while self.word.kind == ",":
            self.take()
            texts.append(self.text("in the list after IN"))
        self.expect(")", ", or ) in the list after IN")
        return self.answered(operands.among(value, texts, wanted=wanted))

    def signed(self) -> Operand:
        signs: list[Token] = []
        while self.word.kind in ("+", "-", "NOT"):
            signs.append(self.take())
        found_at = self.word.at
        found = self.primary()
        for sign in reversed(signs):
            if sign.kind == "-":
                found = _minus(found)
            elif sign.kind == "NOT":
                inner = self.condition(found, found_at)
                found = self.answered(operands.negated(inner.ask), inner)
        return found

    def primary(self) -> Operand:
        word = self.word
        kind = word.kind
        if kind == NAME:
            self.names.add(word.text)
            self.take()
            return Property(word.text)
        if kind == TEXT:
            return Constant(self.text(""))
        if kind == WHOLE:
            self.take()
            number = int(word.text[:4000].rstrip("lL"))
            if number > INT64_MAX or len(word.text) > 4000:
                self.fail(word.at, f"{word.text[:40]} is above the largest whole number, {INT64_MAX}")
            return Constant(number if number <= INT32_MAX else Long(number))
        if kind == DECIMAL:
            self.take()
            decimal = float(word.text)
            if decimal == float("inf"):
                self.fail(word.at, f"{word.text[:40]} is above the largest number, 1.7976931348623157E308")
            if decimal == 0:
                self.fail(word.at, f"{word.text[:40]} is below the smallest number, 4.9E-324: write 0")
            return Constant(decimal)
        if kind in ("TRUE", "FALSE", "NULL"):
            self.take()
            return Constant({"TRUE": True, "FALSE": False, "NULL": None}[kind])
        if kind == "(":
            self.take()
            self.nesting += 1
            if self.nesting > NESTING_MAX:
                self.fail(word.at, f"more than {NESTING_MAX} brackets lie within each other")
            found = self.either()
            self.expect(")", "an operator or )")
            self.nesting -= 1
            return found
        return self.fail_here("a property, a number, a text, TRUE, FALSE, NULL or (")

    def text(self, where: str) -> str:
        return self.expect(TEXT, f"a text {where}").text[1:-1].replace("''", "'")

    # --- what may stand where ----------------------------------------------------------------------------

    def condition(self, operand: Operand, at: int) -> Answered:
        if isinstance(operand, Answered):
            return operand
        if isinstance(operand, Property):
            return Answered(operands.present_is_false(operand))
        if isinstance(operand, Constant) and (operand.value is None or isinstance(operand.value, bool)):
            return Answered(operands.always(operand.value))
        return self.fail(at, "expected a condition, found a value: compare it with something")

    def answered(self, ask: Condition, *parts: Operand) -> Answered:
        depth = 1 + max((part.depth for part in parts if isinstance(part, Answered | Nothing)), default=0)
        if depth > DEPTH_MAX:
            self.fail(self.word.at, f"conditions lie more than {DEPTH_MAX} deep within each other")
        self.terms += 1
        if self.terms > TERMS_MAX:
            self.fail(self.word.at, f"more than {TERMS_MAX} comparisons, AND, OR and NOT in one condition")
        return Answered(ask, depth)

    def check_equal(self, left: Operand, right: Operand, at: int, sign_at: int, right_at: int) -> None:
        for operand, place in ((left, at), (right, right_at)):
            if isinstance(operand, Constant) and operand.literal and operand.value is None:
                self.fail(place, "NULL cannot be compared: write IS NULL or IS NOT NULL")
        if (
            isinstance(left, Constant)
            and isinstance(left.value, bool)
            and isinstance(right, Constant)
            and right.literal
            and not isinstance(right.value, bool)
        ):
            self.fail(sign_at, "TRUE and FALSE can be compared with each other only")

    def compared(self, sign: str, left: Operand, at: int, right: Operand, right_at: int) -> Answered:
        for operand, place in ((left, at), (right, right_at)):
            if isinstance(operand, Answered):
                self.fail(place, f"a condition cannot be compared by {sign}")
            if isinstance(operand, Constant) and operand.literal and not operand.is_number:
                self.fail(place, f"only numbers and properties can be compared by {sign}")
        return self.answered(operands.compared(sign, left, right), left, right)


def _minus(operand: Operand) -> Operand:
    """A number below zero; of anything else, null."""
    if isinstance(operand, Constant) and operand.is_number:
        value = operand.value
        assert isinstance(value, int | float)
        return Constant(Long(-value) if isinstance(value, Long) else -value, literal=False)
    if isinstance(operand, Answered | Nothing):
        return Nothing(operand.ask, operand.depth + 1)
    return Nothing(operands.always(None))
