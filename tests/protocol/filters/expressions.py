"""Conditions by the hundred, and messages to ask them about: always the same for the same seed.

Most are sound. Some are broken on purpose, and some use what is odd in RocketMQ: numbers that do not
fit, texts that are nearly numbers, values missing on either side, words behind the end.
"""

from __future__ import annotations

import random

NAMES = ("a", "b", "num", "text", "flag", "TAGS", "_x", "$y", "a1", "Missing")
NUMBERS = (
    "0", "1", "5", "10", "007", "5l", "0L", "12L", "2147483647", "2147483648", "9223372036854775807",
    "9223372036854775808", "1.5", "5.", ".5", "5E2", "1e-3", "0.0", "1E400", "4.9E-324", "1e-400", "3.0",
    "100", "99.99", "16777217", "9007199254740993", "1.7976931348623157E308",
)  # fmt: skip
TEXTS = (
    "'x'", "'abc'", "''", "'it''s'", "'5'", "'1.5'", "'true'", "'TagA'", "'äöü'", "'b'", "'  5'",
    "'中'", "'c'",
)  # fmt: skip
VALUES = (
    "0", "1", "5", "7", "10", "-5", "+5", "100", "2147483647", "2147483648", "-2147483648", "-2147483649",
    "9223372036854775807", "9223372036854775808", "1.5", "5.0", " 5", "5 ", "5d", "5.0f", "5l", "1e3", "NaN",
    "-NaN", "Infinity", "-Infinity", "0x1p3", "0x.8p1", "0x1p99999", "-0.0", "0.0", "1_000", "abc", "x",
    "TagA", "true", "TRUE", "false", "it's", "b", "äöü", "中", "abcabc", "٣", "５", "007", "+", "-", ".",
    "1.", ".5", "1e", "inf", "nan", "1e400", "16777217", "9007199254740993", "00000000000000000000000000005",
    "cab", "1e-400", "99.99", "\t5", "0x10", "1.5e3D",
)  # fmt: skip
SIGNS = (">", ">=", "<", "<=")
SEARCHES = ("CONTAINS", "STARTSWITH", "ENDSWITH")
BLANKS = (" ", " ", " ", " ", "\n", "\t", "  ", " /* c */ ", " -- c\n", "\r\n", " /**/ ", " --a\r")
BROKEN = (
    "", " ", "a >", "> 5", "a = = 5", "a ! 5", "a == 5", "a != 5", '"a" = 5', "a IN ()", "a IN (5)",
    "a IN 'x'", "a IS", "a IS 5", "a IS NOT", "a NOT 5", "a NOT LIKE 'x'", "a LIKE 'x'", "(a > 5", "a > 5)",
    "a > 5 b", "a > 5 #", "a > 5 b #", "a > 5 --", "a > 5 -- x", "a > 5 /* x", "a > 5 /* x */", "--x\na > 5",
    "a > 'x'", "a > TRUE", "a > NULL", "a = NULL", "NULL = a", "NULL <> NULL", "a BETWEEN 5 AND 1",
    "a BETWEEN 5 AND 5",
    "a BETWEEN -1 AND -5", "a NOT BETWEEN 5 AND 1", "a BETWEEN 'x' AND 'y'", "a BETWEEN NULL AND 5",
    "a BETWEEN 1", "a BETWEEN 1 OR 5", "5", "'x'", "TRUE", "FALSE", "NULL", "a", "NOT a", "NOT 5", "NOT NULL",
    "-a", "-5", "--5", "- -5 = a", "-a = a", "-a IS NULL", "-TRUE IS NULL", "-(a = 5)", "-(a = 5) > 5",
    "-(TRUE = a) > 5", "-(TRUE = a) IS NULL", "5 > -(TRUE = a)", "a > -(TRUE = a)", "TRUE = 5", "5 = TRUE",
    "TRUE = 'true'", "'true' = TRUE", "'x' = TRUE", "TRUE = TRUE", "TRUE <> FALSE", "TRUE = a", "a = TRUE",
    "a = b", "a <> b", "a > b", "a >= a", "5 = 5", "5 = 5.0", "5 = '5'", "'5' = 5", "'x' = 5", "5 = 'x'",
    "5 > 3 > 1", "a = 5 = TRUE", "a = 5 = b", "TRUE = a = 5", "(a = 5) = (b = 5)", "(a = 5) = 'true'",
    "'true' = (a = 5)", "a > 5 = b > 5", "(a > 5) > 5", "5 IS NULL", "NULL IS NULL", "NULL IS NOT NULL",
    "(a = 5) IS NULL", "(a > 5) IS NOT NULL", "5 CONTAINS '5'", "'abc' CONTAINS 'b'", "a CONTAINS b",
    "a CONTAINS 5", "a CONTAINS ''", "a NOT CONTAINS ''", "(a = 5) CONTAINS 'x'", "(TRUE = a) CONTAINS 'x'",
    "-a CONTAINS 'x'", "-a IN ('x')", "(a) IN ('5')", "'a' IN ('a')", "a IN ('5','x','b','c','d','e')",
    "a NOT IN ('5')", "a AND b", "a OR b = 5", "NOT a OR NOT b", "a AND 5", "5 OR a", "a = 'x' OR TRUE = a",
    "TRUE OR TRUE = a", "FALSE AND TRUE = a", "NULL AND TRUE = a", "NULL OR FALSE", "NULL AND FALSE",
    "NOT NOT NOT a", "+a = 5", "+5 = a", "+ + 5 = a", "+'x' = a", "+", "a = +", "a = 5 AND", "OR a = 5",
    "and", "a And b = 5 oR tRUE", "is IS NULL", "NoT(a=5)", "a=5", "a>5and b<3", "a<>5or b=3", "5=a", "a=-5",
    "a = '", "a = '''", "a = ''''", "a = 'x''", "a = 'x' 'y'", "a.b = 5", "a-b = 5", "a:b", "ä = 5", "a = 5;",
    "_x IS NOT NULL", "$y IS NULL", "a$1 IS NULL", "1a = 5", "a = 5e", "a = 5e+", "a = 5.5.5", "a = .5.5",
    "a = 0l", "a = 00", "a = 00.5", "a = 1L5", "a = 5ll", "\u212a = 5", "\ufeffa = 5", "a\u00a0= 5",
    "a = 5 IS NULL", "a IS NULL IS NULL", "a IS NULL = TRUE", "a IS NOT NULL = b IS NULL", "/**/a = 5",
    "/* * / */ a = 5", "/***/ a = 5", "/* ** */ a = 5 /* */", "a /*x*/ = /*y*/ 5 --z\n", "a = 5 -",
    "((((((((((a = 5))))))))))", "a BETWEEN (1) AND (5)", "a BETWEEN 1 AND 5 AND b = 5",
    "a BETWEEN 1 AND 5 BETWEEN 1 AND 5", "5 BETWEEN 1 AND a", "a BETWEEN b AND 10", "a BETWEEN 1.5 AND 1",
    "a BETWEEN 1 AND 1.5", "a BETWEEN 2147483648 AND 1", "a NOT BETWEEN b AND 5", "'x' BETWEEN 1 AND 2",
)  # fmt: skip


