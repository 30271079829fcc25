"""Conversion of JSON Schema and Spark's DDL to msgspec types, which validate bodies, and to columns.

Supported keywords of JSON Schema: types, ``required``, ``enum`` and ``const``, limits of numbers and
lengths, ``pattern``, ``format``, ``$ref`` within the text or to references in a registry. Alternatives
(``oneOf`` of two objects, ``if``) have no column type and are rejected.
"""

from __future__ import annotations

import datetime
import decimal
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Final, Literal, Optional

import msgspec
import pyarrow as pa

from kerolox.spark.bodies.ddl import Column, Kind, parse_ddl
from kerolox.spark.bodies.format import SchemaError
from kerolox.spark.bodies.shapes import Field, Shape, list_of, map_of, struct

FLOAT_MAX: Final = 3.4028234663852886e38  # of 32 bits
TIMESTAMP: Final = pa.timestamp("us", tz="UTC")

# msgspec's types are built here, at run time: mypy sees values.
Typed = tuple[Any, Shape]

_ZONED: Final = Annotated[datetime.datetime, msgspec.Meta(tz=True)]
_ZONELESS: Final = Annotated[datetime.datetime, msgspec.Meta(tz=False)]
_LEAVES: Final[dict[pa.DataType, Any]] = {
    pa.bool_(): bool,
    pa.int8(): Annotated[int, msgspec.Meta(ge=-(1 << 7), le=(1 << 7) - 1)],
    pa.int16(): Annotated[int, msgspec.Meta(ge=-(1 << 15), le=(1 << 15) - 1)],
    pa.int32(): Annotated[int, msgspec.Meta(ge=-(1 << 31), le=(1 << 31) - 1)],
    pa.int64(): Annotated[int, msgspec.Meta(ge=-(1 << 63), le=(1 << 63) - 1)],
    pa.float32(): Annotated[float, msgspec.Meta(ge=-FLOAT_MAX, le=FLOAT_MAX)],
    pa.float64(): float,
    pa.string(): str,
    pa.binary(): bytes,
    pa.date32(): datetime.date,
    TIMESTAMP: _ZONED,
    pa.timestamp("us"): _ZONELESS,
}
_DECIDES: Final = (
    "allOf", "if", "not", "patternProperties", "dependentSchemas", "prefixItems", "propertyNames",
    "$dynamicRef",     "uniqueItems", "dependentRequired", "contains", "unevaluatedProperties",
)  # fmt: skip


def leaf(kind: pa.DataType) -> Typed:
    if pa.types.is_decimal(kind):
        return decimal.Decimal, Shape(kind)
    return _LEAVES[kind], Shape(kind, finite=pa.types.is_floating(kind))


def record(fields: Sequence[tuple[str, Typed, bool, bool]], *, strict: bool) -> Typed:
    """Return the type of an object. Each field has name, type, a flag for required, and one for nullable.

    ``strict``: other fields are an error.
    """
    declared: list[Any] = []
    for place, (_, (kind, _), required, nullable) in enumerate(fields):
        kind = Optional[kind] if nullable else kind  # noqa: UP045  made at run time
        declared.append((f"f{place}", kind) if required else (f"f{place}", kind, None))
    made = msgspec.defstruct(
        "Body",
        declared,
        rename={f"f{place}": name for place, (name, *_) in enumerate(fields)},
        kw_only=True,
        omit_defaults=True,
        forbid_unknown_fields=strict,
        gc=False,
    )
    names = [f"f{place}" for place in range(len(fields))]

    def make(*values: Any) -> Any:
        return made(**dict(zip(names, values, strict=True)))

    return made, struct(
        [
            Field(name, shape, _taking(f"f{place}"), needed=required and not nullable)
            for place, (name, (_, shape), required, nullable) in enumerate(fields)
        ],
        make,
    )


def _taking(name: str) -> Any:
    import operator

    return operator.attrgetter(name)


# --- DDL -----------------------------------------------------------------------------------------------


def from_ddl(text: str, *, strict: bool) -> Typed:
    try:
        columns = parse_ddl(text)
    except ValueError as error:
        raise SchemaError(
            f"bodySchema {text[:80]!r} is not a list of columns ({error}), such as id BIGINT NOT "
            "NULL, name STRING; "
            "and no file of that name exists"
        ) from None
    return _columns(columns, strict=strict)


def _columns(columns: Sequence[Column], *, strict: bool) -> Typed:
    return record(
        [(each.name, _kind(each.kind, strict=strict), not each.nullable, each.nullable) for each in columns],
        strict=strict,
    )


