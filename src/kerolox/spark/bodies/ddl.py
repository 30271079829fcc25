"""Schemas as Spark writes them, ``id BIGINT NOT NULL, items ARRAY<STRUCT<sku: STRING>>``, read without it.

Spark parses DDL in Java, which is not available where sources in Python are planned.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

import pyarrow as pa

LEAVES: Final = {
    "boolean": pa.bool_(),
    "tinyint": pa.int8(),
    "byte": pa.int8(),
    "smallint": pa.int16(),
    "short": pa.int16(),
    "int": pa.int32(),
    "integer": pa.int32(),
    "bigint": pa.int64(),
    "long": pa.int64(),
    "float": pa.float32(),
    "real": pa.float32(),
    "double": pa.float64(),
    "string": pa.string(),
    "binary": pa.binary(),
    "date": pa.date32(),
    "timestamp": pa.timestamp("us", tz="UTC"),
    "timestamp_ltz": pa.timestamp("us", tz="UTC"),
    "timestamp_ntz": pa.timestamp("us"),
}
_TOKEN: Final = re.compile(r"\s*(?:(`(?:[^`]|``)+`)|('(?:[^'\\]|\\.)*')|([A-Za-z_0-9]+)|([<>(),:]))")


@dataclass(frozen=True)
class Column:
    """A field as it was declared."""

    name: str
    kind: Kind
    nullable: bool = True


@dataclass(frozen=True)
class Kind:
    """A type as it was declared: one of the leaves, a struct, a list or a map."""

    leaf: pa.DataType | None = None
    fields: tuple[Column, ...] = ()
    element: Kind | None = None  # of a list, or the values of a map
    key: Kind | None = None


def parse_ddl(text: str) -> tuple[Column, ...]:
    """Parse the columns. Raises ValueError with the place of the error."""
    reader = _Reader(text)
    columns = reader.columns(end="")
    if not columns:
        raise ValueError("no columns")
    return columns


class _Reader:
    def __init__(self, text: str) -> None:
        self._tokens: list[str] = []
        at = 0
        text = text.strip()
        while at < len(text):
            found = _TOKEN.match(text, at)
            if found is None:
                raise ValueError(f"cannot read {text[at : at + 20]!r}")
            self._tokens.append(found[0].strip())
            at = found.end()
        self._at = 0

    def _peek(self) -> str:
        return self._tokens[self._at] if self._at < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        self._at += 1
        return token

    def _expect(self, token: str) -> None:
        found = self._next()
        if found != token:
            raise ValueError(f"{token!r} expected, found {found!r}")

    def columns(self, end: str) -> tuple[Column, ...]:
        columns: list[Column] = []
        while self._peek() != end:
            columns.append(self._column())
            if self._peek() == end:
                break
            self._expect(",")
        twice = [c.name for i, c in enumerate(columns) if c.name in {each.name for each in columns[:i]}]
        if twice:
            raise ValueError(f"{twice[0]} is declared twice")
        return tuple(columns)

    def _column(self) -> Column:
        word = self._next()
        name = word[1:-1].replace("``", "`") if word.startswith("`") else word
        if not name or (word == name and not re.fullmatch(r"\w+", name)):
            raise ValueError(f"a column name expected, found {word!r}")
        if self._peek() == ":":
            self._next()
        kind = self._kind()
        nullable = True
        if self._peek().lower() == "not":
            self._next()
            if self._next().lower() != "null":
                raise ValueError("NOT NULL expected")
            nullable = False
        if self._peek().lower() == "comment":
            self._next()
            self._next()
        return Column(name, kind, nullable)

    def _kind(self) -> Kind:
        word = self._next().lower()
        if word in LEAVES:
            return Kind(LEAVES[word])
        if word in ("varchar", "char"):
            self._numbers()
            return Kind(pa.string())
        if word in ("decimal", "dec", "numeric"):
            numbers = self._numbers() if self._peek() == "(" else [10, 0]
            precision, scale = (*numbers, 0)[:2]
            if not 1 <= precision <= 38 or not 0 <= scale <= precision:
                raise ValueError(
                    f"decimal({precision},{scale}): at most 38 digits, and the scale at most the precision"
                )
            return Kind(pa.decimal128(precision, scale))
        if word == "array":
            self._expect("<")
            element = self._kind()
            self._expect(">")
            return Kind(element=element)
        if word == "map":
            self._expect("<")
            key = self._kind()
            self._expect(",")
            value = self._kind()
            self._expect(">")
            return Kind(element=value, key=key)
        if word == "struct":
            self._expect("<")
            fields = self.columns(end=">")
            self._expect(">")
            if not fields:
                raise ValueError("a struct without fields")
            return Kind(fields=fields)
        raise ValueError(f"{word!r} is no type: {', '.join(LEAVES)}, decimal(p,s), array<>, map<,>, struct<>")

    def _numbers(self) -> list[int]:
        self._expect("(")
        numbers = [int(self._next())]
        while self._peek() == ",":
            self._next()
            numbers.append(int(self._next()))
        self._expect(")")
        return numbers
