"""Bodies in Protobuf."""

from __future__ import annotations

import datetime
from collections.abc import Callable, Sequence
from functools import partial
from operator import attrgetter
from typing import Any, Final

import pyarrow as pa

from kerolox.spark.bodies.format import NO_BODY, BodyFormat, ExtraMissing, Reasons, SchemaError, SchemaText
from kerolox.spark.bodies.protobuf_files import compiled, message_at, message_named
from kerolox.spark.bodies.shapes import DoesNotFit, Field, Shape, list_of, map_of, reason, shown, struct, told

REGISTERED: Final = "registered.proto"  # the name a schema of a registry is compiled under
_UTC: Final = pa.timestamp("us", tz="UTC")
_WRAPPED: Final = {
    f"google.protobuf.{name}Value"
    for name in ("Double", "Float", "Int64", "UInt64", "Int32", "UInt32", "Bool", "String", "Bytes")
}
_OPEN_ENDED: Final = {f"google.protobuf.{name}" for name in ("Any", "Struct", "Value", "ListValue")}
_EPOCH: Final = datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC)


class ProtobufBodies(BodyFormat):
    """Messages of one type. ``descriptors``: a descriptor set with all files it needs."""

    def __init__(self, descriptors: bytes, message: str = "", *, strict: bool = False) -> None:
        """``strict``: fields that are not declared are an error."""
        descriptor = message_named(descriptors, message)
        from google.protobuf import message_factory, unknown_fields
        from google.protobuf.message import DecodeError, EncodeError

        self.message: str = descriptor.full_name
        self._class = message_factory.GetMessageClass(descriptor)
        self._factory = message_factory
        self._unknown = unknown_fields.UnknownFieldSet
        self._broken = DecodeError
        self.errors = (*BodyFormat.errors, EncodeError)
        self._strict = strict
        self._closed: set[str] = set()  # messages with closed enums, whose unknown values Protobuf hides
        self._required = False
        self.shape = self._struct(descriptor, "", ())
        self._checked = strict or self._required or bool(self._closed)
        self._names: dict[tuple[SchemaText, tuple[int, ...]], str] = {}

    def objects(self, bodies: Sequence[bytes | None]) -> tuple[list[Any], Reasons]:
        read = self._class.FromString
        objects: list[Any] = []
        reasons: Reasons = {}
        left = iter(bodies)
        while len(objects) < len(bodies):
            try:
                objects.extend(map(read, left))
            except (self._broken, TypeError) as error:
                place = len(objects)
                body = bodies[place]
                reasons[place] = (
                    NO_BODY
                    if body is None
                    else reason(f"not a message {self.message}: {told(error)}; found {shown(body)}")
                )
                objects.append(None)
        if self._checked:
            for place, message in enumerate(objects):
                if message is not None and (why := self._wrong(message)):
                    reasons[place] = reason(f"{why}; found {shown(bodies[place])}")
        return objects, reasons

    def _wrong(self, message: Any) -> str:
        if self._required and not message.IsInitialized():
            return f"field {', '.join(message.FindInitializationErrors())}: is required, but missing"
        return self._strange(message, "")

    def _strange(self, message: Any, path: str) -> str:
        """Return the reason for undeclared fields or enum values, which Protobuf keeps as unknown fields."""
        descriptor = message.DESCRIPTOR
        for each in self._unknown(message):
            known = descriptor.fields_by_number.get(each.field_number)
            if known is not None:
                kind = known.enum_type.name if known.enum_type is not None else "it"
                return f"field {path}{known.name}: {each.data} is no value of {kind}"
            if self._strict:
                where = path.rstrip(".") or "the message"
                return f"{where} has a field of number {each.field_number}, which is not declared"
        for field, value in message.ListFields():
            if field.message_type is None or _is_map(field):
                continue
            for each in value if field.is_repeated else (value,):
                if why := self._strange(each, f"{path}{field.name}."):
                    return why
        return ""

    def written(
        self, bodies: Sequence[bytes | None], writer: SchemaText, message: tuple[int, ...] = ()
    ) -> tuple[list[Any], Reasons]:
        name = self._names.get((writer, message))
        if name is None:
            descriptors = compiled(REGISTERED, {**dict(writer.references), REGISTERED: writer.text})
            name = self._names[writer, message] = message_at(descriptors, message)
        if name != self.message:
            raise SchemaError(f"written as message {name}, but declared as {self.message}")
        return self.objects(bodies)

    def encoded(self, objects: list[Any]) -> list[bytes]:
        return [each.SerializeToString() for each in objects]

    # --- columns ---------------------------------------------------------------------------------------

    def _struct(self, descriptor: Any, path: str, above: tuple[str, ...]) -> Shape:
        if descriptor.full_name in above:
            raise SchemaError(
                f"protobuf schema: {path} is a recursive {descriptor.full_name}; columns cannot be recursive"
            )
        above = (*above, descriptor.full_name)
        fields: list[Field] = []
        setters: list[Callable[[Any, Any], None]] = []
        for each in descriptor.fields:
            below = f"{path}.{each.name}" if path else each.name
            shape = self._field(each, below, above)
            needed = bool(each.is_required) or not (each.has_presence or each.is_repeated)
            self._required = self._required or bool(each.is_required)
            fields.append(Field(each.name, shape, _take(each), needed=needed))
            setters.append(_setter(each))
            if each.enum_type is not None and each.enum_type.is_closed:
                self._closed.add(descriptor.full_name)
        if not fields:
            raise SchemaError(
                f"protobuf schema: message {descriptor.full_name} has no fields, and so no columns"
            )
        choices = [
            (choice.name, [descriptor.fields.index(each) for each in choice.fields])
            for choice in descriptor.oneofs
            if len(choice.fields) > 1
        ]
        return struct(fields, partial(_made, self._factory.GetMessageClass(descriptor), setters, choices))

    def _field(self, field: Any, path: str, above: tuple[str, ...]) -> Shape:
        if _is_map(field):
            key, value = (field.message_type.fields_by_name[name] for name in ("key", "value"))
            return map_of(
                self._single(key, path, above), self._single(value, f"{path}[]", above), values_needed=True
            )
        if field.is_repeated:
            return list_of(self._single(field, f"{path}[]", above), elements_needed=True)
        return self._single(field, path, above)

    def _single(self, field: Any, path: str, above: tuple[str, ...]) -> Shape:
        if field.message_type is not None:
            return self._message(field.message_type, path, above)
        if field.enum_type is not None:
            names = {number: each.name for number, each in field.enum_type.values_by_number.items()}
            numbers = {name: each.number for name, each in field.enum_type.values_by_name.items()}
            kind = field.enum_type.name
            return Shape(
                pa.string(),
                convert=partial(_looked_up, names, kind),
                revert=partial(_looked_up, numbers, kind),
            )
        return _scalar(field)

    def _message(self, message: Any, path: str, above: tuple[str, ...]) -> Shape:
        name = message.full_name
        made = self._factory.GetMessageClass(message)
        if name == "google.protobuf.Timestamp":
            return Shape(_UTC, convert=_micros, revert=partial(_moment, made))
        if name == "google.protobuf.Duration":
            return Shape(pa.duration("us"), convert=_micros, revert=partial(_span, made))
        if name in _WRAPPED:
            inner = _scalar(message.fields_by_name["value"])

            def convert(value: Any) -> Any:
                return value.value if inner.convert is None else inner.convert(value.value)

            def revert(value: Any) -> Any:
                return made(value=value if inner.revert is None else inner.revert(value))

            return Shape(inner.type, convert=convert, revert=revert)
        if name in _OPEN_ENDED:
            raise SchemaError(
                f"protobuf schema: {path} is a {name}, which may be anything and has no column type"
            )
        if not message.fields:  # an empty message has only presence
            return Shape(pa.bool_(), convert=lambda _: True, revert=lambda _: made())
        return self._struct(message, path, above)


