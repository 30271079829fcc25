"""Bodies in JSON. msgspec decodes each into a Struct made from the schema, and validates it.

Arrow's own reader of JSON lines was measured too. It is not faster, reads two objects in one body as two
rows, and does not report place or value of errors.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from kerolox.spark.bodies.format import NO_BODY, BodyFormat, Reasons
from kerolox.spark.bodies.json_schema import from_ddl, from_json_schema
from kerolox.spark.bodies.shapes import reason, shown

_AT: Final = re.compile(r"^(.*) - at `\$(.*)`$", re.DOTALL)
_STEP: Final = re.compile(r"\.([^.\[]+)|\[(\d+)\]")
_ERRORS: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


class JsonBodies(BodyFormat):
    """Objects of JSON, by a JSON Schema or by a list of columns."""

    errors = (*BodyFormat.errors, *_ERRORS)

    def __init__(
        self, text: str, references: Mapping[str, str] | None = None, *, strict: bool = False
    ) -> None:
        """``strict``: fields that are not declared are an error."""
        if text.lstrip().startswith("{"):
            kind, self.shape = from_json_schema(text, references or {}, strict=strict)
        else:
            kind, self.shape = from_ddl(text, strict=strict)
        self._decode: Callable[[bytes], Any] = msgspec.json.Decoder(kind).decode
        self._encode = msgspec.json.Encoder(decimal_format="number").encode

    def objects(self, bodies: Sequence[bytes | None]) -> tuple[list[Any], Reasons]:
        decode = self._decode
        objects: list[Any] = []
        reasons: Reasons = {}
        left = iter(bodies)
        while len(objects) < len(bodies):
            try:
                objects.extend(map(decode, left))  # type: ignore[arg-type]
            except Exception as error:
                # Objects before the failing one are in the list already.
                reasons[len(objects)] = self._reason(bodies[len(objects)], error)
                objects.append(None)
        return objects, reasons

    def _reason(self, body: bytes | None, error: Exception) -> str:
        if body is None:
            return NO_BODY
        if not isinstance(error, _ERRORS):
            raise error
        if not body:
            return "the body is empty"
        if isinstance(error, UnicodeDecodeError):
            return reason(f"not UTF-8: {error.reason}; found {shown(body)}")
        if not isinstance(error, msgspec.ValidationError):
            return reason(f"not valid JSON: {error}; found {shown(body)}")
        found = _AT.match(str(error))
        what, path = (found[1], found[2]) if found else (str(error), "")
        what = what.replace("`", "")
        where = f"field {path.lstrip('.')}: " if path else ""
        value = _value_at(body, path)
        return reason(
            f"{where}{what[:1].lower()}{what[1:]}; found {shown(body) if value is _NONE else shown(value)}"
        )

    def encoded(self, objects: list[Any]) -> list[bytes]:
        bodies = list(map(self._encode, objects))
        # Decode again to check limits, patterns and enums by the same rules as when reading.
        list(map(self._decode, bodies))
        return bodies

    def told(self, error: Exception) -> str:
        if isinstance(error, msgspec.ValidationError) and (found := _AT.match(str(error))):
            return f"field {found[2].lstrip('.')}: {found[1].replace('`', '')}"
        return super().told(error)


_NONE: Final = object()


def _value_at(body: bytes, path: str) -> Any:
    """Return the value at a path given by msgspec; ``_NONE`` if it cannot be found."""
    try:
        value = msgspec.json.decode(body)
    except _ERRORS:  # the body is invalid after the fault
        return _NONE
    at = 0
    while at < len(path):
        step = _STEP.match(path, at)
        if step is None:
            return _NONE
        try:
            value = value[step[1]] if step[1] is not None else value[int(step[2])]
        except (KeyError, IndexError, TypeError):
            return _NONE
        at = step.end()
    return value
