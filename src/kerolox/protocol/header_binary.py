"""The command header in RocketMQ's compact form. See FRAME.md.

The own header is a run of entries (key length, key, value length, value). One client sends the same
keys in the same order with values of mostly the same lengths, so the *shape* of a run is remembered:
a run of the same length with the same bytes between its values is unpacked by one precompiled Struct.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from operator import itemgetter
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from kerolox.errors import ProtocolError
from kerolox.protocol.codes import CUT_CODES, VERSION, Language, language_named
from kerolox.protocol.header import Header, Int32, Int64, spelling, without_none
from kerolox.protocol.header import decode_fields as header_from_fields
from kerolox.protocol.limits import EXT_FIELD_COUNT_MAX

if TYPE_CHECKING:
    from kerolox.protocol.command import Command

H = TypeVar("H", bound=Header)

BINARY = 1
SHAPES_MAX = 4096  # remembered shapes; past that the cache starts anew
SHAPE_BYTES_MAX = 2048  # of the keys of one; longer ones would let their sender fill the memory

_FIXED = struct.Struct(
    ">h"  # code
    "B"  # language
    "h"  # version
    "i"  # opaque
    "i"  # flag
    "i"  # remark length
)
_INT = struct.Struct(">i")
_SHORT = struct.Struct(">h")
_USHORT = struct.Struct(">H")
_UINT = struct.Struct(">I")


def decode_into(command: Command, encoding: int, header: bytes) -> None:
    """Fill a command from the header bytes."""
    if encoding != BINARY:
        raise ProtocolError(f"header encoding {encoding} is unknown: 0 is JSON, 1 is binary")
    try:
        code, language, version, opaque, flag, remark_length = _FIXED.unpack_from(header)
        position = _FIXED.size
        if remark_length < 0:
            raise ProtocolError(f"remark length {remark_length} is negative", at=position - 4)
        remark = header[position : position + remark_length]
        position += remark_length
        (fields_length,) = _INT.unpack_from(header, position)
    except struct.error:
        raise ProtocolError(f"binary header of {len(header)} bytes is cut short", at=len(header)) from None
    position += 4
    if fields_length < 0 or position + fields_length > len(header):
        raise ProtocolError(
            f"fields of {fields_length} bytes do not fit the header of {len(header)} bytes", at=position - 4
        )
    try:
        command.remark = remark.decode() or None
    except UnicodeDecodeError as error:
        raise ProtocolError("remark is not UTF-8", at=_FIXED.size + error.start) from None
    command.code = code if flag & 1 else CUT_CODES.get(code, code)
    command.language = language
    command.version = version
    command.opaque = opaque
    command.flag = flag
    command._raw = header[position : position + fields_length]


def split_fields(raw: bytes) -> list[tuple[bytes, bytes, int]]:
    """The entries of a run: key, value, and where the value starts. Raises ProtocolError."""
    entries: list[tuple[bytes, bytes, int]] = []
    position, end = 0, len(raw)
    while position < end:
        start = position
        try:
            (key_length,) = _SHORT.unpack_from(raw, position)
            position += 2 + key_length
            (value_length,) = _INT.unpack_from(raw, position)
        except struct.error:
            raise ProtocolError("entry of a binary header is cut short", at=start) from None
        value_at = position + 4
        position = value_at + value_length
        if len(entries) == EXT_FIELD_COUNT_MAX:
            raise ProtocolError(f"more fields than EXT_FIELD_COUNT_MAX, {EXT_FIELD_COUNT_MAX}", at=start)
        if key_length < 0 or value_length < 0 or position > end:
            raise ProtocolError(
                f"entry with a key of {key_length} and a value of {value_length} bytes does not fit", at=start
            )
        entries.append((raw[start + 2 : start + 2 + key_length], raw[value_at:position], value_at))
    return entries


def decode_fields(raw: bytes) -> dict[str, str]:
    """The own header as a table of strings. Empty keys and values are Java's null and left out."""
    try:
        return {key.decode(): value.decode() for key, value, _ in split_fields(raw) if key and value}
    except UnicodeDecodeError:
        raise ProtocolError("a field of a binary header is not UTF-8") from None


def decode_header(raw: bytes, cls: type[H]) -> H:
    """The own header, typed; by its remembered shape when there is one."""
    shape = _SHAPES.get((cls, len(raw)))
    if shape is not None:
        unpack, between, make = shape
        parts = unpack(raw)
        if parts[0::2] == between:
            try:
                return make(parts[1::2])  # type: ignore[no-any-return]
            except (ValueError, TypeError, msgspec.ValidationError):
                pass  # the slow way says precisely what is wrong
    header = header_from_fields(decode_fields(raw), cls)
    _remember(raw, cls)
    return header


