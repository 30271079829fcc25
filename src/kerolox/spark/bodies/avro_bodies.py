"""Bodies in Avro's binary form: one record each, without the schema it was written by.

The writer's schema is the declared one, unless a registry gives another: then Avro's rules of evolution
convert the body to the declared schema. fastavro does both. It gets schemas without logical types, because
Arrow converts whole columns faster than Python converts single values.
"""

from __future__ import annotations

import decimal
import io
import json
from collections.abc import Iterator, Sequence
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa

from kerolox.spark.bodies.format import NO_BODY, BodyFormat, ExtraMissing, Reasons, SchemaError, SchemaText
from kerolox.spark.bodies.shapes import DoesNotFit, Field, Shape, list_of, map_of, reason, shown, struct, told

_LEAVES: Final = {
    "boolean": pa.bool_(),
    "int": pa.int32(),
    "long": pa.int64(),
    "float": pa.float32(),
    "double": pa.float64(),
    "bytes": pa.binary(),
    "fixed": pa.binary(),
    "string": pa.string(),
    "enum": pa.string(),
}
_UTC: Final = pa.timestamp("us", tz="UTC")
_LOGICAL: Final = {
    ("int", "date"): (pa.date32(), pa.date32()),
    ("long", "timestamp-millis"): (pa.timestamp("ms", tz="UTC"), _UTC),
    ("long", "timestamp-micros"): (_UTC, _UTC),
    ("long", "timestamp-nanos"): (pa.timestamp("ns", tz="UTC"), _UTC),
    ("long", "local-timestamp-millis"): (pa.timestamp("ms"), pa.timestamp("us")),
    ("long", "local-timestamp-micros"): (pa.timestamp("us"), pa.timestamp("us")),
    ("long", "local-timestamp-nanos"): (pa.timestamp("ns"), pa.timestamp("us")),
}
_NAMES: Final = "avro bodies"
_CONTEXT: Final = decimal.Context(prec=80)


def _fastavro() -> Any:
    try:
        import fastavro
    except ImportError:
        raise ExtraMissing("fastavro", _NAMES) from None
    return fastavro


class AvroSchema:
    """An Avro schema in two forms: one for decoding, and one with all names expanded."""

    def __init__(self, source: SchemaText) -> None:
        fastavro = _fastavro()
        try:
            named: dict[str, Any] = {}
            plain_named: dict[str, Any] = {}
            for _, text in source.references:
                parsed = json.loads(text)
                fastavro.parse_schema(parsed, named_schemas=named)
                fastavro.parse_schema(_plain(parsed), named_schemas=plain_named)
            schema = json.loads(source.text)
            self.expanded = fastavro.parse_schema(schema, named_schemas=dict(named), expand=True)
            plain = _plain(schema)
            self.plain = fastavro.parse_schema(plain, named_schemas=dict(plain_named))
            if source.references:
                self.plain = fastavro.parse_schema(plain, named_schemas=dict(plain_named), expand=True)
        except ValueError as error:  # json's too
            raise SchemaError(f"the Avro schema is not valid JSON or not a schema: {told(error)}") from None
        except Exception as error:  # fastavro has a family of them
            raise SchemaError(
                f"the Avro schema cannot be read: {type(error).__name__}: {told(error)}"
            ) from None
        if not isinstance(self.expanded, dict) or self.expanded.get("type") != "record":
            raise SchemaError("the Avro schema must be a record, whose fields become the columns")
        _refuse_unbounded(self.expanded, "")

    def fields(self) -> list[tuple[str, Any]]:
        return [(each["name"], each["type"]) for each in self.plain["fields"]]


