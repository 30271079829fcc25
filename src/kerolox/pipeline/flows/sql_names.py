"""Tables that a query reads, found without Spark: the names after FROM and JOIN.

This scans tokens and is not a parser: Spark analyses the query later. It serves to draw the graph, to find
cycles, and to report misspelled names before Spark has started.
"""

from __future__ import annotations

import re
from typing import Final

_TOKEN: Final = re.compile(
    r"""--[^\n]*|/\*.*?\*/|'(?:[^'\\]|\\.|'')*'|"(?:[^"\\]|\\.)*"|`(?:[^`]|``)*`|[A-Za-z_][\w.]*|\S""",
    re.DOTALL,
)
# Keywords that end a list of tables, or cannot be a table alias.
_CLAUSES: Final = frozenset(
    {
        "where", "group", "having", "order", "limit", "union", "except", "intersect", "minus", "on",
        "using", "join", "inner", "left", "right", "full", "cross", "semi", "anti", "natural", "lateral",
        "window", "select", "qualify", "cluster", "distribute", "sort", "offset", "pivot", "unpivot",
        "tablesample", "as", "with", "from",
    }
)  # fmt: skip


def tables_in(sql: str) -> list[str]:
    """Return the table names in order, each once, without those that the query defines (WITH)."""
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
    """Return the names of the list ``a, b AS x, c`` that begins at ``at``."""
    found: list[str] = []
    while at < len(words):
        if words[at].lower() == "lateral" or words[at] == "(":
            return found  # a subquery: its FROM is found separately
        name = words[at].strip("`")
        if not re.match(r"[A-Za-z_]", name) or name.lower() in _CLAUSES:
            return found
        if words[at + 1 : at + 2] != ["("]:  # skip table functions
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
    """Return the names before ``AS (``, which WITH defines."""
    if not any(word.lower() == "with" for word in words):
        return set()
    return {
        words[at - 1].strip("`").lower()
        for at, word in enumerate(words)
        if at and word.lower() == "as" and words[at + 1 : at + 2] == ["("]
    }