class Grammar:
    """Makes conditions and messages from a seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)

    def properties(self) -> dict[str, str]:
        chosen = self._random
        return {name: chosen.choice(VALUES) for name in NAMES[:-1] if chosen.random() < 0.7}

    def expression(self, depth: int = 3) -> str:
        chosen = self._random
        text = self._either(depth)
        if chosen.random() < 0.03:
            at = chosen.randrange(len(text) + 1)
            text = text[:at] + chosen.choice("'()=<>-+,.#\"5a ") + text[at + chosen.randrange(2) :]
        return text

    def _blank(self) -> str:
        return self._random.choice(BLANKS)

    def _word(self, word: str) -> str:
        return "".join(self._random.choice((letter.lower(), letter)) for letter in word)

    def _either(self, depth: int) -> str:
        return self._joined(self._all_of, depth, "OR")

    def _all_of(self, depth: int) -> str:
        return self._joined(self._equality, depth, "AND")

    def _joined(self, part: object, depth: int, word: str) -> str:
        assert callable(part)
        count = self._random.choice((1, 1, 1, 2, 2, 3))
        join = f"{self._blank()}{self._word(word)}{self._blank()}"
        return join.join(part(depth) for _ in range(count))

    def _equality(self, depth: int) -> str:
        chosen = self._random
        kind = chosen.random()
        left = self._comparison(depth)
        if kind < 0.3:
            sign = chosen.choice(("=", "=", "<>"))
            return f"{self._operand(depth)}{self._blank()}{sign}{self._blank()}{self._operand(depth)}"
        if kind < 0.4:
            return f"{self._operand(depth)} {self._word(chosen.choice(('IS NULL', 'IS NOT NULL')))}"
        if kind < 0.43:
            return f"({left}) = {self._operand(depth)}"
        return left

    def _comparison(self, depth: int) -> str:
        chosen = self._random
        kind = chosen.random()
        name = chosen.choice(NAMES)
        no = self._word("NOT ") if chosen.random() < 0.4 else ""
        if kind < 0.45:
            left, right = name, self._number() if chosen.random() < 0.75 else self._operand(depth)
            if chosen.random() < 0.25:
                left, right = right, left
            return f"{left}{self._blank()}{chosen.choice(SIGNS)}{self._blank()}{right}"
        if kind < 0.6:
            low, high = self._number(), self._number()
            return f"{name} {no}{self._word('BETWEEN')} {low} {self._word('AND')} {high}"
        if kind < 0.72:
            texts = ",".join(chosen.choice(TEXTS) for _ in range(chosen.randint(1, 6)))
            return f"{name} {no}{self._word('IN')} ({texts})"
        if kind < 0.87:
            return f"{name} {no}{self._word(chosen.choice(SEARCHES))} {chosen.choice(TEXTS)}"
        if depth and kind < 0.97:
            return f"{self._word('NOT ') if chosen.random() < 0.5 else ''}({self._either(depth - 1)})"
        return chosen.choice((name, "TRUE", "false", "NULL", f"NOT {name}"))

    def _number(self) -> str:
        chosen = self._random
        return chosen.choice(("", "", "", "-", "- ", "+", "- -")) + chosen.choice(NUMBERS)

    def _operand(self, depth: int) -> str:
        chosen = self._random
        kind = chosen.random()
        if kind < 0.45:
            return chosen.choice(NAMES)
        if kind < 0.65:
            return self._number()
        if kind < 0.85:
            return chosen.choice(TEXTS)
        if kind < 0.93:
            return chosen.choice(("TRUE", "FALSE", "NULL", "-a", "-'x'", "+b"))
        return f"({self._either(depth - 1)})" if depth else chosen.choice(NAMES)


def cases(seed: int, count: int, messages: int) -> list[dict[str, object]]:
    """The broken ones and ``count`` generated ones, each with messages."""
    grammar = Grammar(seed)
    made = [*BROKEN, *(grammar.expression() for _ in range(count))]
    return [
        {"expression": text, "properties": [grammar.properties() for _ in range(messages)]} for text in made
    ]