def _plain(schema: Any) -> Any:
    """Return the schema without its logical types."""
    if isinstance(schema, list):
        return [_plain(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    return {
        key: _plain(value) if key in ("type", "items", "values", "fields") else value
        for key, value in schema.items()
        if key != "logicalType"
    }


class AvroBodies(BodyFormat):
    """Records of Avro."""

    errors = (Exception,)

    def __init__(self, source: SchemaText) -> None:
        self._fastavro = _fastavro()
        self._reader = AvroSchema(source)
        self.shape = _shape(self._reader.expanded, "")
        self._writers: dict[SchemaText, AvroSchema] = {}

    def objects(self, bodies: Sequence[bytes | None]) -> tuple[list[Any], Reasons]:
        return self._read(bodies, self._reader, None)

    def written(
        self, bodies: Sequence[bytes | None], writer: SchemaText, message: tuple[int, ...] = ()
    ) -> tuple[list[Any], Reasons]:
        schema = self._writers.get(writer)
        if schema is None:
            schema = AvroSchema(writer)
            _refuse_other_meaning(schema, self._reader)
            self._writers[writer] = schema
        if schema.plain == self._reader.plain:
            return self._read(bodies, self._reader, None)
        return self._read(bodies, schema, self._reader.plain)

    def _read(
        self, bodies: Sequence[bytes | None], writer: AvroSchema, reader: Any
    ) -> tuple[list[Any], Reasons]:
        read, plain = self._fastavro.schemaless_reader, writer.plain
        objects: list[Any] = []
        reasons: Reasons = {}
        for place, body in enumerate(bodies):
            value = None
            if body is None:
                reasons[place] = NO_BODY
            else:
                file = io.BytesIO(body)
                try:
                    value = read(file, plain, reader)
                    if file.tell() != len(body):
                        more = len(body) - file.tell()
                        reasons[place] = reason(
                            f"{more} bytes follow the record; was it written by another schema? "
                            f"found {shown(body)}"
                        )
                except Exception as error:  # bytes can be wrong in any way
                    reasons[place] = reason(
                        f"{self._where(body, writer)}{_words(error)}; found {shown(body)}"
                    )
            objects.append(value)
        return objects, reasons

    def _where(self, body: bytes, writer: AvroSchema) -> str:
        """Find the field that cannot be read, by reading the fields one after the other."""
        file = io.BytesIO(body)
        for name, kind in writer.fields():
            at = file.tell()
            try:
                self._fastavro.schemaless_reader(file, kind, None)
            except Exception:
                return f"field {name} (at byte {at}): "
        return ""

    def encoded(self, objects: list[Any]) -> list[bytes]:
        bodies = []
        for value in objects:
            file = io.BytesIO()
            try:
                self._fastavro.schemaless_writer(file, self._reader.plain, value)
            except Exception as error:
                raise DoesNotFit(self._invalid(value) or _words(error)) from None
            bodies.append(file.getvalue())
        return bodies

    def _invalid(self, value: Any) -> str:
        try:
            self._fastavro.validation.validate(value, self._reader.plain, raise_errors=True)
        except self._fastavro.validation.ValidationError as error:
            return " ".join(str(error).split())
        except Exception:
            pass
        return ""


def _words(error: Exception) -> str:
    text = told(error)
    if isinstance(error, EOFError):
        return "the body ends too early"
    return text if isinstance(error, UnicodeDecodeError) else f"{text} ({type(error).__name__})"


# --- columns -------------------------------------------------------------------------------------------


def _shape(schema: Any, path: str) -> Shape:
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, dict | list):
        return _shape(kind, path)
    if kind in ("record", "error"):
        fields = []
        for each in schema["fields"]:
            inner, nullable = _nullable(each["type"])
            below = f"{path}.{each['name']}" if path else each["name"]
            fields.append(
                Field(each["name"], _shape(inner, below), itemgetter(each["name"]), needed=not nullable)
            )
        if not fields:
            raise SchemaError(f"Avro schema: record {path or 'at the top'} has no fields, and so no columns")
        names = [each.name for each in fields]
        return struct(fields, lambda *values: dict(zip(names, values, strict=True)))
    if kind == "array":
        inner, nullable = _nullable(schema["items"])
        return list_of(_shape(inner, f"{path}[]"), elements_needed=not nullable)
    if kind == "map":
        inner, nullable = _nullable(schema["values"])
        return map_of(Shape(pa.string()), _shape(inner, f"{path}[]"), values_needed=not nullable)
    if kind not in _LEAVES:
        raise SchemaError(f"Avro schema: {path} is {shown(kind)}; it has no column")
    logical = schema.get("logicalType") if isinstance(schema, dict) else None
    if logical == "decimal" and kind in ("bytes", "fixed"):
        return _decimal(schema, path)
    raw, column = _LOGICAL.get((kind, logical or ""), (None, _LEAVES[kind]))
    return Shape(column, raw=raw)


def _nullable(schema: Any) -> tuple[Any, bool]:
    if isinstance(schema, dict) and isinstance(schema.get("type"), list):
        schema = schema["type"]
    if not isinstance(schema, list):
        return schema, False
    others = [each for each in schema if each != "null"]
    if len(others) != 1:
        kinds = ", ".join(shown(each["type"] if isinstance(each, dict) else each) for each in schema)
        raise SchemaError(f"Avro schema: a union of {kinds} has no one column type; null and one other has")
    return others[0], len(others) < len(schema)


def _decimal(schema: Any, path: str) -> Shape:
    precision, scale = schema.get("precision", 0), schema.get("scale", 0)
    if not 1 <= precision <= 38:
        raise SchemaError(f"Avro schema: {path} is a decimal of {precision} digits; Spark has at most 38")
    size = schema.get("size") if schema["type"] == "fixed" else None

    def convert(value: bytes) -> decimal.Decimal:
        number = decimal.Decimal(int.from_bytes(value, "big", signed=True))
        return number.scaleb(-scale, _CONTEXT)

    def revert(value: decimal.Decimal) -> bytes:
        number = int(value.scaleb(scale, _CONTEXT))
        length = size or (number.bit_length() // 8 + 1)
        return number.to_bytes(length, "big", signed=True)

    return Shape(pa.decimal128(precision, scale), convert=convert, revert=revert)


# --- schemas that a short body could misuse -------------------------------------------------------------

_FEWEST_BYTES: Final = {"null": 0, "float": 4, "double": 8}  # of all others 1


def _refuse_unbounded(schema: Any, path: str) -> int:
    """Return the minimum size of a value. Raises SchemaError for types that make a short body unbounded.

    Elements without bytes are created by a count, possibly billions of them. A recursive type is read by
    recursive calls, which fastavro does not limit: a body of 100,000 bytes ends the process (seen with
    1.13.1). The check includes schemas of a registry, whose other fields are skipped by the same calls.
    """
    kind = schema["type"] if isinstance(schema, dict) else schema
    if isinstance(kind, list):
        for each in kind:
            _refuse_unbounded(each, path)
        return 1
    if isinstance(kind, dict):
        return _refuse_unbounded(kind, path)
    if kind in ("record", "error"):
        return sum(
            _refuse_unbounded(each["type"], f"{path}.{each['name']}" if path else each["name"])
            for each in schema["fields"]
        )
    if kind == "map":
        _refuse_unbounded(schema["values"], f"{path}[]")
        return 1
    if kind == "array":
        if not _refuse_unbounded(schema["items"], f"{path}[]"):
            raise SchemaError(
                f"Avro schema: the elements of {path} take no bytes, so their number is unbounded"
            )
        return 1
    if kind == "fixed":
        return int(schema["size"])
    if kind not in _LEAVES and kind != "null":
        raise SchemaError(f"Avro schema: {path} is {shown(kind)}; it is in itself")
    return _FEWEST_BYTES.get(kind, 1)


# --- two schemas ---------------------------------------------------------------------------------------


def _refuse_other_meaning(writer: AvroSchema, reader: AvroSchema) -> None:
    """Reject different logical types: Avro's evolution would read milliseconds as microseconds."""
    written, declared = dict(_meanings(writer.expanded, "")), dict(_meanings(reader.expanded, ""))
    for path, meaning in declared.items():
        other = written.get(path, meaning)
        if other != meaning:
            raise SchemaError(f"field {path} was written as {other}, but is declared as {meaning}")


def _meanings(schema: Any, path: str) -> Iterator[tuple[str, str]]:
    if isinstance(schema, list):
        for each in schema:
            yield from _meanings(each, path)
        return
    if not isinstance(schema, dict):
        return
    logical = schema.get("logicalType")
    if logical:
        yield path, f"{logical} of scale {schema.get('scale', 0)}" if logical == "decimal" else logical
    for each in schema.get("fields", ()):
        yield from _meanings(each["type"], f"{path}.{each['name']}" if path else each["name"])
    for word in ("items", "values"):
        if word in schema:
            yield from _meanings(schema[word], f"{path}[]")
    if isinstance(schema.get("type"), dict | list):
        yield from _meanings(schema["type"], path)
