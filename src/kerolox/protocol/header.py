"""Typed headers: the base they share, and the map between them and the wire.

On the wire a command's own header is a flat table of strings, the ``extFields``. Here it is a
frozen struct with real types. Its wire spelling stands in one place, the ``rename`` of its class:
plain camelCase of our name, unless :func:`wire` says otherwise.

Why ``msgspec.Struct`` and not a dataclass: building a frozen dataclass with fourteen fields costs
about as much as all the rest of a send request (see bench/codec.py); a frozen Struct is filled in C.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, TypeVar, get_args, get_origin

import msgspec

from kerolox.errors import InvalidRequest, ProtocolError
from kerolox.protocol.limits import EXT_FIELD_COUNT_MAX, INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN

H = TypeVar("H", bound="Header")

# The widths numbers have in records and files: a header that decoded can always be packed.
Int32 = Annotated[int, msgspec.Meta(ge=INT32_MIN, le=INT32_MAX)]
Int64 = Annotated[int, msgspec.Meta(ge=INT64_MIN, le=INT64_MAX)]


def camel(name: str) -> str:
    """``queue_id`` → ``queueId``."""
    head, *rest = name.split("_")
    return head + "".join(word.capitalize() for word in rest)


def wire(**spelling: str) -> Callable[[str], str]:
    """Our name to the wire's: those given, camelCase for all others."""

    def rename(name: str) -> str:
        return spelling.get(name) or camel(name)

    return rename


class Header(msgspec.Struct, frozen=True, kw_only=True, rename=camel):
    """The own fields of one kind of request or answer.

    Absent optional fields are ``None`` and are not written. Numbers and booleans travel as text.
    Fields we do not know are ignored, as every RocketMQ peer does.
    """


_COUNTED_BYTES = 64 << 10


def check_field_count(raw: bytes | memoryview | msgspec.Raw) -> None:
    """Refuse a table of more than EXT_FIELD_COUNT_MAX fields before it is read. A JSON string has at most two
    quotes without a backslash before them; so a table that passes has at most twice as many fields."""
    text = bytes(raw)
    # Most of what is refused shows at its beginning: counting all of a long table takes 10 ms.
    quotes = text.count(b'"', 0, _COUNTED_BYTES) - text.count(b'\\"', 0, _COUNTED_BYTES)
    if quotes <= 4 * EXT_FIELD_COUNT_MAX:
        quotes = text.count(b'"') - text.count(b'\\"')
    if quotes > 4 * EXT_FIELD_COUNT_MAX:
        raise ProtocolError(
            f"extFields of {len(text)} bytes has {quotes} quotes: more than EXT_FIELD_COUNT_MAX, "
            f"{EXT_FIELD_COUNT_MAX}, fields"
        )


def decode_json_fields(raw: bytes | memoryview | msgspec.Raw, cls: type[H]) -> H:
    """A header from its ``extFields`` object as it stood in a JSON command header."""
    try:
        return _json_decoder(cls).decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        check_field_count(raw)
        # Java's reader also takes values of other types ("TRUE", a lone sign, bytes that are not UTF-8):
        # read again the slow and tolerant way before refusing.
        try:
            fields = _FIELDS.decode(raw)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            from kerolox.protocol.json_dialect import loads_strict

            table = loads_strict(bytes(raw))
            if not isinstance(table, dict):
                raise InvalidRequest(f"{cls.__name__}: extFields is not an object") from error
            fields = {str(key): _as_text(value) for key, value in table.items() if value is not None}
        return decode_fields(fields, cls)


def decode_fields(fields: dict[str, str], cls: type[H]) -> H:
    """A header from its table of strings, with Java's leniency: "TRUE" is true, any other word false."""
    try:
        return msgspec.convert(fields, cls, strict=False)
    except msgspec.ValidationError as error:
        lenient = dict(fields)
        for name, kind in _kinds(cls).items():
            value = lenient.get(name)
            if value is None:
                continue
            if kind is bool:
                lenient[name] = "true" if value.lower() == "true" else "false"
            elif kind is int:
                try:
                    lenient[name] = str(int(value))  # a sign, leading zeros
                except ValueError:
                    if not value.strip():
                        del lenient[name]
        try:
            return msgspec.convert(lenient, cls, strict=False)
        except msgspec.ValidationError:
            raise InvalidRequest(f"{cls.__name__}: {error}") from error


def encode_fields(header: Header) -> dict[str, str]:
    """A header as its table of strings."""
    fields: dict[str, str] = {}
    for attribute, name in spelling(type(header)):
        value = getattr(header, attribute)
        if value is None:
            continue
        if value is True:
            fields[name] = "true"
        elif value is False:
            fields[name] = "false"
        else:
            fields[name] = str(value)
    return fields


_FIELDS = msgspec.json.Decoder(dict[str, str])
_DECODERS: dict[type[Header], msgspec.json.Decoder[Any]] = {}
_SPELLINGS: dict[type[Header], tuple[tuple[str, str], ...]] = {}
_KINDS: dict[type[Header], dict[str, type]] = {}


def _json_decoder(cls: type[H]) -> msgspec.json.Decoder[H]:
    decoder = _DECODERS.get(cls)
    if decoder is None:
        decoder = _DECODERS[cls] = msgspec.json.Decoder(cls, strict=False)
    return decoder


def spelling(cls: type[Header]) -> tuple[tuple[str, str], ...]:
    """Our name and the wire's of every field, in order."""
    known = _SPELLINGS.get(cls)
    if known is None:
        known = _SPELLINGS[cls] = tuple(zip(cls.__struct_fields__, cls.__struct_encode_fields__, strict=True))
    return known


def _kinds(cls: type[Header]) -> dict[str, type]:
    kinds = _KINDS.get(cls)
    if kinds is None:
        kinds = _KINDS[cls] = {}
        for field in msgspec.structs.fields(cls):
            kind = _bare(field.type)
            if kind is bool or kind is int:
                kinds[field.encode_name] = kind
    return kinds


def without_none(annotation: Any) -> Any:
    """``int`` of ``int | None``; ``Int32`` of ``Int32 | None``."""
    if get_origin(annotation) is Annotated:
        return annotation
    choices = [choice for choice in get_args(annotation) if choice is not type(None)]
    return without_none(choices[0]) if len(choices) == 1 else annotation


def _bare(annotation: Any) -> Any:
    """``int`` of ``int``, ``int | None``, ``Int32`` and ``Int32 | None``."""
    kind = without_none(annotation)
    return get_args(kind)[0] if get_origin(kind) is Annotated else kind


def _as_text(value: object) -> str:
    if value is True:
        return "true"
    if value is False:
        return "false"
    return str(value)
