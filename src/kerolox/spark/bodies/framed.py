"""Bodies with a header that has the number of their schema in a registry::

0            a zero byte
1-4          number of the schema, big-endian
then         in Protobuf only: the place of the message in its file, as zigzag varints: how many numbers,
             then the numbers; a single 0 is the first message
then         the record, message or JSON text
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

import pyarrow as pa

from kerolox.spark.bodies.format import NO_BODY, BodyFormat, Reasons, SchemaError
from kerolox.spark.bodies.registry import NotRegistered, Registry
from kerolox.spark.bodies.shapes import reason, shown

HEAD: Final = struct.Struct(">bI")
INDEXES_MAX: Final = 64  # maximum nesting depth of a message
_VARINT_BYTES_MAX: Final = 5


class Framed(BodyFormat):
    """A body format with schema numbers of a registry in front."""

    def __init__(
        self,
        inner: BodyFormat,
        form: str,
        registry: Registry,
        *,
        schema_id: int = 0,
        indexes: tuple[int, ...] = (),
    ) -> None:
        """``schema_id`` and ``indexes``: header of written bodies."""
        self._inner = inner
        self._form = form
        self._registry = registry
        self.shape = inner.shape
        self.errors = inner.errors
        self._head = HEAD.pack(0, schema_id) + (packed_indexes(indexes) if form == "protobuf" else b"")

    def objects(self, bodies: Sequence[bytes | None]) -> tuple[list[Any], Reasons]:
        objects: list[Any] = [None] * len(bodies)
        reasons: Reasons = {}
        groups: dict[tuple[int, tuple[int, ...]], tuple[list[int], list[bytes]]] = {}
        unpack, size = HEAD.unpack_from, HEAD.size
        for place, body in enumerate(bodies):
            if body is None:
                reasons[place] = NO_BODY
                continue
            if len(body) < size or body[0]:
                reasons[place] = reason(
                    f"does not begin with a zero byte and the number of a schema; found "
                    f"{shown(body)}. Was it "
                    "written without the registry?"
                )
                continue
            number = unpack(body)[1]
            indexes: tuple[int, ...] = ()
            at = size
            if self._form == "protobuf":
                try:
                    indexes, at = read_indexes(body, size)
                except ValueError as error:
                    reasons[place] = reason(f"{error}; found {shown(body)}")
                    continue
            places, rest = groups.setdefault((number, indexes), ([], []))
            places.append(place)
            rest.append(body[at:])
        for (number, indexes), (places, rest) in groups.items():
            found, unfit = self._of_one(number, indexes, rest)
            for place, each in zip(places, found, strict=True):
                objects[place] = each
            for inner_place, why in unfit.items():
                reasons[places[inner_place]] = why
        return objects, reasons

    def _of_one(
        self, number: int, indexes: tuple[int, ...], bodies: list[bytes]
    ) -> tuple[list[Any], Reasons]:
        try:
            writer = self._registry.by_id(number)
            if writer.format != self._form:
                raise SchemaError(
                    f"schema {number} is one of {writer.format}, and bodyFormat is {self._form}"
                )
            return self._inner.written(bodies, writer.schema, indexes)
        except (NotRegistered, SchemaError) as error:
            why = reason(f"schema {number}: {error}")
            return [None] * len(bodies), dict.fromkeys(range(len(bodies)), why)

    def encoded(self, objects: list[Any]) -> list[bytes]:
        head = self._head
        return [head + body for body in self._inner.encoded(objects)]

    def told(self, error: Exception) -> str:
        return self._inner.told(error)


def read_indexes(body: bytes, at: int) -> tuple[tuple[int, ...], int]:
    """Return the index path of a message, and the begin of the message. Raises ValueError."""
    count, at = _varint(body, at)
    if not count:
        return (0,), at
    if not 0 < count <= INDEXES_MAX:
        raise ValueError(f"the place of the message has {count} numbers")
    found = []
    for _ in range(count):
        index, at = _varint(body, at)
        found.append(index)
    return tuple(found), at


def _varint(body: bytes, at: int) -> tuple[int, int]:
    value = 0
    for shift in range(_VARINT_BYTES_MAX):
        if at >= len(body):
            raise ValueError("ends within the place of the message")
        byte = body[at]
        at += 1
        value |= (byte & 0x7F) << (7 * shift)
        if byte < 0x80:
            return (value >> 1) ^ -(value & 1), at
    raise ValueError("the place of the message is no number")


def packed_indexes(indexes: tuple[int, ...]) -> bytes:
    if indexes in ((), (0,)):
        return b"\0"
    return b"".join(_zigzag(number) for number in (len(indexes), *indexes))


def _zigzag(number: int) -> bytes:
    value = number << 1
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def is_framed(bodies: pa.Array) -> bool:
    """Return True if the first body looks as if it were written with a registry."""
    first = next((body for body in bodies.slice(0, 1).to_pylist() if body), b"")
    return len(first) > HEAD.size and first[0] == 0