def _kind(kind: Kind, *, strict: bool) -> Typed:
    if kind.leaf is not None:
        return leaf(kind.leaf)
    if kind.fields:
        return _columns(kind.fields, strict=strict)
    assert kind.element is not None
    value, shape = _kind(kind.element, strict=strict)
    if kind.key is None:
        return list[Optional[value]], list_of(shape)  # type: ignore[valid-type]  # noqa: UP045
    if kind.key.leaf != pa.string():
        raise SchemaError("keys of a map in JSON are strings: declare map<string, ...>")
    return dict[str, Optional[value]], map_of(Shape(pa.string()), shape)  # type: ignore[valid-type]  # noqa: UP045


# --- JSON Schema ---------------------------------------------------------------------------------------


def from_json_schema(text: str, references: Mapping[str, str], *, strict: bool) -> Typed:
    """Convert a JSON Schema. ``references``: other schemas by the names used in ``$ref``."""
    reader = _JsonSchema(_parsed(text), {name: _parsed(each) for name, each in references.items()}, strict)
    kind, shape, _ = reader.typed(reader.root, "$", ())
    if not shape.fields:
        raise SchemaError("the JSON Schema must be an object with properties, which become the columns")
    return kind, shape


def _parsed(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.DecodeError as error:
        raise SchemaError(f"the JSON Schema is not valid JSON: {error}") from None


class _JsonSchema:
    def __init__(self, root: Any, others: Mapping[str, Any], strict: bool) -> None:
        self.root = root
        self._others = others
        self._strict = strict

    def typed(self, schema: Any, path: str, seen: tuple[str, ...]) -> tuple[Any, Shape, bool]:
        """Return type, shape, and True if the value may be null."""
        schema, seen, reader = self._resolved(schema, path, seen)
        if reader is not self:
            return reader.typed(schema, path, seen)
        if not isinstance(schema, dict):
            raise SchemaError(f"{path}: {schema!r} does not define a type, so it has no column")
        undecided = [word for word in _DECIDES if word in schema]
        if undecided:
            raise SchemaError(
                f"{path}: {undecided[0]} cannot be converted to columns or validated. Remove it "
                "from the schema for Spark, "
                "or read the bodies as text"
            )
        nullable = bool(schema.get("nullable", False))
        for word in ("anyOf", "oneOf"):
            if word in schema:
                others = [each for each in schema[word] if each != {"type": "null"}]
                if len(others) != 1:
                    raise SchemaError(f"{path}: {word} of {len(others)} kinds has no one column type")
                kind, shape, inner = self.typed(others[0], path, seen)
                return kind, shape, inner or nullable or len(others) < len(schema[word])
        words = schema.get("type")
        if words is None:
            words = self._guessed(schema)
        types = [words] if isinstance(words, str) else list(words or ())
        nullable = nullable or "null" in types
        types = [each for each in types if each != "null"]
        if types == ["integer", "number"] or types == ["number", "integer"]:
            types = ["number"]
        if len(types) != 1:
            raise SchemaError(f"{path}: type {words!r} is not one type (and null), so it has no column type")
        kind, shape = self._one(types[0], schema, path, seen)
        return kind, shape, nullable

    def _resolved(
        self, schema: Any, path: str, seen: tuple[str, ...]
    ) -> tuple[Any, tuple[str, ...], _JsonSchema]:
        """Resolve ``$ref``; return the schema and its reader, since another text has its own references."""
        reader = self
        while isinstance(schema, dict) and "$ref" in schema:
            name = schema["$ref"]
            mark = f"{id(reader.root)} {name}"
            if mark in seen:
                raise SchemaError(f"{path}: {name} contains itself; columns cannot be recursive")
            seen = (*seen, mark)
            place, _, pointer = name.partition("#")
            root = reader.root if not place else self._others.get(place)
            if root is None:
                known = ", ".join(self._others) or "none"
                raise SchemaError(f"{path}: $ref {name} cannot be resolved (references: {known})")
            schema = root
            for step in filter(None, pointer.split("/")):
                step = step.replace("~1", "/").replace("~0", "~")
                if not isinstance(schema, dict) or step not in schema:
                    raise SchemaError(f"{path}: $ref {name} cannot be resolved (at {step})")
                schema = schema[step]
            if place:
                reader = _JsonSchema(root, self._others, self._strict)
        return schema, seen, reader

    @staticmethod
    def _guessed(schema: Mapping[str, Any]) -> str | None:
        if "properties" in schema:
            return "object"
        values = schema.get("enum", [schema["const"]] if "const" in schema else [])
        return "string" if values and all(isinstance(value, str) for value in values) else None

    def _one(self, word: str, schema: Mapping[str, Any], path: str, seen: tuple[str, ...]) -> Typed:
        match word:
            case "object":
                return self._object(schema, path, seen)
            case "array":
                element, shape, nullable = self.typed(schema.get("items", True), f"{path}[]", seen)
                element = Optional[element] if nullable else element  # noqa: UP045
                limits = _limits(schema, minItems="min_length", maxItems="max_length")
                kind: Any = list[element]  # type: ignore[valid-type]
                return (
                    Annotated[kind, msgspec.Meta(**limits)] if limits else kind,
                    list_of(shape, elements_needed=not nullable),
                )
            case "string":
                return self._string(schema, path)
            case "boolean":
                return leaf(pa.bool_())
            case "integer":
                column = {"int32": pa.int32()}.get(schema.get("format", ""), pa.int64())
                return self._number(schema, column, path)
            case "number":
                column = {"float": pa.float32()}.get(schema.get("format", ""), pa.float64())
                return self._number(schema, column, path)
        raise SchemaError(f"{path}: {word!r} is not a type of JSON Schema")

    def _object(self, schema: Mapping[str, Any], path: str, seen: tuple[str, ...]) -> Typed:
        more = schema.get("additionalProperties", True)
        if not schema.get("properties"):
            if not isinstance(more, dict):
                raise SchemaError(
                    f"{path}: an object without properties has no columns; additionalProperties with a type "
                    "makes it a map"
                )
            value, shape, nullable = self.typed(more, f"{path}.*", seen)
            value = Optional[value] if nullable else value  # noqa: UP045
            return dict[str, value], map_of(  # type: ignore[valid-type]
                Shape(pa.string()), shape, values_needed=not nullable
            )
        if isinstance(more, dict) and more:
            raise SchemaError(
                f"{path}: properties together with additionalProperties of a type have no columns"
            )
        required = set(schema.get("required", ()))
        unknown = required - set(schema["properties"])
        if unknown:
            raise SchemaError(f"{path}: required {', '.join(sorted(unknown))} is not among its properties")
        fields = []
        for name, each in schema["properties"].items():
            kind, shape, nullable = self.typed(each, f"{path}.{name}", seen)
            fields.append((name, (kind, shape), name in required, nullable))
        return record(fields, strict=self._strict or more is False)

    def _string(self, schema: Mapping[str, Any], path: str) -> Typed:
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if values is not None:
            texts = tuple(value for value in values if value is not None)
            if not texts or not all(isinstance(value, str) for value in texts):
                raise SchemaError(f"{path}: enum {values!r} is not one of texts")
            return Literal[texts], Shape(pa.string())
        if schema.get("contentEncoding") == "base64":
            return leaf(pa.binary())
        match schema.get("format"):
            case "date-time":
                return leaf(TIMESTAMP)
            case "date":
                return leaf(pa.date32())
        limits = _limits(schema, minLength="min_length", maxLength="max_length", pattern="pattern")
        return (Annotated[str, msgspec.Meta(**limits)] if limits else str), Shape(pa.string())

    def _number(self, schema: Mapping[str, Any], column: pa.DataType, path: str) -> Typed:
        kind, shape = leaf(column)
        values = schema.get("enum", [schema["const"]] if "const" in schema else None)
        if values is not None:
            whole = tuple(value for value in values if value is not None)
            if not pa.types.is_integer(column) or not all(type(value) is int for value in whole):
                raise SchemaError(f"{path}: enum {values!r} is not one of whole numbers")
            return Literal[whole], shape
        limits = _limits(
            schema, minimum="ge", maximum="le", exclusiveMinimum="gt", exclusiveMaximum="lt",
            multipleOf="multiple_of",
        )  # fmt: skip
        if not limits:
            return kind, shape
        # Of two limits on one side the type takes one.
        if "gt" not in limits and "ge" not in limits and column in (pa.int32(), pa.int64()):
            limits["ge"] = -(1 << (31 if column == pa.int32() else 63))
        if "lt" not in limits and "le" not in limits and column in (pa.int32(), pa.int64()):
            limits["le"] = (1 << (31 if column == pa.int32() else 63)) - 1
        try:
            return Annotated[int if pa.types.is_integer(column) else float, msgspec.Meta(**limits)], shape
        except (TypeError, ValueError) as error:
            raise SchemaError(f"{path}: limits {limits}: {error}") from None


def _limits(schema: Mapping[str, Any], **names: str) -> dict[str, Any]:
    return {ours: schema[theirs] for theirs, ours in names.items() if theirs in schema}
