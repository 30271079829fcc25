"""The tables that a query reads, found without Spark: names behind FROM and JOIN.

It is a look at words, not a parser: Spark has the last word when it analyses the query. What it is for is to
draw what flows where, to find cycles, and to name a slip before Spark has started.
"""

from __future__ import annotations

import re
from typing import Final

_TOKEN: Final = re.compile(
    r"""--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.)*"|`(?:[^`]|``)*`|[A-Za-z_][\w.]*|\S""",
    re.DOTALL,
)
# Words that end a list of tables, or cannot be the alias of one.
_CLAUSES: Final = frozenset(
    {
        "where", "group", "having", "order", "limit", "union", "except", "intersect", "minus", "on",
        "using", "join", "inner", "left", "right", "full", "cross", "semi", "anti", "natural", "lateral",
        "window", "select", "qualify", "cluster", "distribute", "sort", "offset", "pivot", "unpivot",
        "tablesample", "as", "with", "from",
    }
)  # fmt: skip


def tables_in(sql: str) -> list[str]:
    """Names of tables, each once, in order; without those that the query itself defines (WITH)."""
    words = [word for word in _TOKEN.findall(sql) if not word.startswith(("--", "/*", "'", '"'))]
    defined = _defined(words)
    found: list[str] = []
    for at, word in enumerate(words):
        if word.lower() in ("from", "join"):
            for name in _names(words, at + 1):
                if name.lower() not in defined and name not in found:
                    found.append(name)
    return found


def _names(words: list[str], at: int) -> list[str]:
    """The names of a list ``a, b AS x, c`` that begins there."""
    found: list[str] = []
    while at < len(words):
        if words[at].lower() == "lateral" or words[at] == "(":
            return found  # a query of its own: its FROM is seen by itself
        name = words[at].strip("`")
        if not re.match(r"[A-Za-z_]", name) or name.lower() in _CLAUSES:
            return found
        if words[at + 1 : at + 2] != ["("]:  # a function that gives a table is none
            found.append(name)
        at += 1
        if at < len(words) and words[at].lower() == "as":
            at += 1
        if at < len(words) and re.match(r"[A-Za-z_`]", words[at]) and words[at].lower() not in _CLAUSES:
            at += 1
        if at >= len(words) or words[at] != ",":
            return found
        at += 1
    return found


def _defined(words: list[str]) -> set[str]:
    """Names before ``AS (``, as WITH defines them."""
    if not any(word.lower() == "with" for word in words):
        return set()
    return {
        words[at - 1].strip("`").lower()
        for at, word in enumerate(words)
        if at and word.lower() == "as" and words[at + 1 : at + 2] == ["("]
    }