def encode(
    code: int,
    flag: int,
    opaque: int,
    version: int,
    language: int | str | None,
    remark: str | None,
    fields: dict[str, str] | None,
) -> bytes:
    """A header in the compact form."""
    number = language_named(language) if isinstance(language, str) else language or 0
    text = remark.encode() if remark else b""
    run = encode_run(fields) if fields else b""
    version = min(version, 0x7FFF)
    return (
        _FIXED.pack(_int16(code), number, version, opaque, flag, len(text)) + text + _INT.pack(len(run)) + run
    )


def encode_run(fields: dict[str, str]) -> bytes:
    """The entries of a table of strings, back to back."""
    parts: list[bytes] = []
    for name, text in fields.items():
        key, value = name.encode(), text.encode()
        parts += (_SHORT.pack(len(key)), key, _INT.pack(len(value)), value)
    return b"".join(parts)


_Shape = tuple[Callable[[bytes], tuple[bytes, ...]], tuple[bytes, ...], Callable[[tuple[bytes, ...]], Any]]
_SHAPES: dict[tuple[type[Header], int], _Shape] = {}


def _remember(raw: bytes, cls: type[Header]) -> None:
    if len(_SHAPES) >= SHAPES_MAX:
        _SHAPES.clear()
    known = {field.encode_name: field for field in msgspec.structs.fields(cls)}
    layout, between, wanted, places = ">", [], [], []
    position = 0
    for place, (key, value, value_at) in enumerate(split_fields(raw)):
        if not value:
            return  # an absent value has no type to remember; such headers are rare
        layout += f"{value_at - position}s{len(value)}s"
        between.append(raw[position:value_at])
        position = value_at + len(value)
        field = known.get(key.decode())
        if field is not None:
            if without_none(field.type) not in _TYPES:
                return
            wanted.append((key, len(value)))
            places.append(place)
    if sum(map(len, between)) > SHAPE_BYTES_MAX:
        return
    if not 0 < len({key for key, _ in wanted}) == len(wanted) < 0x10000:
        return  # the last of two equal keys wins: left to the slow way
    # The values, with MessagePack's bytes between them instead of ours: lengths are those of the shape, so
    # that is one formatting, and one call into msgspec reads, checks and makes the header.
    heads = [_text_head(len(key)) + key + _text_head(length) for key, length in wanted]
    heads[0] = b"\xde" + _USHORT.pack(len(wanted)) + heads[0]
    template = b"".join(head.replace(b"%", b"%%") + b"%b" for head in heads)
    decode = msgspec.msgpack.Decoder(cls, strict=False).decode
    if places == list(range(len(between))):

        def make(values: tuple[bytes, ...]) -> Header:
            return decode(template % values)

    else:
        pick = itemgetter(*places)

        def make(values: tuple[bytes, ...]) -> Header:
            return decode(template % pick(values))

    _SHAPES[cls, len(raw)] = (struct.Struct(layout).unpack, tuple(between), make)


def encode_own(header: Header) -> bytes:
    """The entries of a typed header, straight from its attributes."""
    cls = type(header)
    keys = _KEYS.get(cls)
    if keys is None:
        keys = _KEYS[cls] = tuple(
            (attribute, _SHORT.pack(len(name.encode())) + name.encode()) for attribute, name in spelling(cls)
        )
    parts: list[bytes] = []
    for attribute, key in keys:
        value = getattr(header, attribute)
        if value is None:
            continue
        if value is True:
            parts += (key, b"\x00\x00\x00\x04true")
            continue
        if value is False:
            parts += (key, b"\x00\x00\x00\x05false")
            continue
        text = str(value).encode()
        parts += (key, _INT.pack(len(text)), text)
    return b"".join(parts)


def encode_answer(code: int, opaque: int, header: Header | None, remark: str | None) -> bytes:
    """The header of an answer of ours."""
    text = remark.encode() if remark else b""
    if header is None:
        run = b""
    else:
        run = OWN_WRITERS.get(type(header), encode_own)(header)
    return (
        _FIXED.pack(_int16(code), Language.PYTHON, VERSION, opaque, 1, len(text))
        + text
        + _INT.pack(len(run))
        + run
    )


# Shorter ways for the answers that come most often; see fast_codecs.py.
OWN_WRITERS: dict[type[Header], Callable[[Any], bytes]] = {}
_KEYS: dict[type[Header], tuple[tuple[str, bytes], ...]] = {}


def _int16(code: int) -> int:
    # Codes past 16 bits lose their high bits, as in RocketMQ. CUT_CODES restores those of POP.
    return (code + 0x8000 & 0xFFFF) - 0x8000


def _text_head(length: int) -> bytes:
    return b"\xdb" + _UINT.pack(length)


_TYPES = (str, bool, Int32, Int64, int)
