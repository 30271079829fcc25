"""Bodies of plain text, decoded into one column."""

from __future__ import annotations

import codecs
from collections.abc import Sequence
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa

from kerolox.spark.bodies.format import NO_BODY, BodyFormat, Decoded, Reasons, SchemaError
from kerolox.spark.bodies.shapes import Field, Shape, reason, shown, struct

CHARSET: Final = "utf-8"
COLUMN: Final = "text"


class TextBodies(BodyFormat):
    """Text bodies, declared by a charset and optionally a column name: ``utf-8``, ``latin-1 line``."""

    def __init__(self, text: str = CHARSET) -> None:
        charset, *names = text.split() or [CHARSET]
        if len(names) > 1:
            raise SchemaError(f"bodySchema {text!r}: expected a charset and the name of a column: utf-8 line")
        try:
            self.charset = codecs.lookup(charset).name
        except LookupError:
            raise SchemaError(
                f"bodySchema {text!r}: unknown charset {charset}; expected utf-8, latin-1, gbk, ..."
            ) from None
        self.shape = struct(
            [Field(names[0] if names else COLUMN, Shape(pa.string()), itemgetter(0), needed=True)], _single
        )

    def decode(self, bodies: pa.Array, names: Sequence[str] | None = None) -> Decoded:
        if self.charset == CHARSET and not bodies.null_count:
            try:
                columns = [bodies.cast(pa.string())]
                return Decoded([] if names is not None and not names else columns, {})
            except pa.ArrowInvalid:
                pass
        return super().decode(bodies, names)

    def objects(self, bodies: Sequence[bytes | None]) -> tuple[list[Any], Reasons]:
        objects: list[Any] = []
        reasons: Reasons = {}
        for place, body in enumerate(bodies):
            objects.append(None)
            try:
                if body is None:
                    reasons[place] = NO_BODY
                else:
                    objects[-1] = (body.decode(self.charset),)
            except UnicodeDecodeError as error:
                reasons[place] = reason(
                    f"not {self.charset}: {error.reason} at byte {error.start}; found {shown(body)}"
                )
        return objects, reasons

    def encoded(self, objects: list[Any]) -> list[bytes]:
        return [value.encode(self.charset) for (value,) in objects]


def _single(value: str) -> tuple[str]:
    return (value,)