def _is_map(field: Any) -> bool:
    return bool(field.message_type is not None and field.message_type.GetOptions().map_entry)


def _scalar(field: Any) -> Shape:
    match field.cpp_type:
        case field.CPPTYPE_INT32:
            return Shape(pa.int32())
        case field.CPPTYPE_INT64 | field.CPPTYPE_UINT32:
            return Shape(pa.int64())
        case field.CPPTYPE_UINT64:
            return Shape(pa.decimal128(20, 0), revert=int)
        case field.CPPTYPE_DOUBLE:
            return Shape(pa.float64())
        case field.CPPTYPE_FLOAT:
            return Shape(pa.float32())
        case field.CPPTYPE_BOOL:
            return Shape(pa.bool_())
    return Shape(pa.binary() if field.type == field.TYPE_BYTES else pa.string())


def _take(field: Any) -> Callable[[Any], Any]:
    take = attrgetter(field.name) if field.name.isidentifier() else partial(_attribute, field.name)
    if field.is_repeated or not field.has_presence:
        return take
    name = field.name

    def take_if_there(message: Any) -> Any:
        return take(message) if message.HasField(name) else None

    return take_if_there


def _attribute(name: str, message: Any) -> Any:
    return getattr(message, name)


def _setter(field: Any) -> Callable[[Any, Any], None]:
    name = field.name

    def copy(message: Any, value: Any) -> None:
        getattr(message, name).CopyFrom(value)

    def extend(message: Any, value: Any) -> None:
        getattr(message, name).extend(value)

    def update(message: Any, value: Any) -> None:
        getattr(message, name).update(value)

    def copy_each(message: Any, value: Any) -> None:
        items = getattr(message, name)
        for key, each in value.items():
            items[key].CopyFrom(each)

    if _is_map(field):
        return copy_each if field.message_type.fields_by_name["value"].message_type is not None else update
    if field.is_repeated:
        return extend
    return copy if field.message_type is not None else partial(_set, name)


def _set(name: str, message: Any, value: Any) -> None:
    setattr(message, name, value)


def _made(
    kind: Any,
    setters: list[Callable[[Any, Any], None]],
    choices: list[tuple[str, list[int]]],
    *values: Any,
) -> Any:
    for choice, places in choices:
        if sum(values[place] is not None for place in places) > 1:
            raise DoesNotFit(f"oneof {choice}: more than one of its fields has a value")
    message = kind()
    for put, value in zip(setters, values, strict=True):
        if value is not None:
            put(message, value)
    return message


def _looked_up(table: dict[Any, Any], kind: str, value: Any) -> Any:
    found = table.get(value)
    if found is None:
        raise DoesNotFit(f"{value!r} is no value of {kind}")
    return found


def _micros(value: Any) -> int:
    return int(value.seconds) * 1_000_000 + int(value.nanos) // 1000


def _moment(kind: Any, value: datetime.datetime) -> Any:
    return _span(kind, value - _EPOCH)


def _span(kind: Any, value: datetime.timedelta) -> Any:
    micros = value // datetime.timedelta(microseconds=1)
    seconds, rest = divmod(micros, 1_000_000)
    if kind.DESCRIPTOR.name == "Duration" and seconds < 0 and rest:  # both parts have the same sign there
        seconds, rest = seconds + 1, rest - 1_000_000
    return kind(seconds=seconds, nanos=rest * 1000)


__all__ = ["REGISTERED", "ExtraMissing", "ProtobufBodies"]
