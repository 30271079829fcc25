"""JSON as RocketMQ's Java side writes and reads it.

fastjson emits two things no JSON parser takes: maps with integer keys write them bare,
``{0:"10.0.0.1:10911"}``, and maps with object keys write the object in the key's place,
``{{"queueId":0}:5}``. It reads more than that: bare words as keys, single quotes, stray commas,
comments. :func:`loads` reads all of it; :func:`dumps` writes compact JSON that Java of every
version and the strict Go client take.

What :func:`loads` returns: ``dict``, ``list``, ``str``, ``int``, ``float``, ``bool``, ``None``. Keys are
``str`` however they were written (``0`` and ``"0"`` are one key), except object keys: those are
:class:`ObjectKey`, a mapping that can be hashed.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from itertools import accumulate
from json.encoder import encode_basestring, encode_basestring_ascii
from math import isfinite
from typing import Any

import msgspec

from kerolox.errors import ProtocolError
from kerolox.protocol.limits import (
    DIALECT_HEADER_BYTES_MAX,
    DIALECT_HEADER_STEPS_MAX,
    JSON_BYTES_MAX,
    JSON_DEPTH_MAX,
    JSON_NUMBER_LENGTH_MAX,
    JSON_SCAN_STEPS_MAX,
)

__all__ = ["STRICT_ERRORS", "ObjectKey", "dumps", "loads", "loads_header", "loads_strict"]

# Errors of the strict reader for any bytes. Deeply nested ones exhaust the stack.
STRICT_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class ObjectKey(Mapping[str, Any]):
    """An object in the place of a key."""

    __slots__ = ("_frozen", "_members")

    def __init__(self, members: dict[Any, Any]) -> None:
        self._members = members
        self._frozen = frozenset((key, _freeze(value)) for key, value in members.items())

    def __getitem__(self, key: str) -> Any:
        return self._members[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def __hash__(self) -> int:
        return hash(self._frozen)

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ObjectKey):
            return self._frozen == other._frozen
        return bool(self._members == other)

    def __repr__(self) -> str:
        return f"ObjectKey({self._members!r})"


def _freeze(value: Any) -> Any:
    if isinstance(value, dict):
        return ObjectKey(value)
    if isinstance(value, list):
        return tuple(_freeze(item) for item in value)
    return value


# --- reading --------------------------------------------------------------------------------------

# Possessive, and an open string reaches to the end: no input makes these look twice at a character.
_STRING = r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)'
_ALL_BUT_BRACKETS = re.compile((_STRING + r"|[^\[\]{}\"]+").encode(), re.DOTALL)
_BRACKET_STEP = bytes.maketrans(b"[{]}", b"\x01\x01\x00\x00")
# A whole string, to step over it, or a bare integer in a key's place.
_BARE_INTEGER_KEY = re.compile((_STRING + r"|([{,]\s*+)(-?\d++)(?=\s*+:)").encode(), re.DOTALL)


def loads(
    data: bytes | bytearray | memoryview | str,
    *,
    dialect_bytes_max: int = JSON_BYTES_MAX,
    steps_max: int = JSON_SCAN_STEPS_MAX,
) -> Any:
    """Decode one JSON text, strict or of the dialect. Raises ProtocolError for anything else."""
    raw = data.encode("utf-8", "replace") if isinstance(data, str) else bytes(data)
    if len(raw) > JSON_BYTES_MAX:
        raise ProtocolError(f"JSON of {len(raw)} bytes is longer than JSON_BYTES_MAX, {JSON_BYTES_MAX}")
    strict = _loads_strict(raw)
    if strict is not _REFUSED:
        return strict
    if len(raw) > dialect_bytes_max:
        raise ProtocolError(
            f"{len(raw)} bytes that are not strict JSON (RFC 8259). Other spellings of JSON are read up to "
            f"{dialect_bytes_max} bytes here"
        )
    # Integer keys are by far the most common departure, and whole offset tables are made of them:
    # quoting them in one pass and reading strictly again is many times faster than the scanner.
    quoted, count = _BARE_INTEGER_KEY.subn(_quote_key, raw)
    if count:
        strict = _loads_strict(quoted)
        if strict is not _REFUSED:
            return strict
    return _Scanner(raw.decode("utf-8", "replace"), steps_max).whole()


def loads_header(raw: bytes) -> Any:
    """Decode a command header or a part of one. Its sender is not known yet, so the dialect has lower
    limits."""
    return loads(raw, dialect_bytes_max=DIALECT_HEADER_BYTES_MAX, steps_max=DIALECT_HEADER_STEPS_MAX)


def loads_strict(raw: bytes) -> Any:
    """Read a part of a command header whose whole was strict JSON. It may have bytes that are not UTF-8,
    which Java replaces, and values of other types, but its spelling needs no scanner."""
    value = _loads_strict(raw)
    if value is _REFUSED:
        value = _loads_strict(raw.decode("utf-8", "replace").encode())
    if value is _REFUSED:
        raise ProtocolError("extFields cannot be read: its values are no texts, or numbers beyond 64 bits")
    return value


_REFUSED: Any = object()


def _loads_strict(raw: bytes) -> Any:
    try:
        value = msgspec.json.decode(raw)
    except STRICT_ERRORS:
        return _REFUSED
    if raw.count(b"[") + raw.count(b"{") > JSON_DEPTH_MAX and not _is_shallow(raw):
        brackets = _ALL_BUT_BRACKETS.sub(b"", raw).translate(_BRACKET_STEP)
        depth = max(accumulate(1 if step else -1 for step in brackets), default=0)
        if depth > JSON_DEPTH_MAX:
            raise ProtocolError(f"JSON nests {depth} levels, more than JSON_DEPTH_MAX, {JSON_DEPTH_MAX}")
    return value


def _is_shallow(raw: bytes) -> bool:
    """Return whether strict JSON certainly does not nest deeper than allowed: fast, and False in case of
    doubt."""
    if b"\\" in raw:
        return False  # a quote may be escaped
    outside_strings = b"".join(raw.split(b'"')[::2])
    pairs = outside_strings.translate(_PAIRS, _NO_BRACKETS)
    for _ in range(JSON_DEPTH_MAX):
        if not pairs:
            return True
        pairs = pairs.replace(b"()", b"")  # the innermost level
    return not pairs


_PAIRS = bytes.maketrans(b"[{]}", b"(())")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[{]}"))


def _quote_key(match: re.Match[bytes]) -> bytes:
    lead, key = match.groups()
    return match[0] if key is None else b'%b"%b"' % (lead, key)


_SPACE = re.compile(r"(?:[\s\ufeff\0]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_SPACE_OR_COMMA = re.compile(r"(?:[\s\ufeff\0,]+|//[^\n]*|/\*.*?\*/)*", re.DOTALL)
_NUMBER = re.compile(r"([+-]?(?:\d+(\.\d*)?|(\.\d+))([eE][+-]?\d+)?)[bBsSlLfFdD]?(?![\w.])")
_WORD = re.compile(r"[-+]?[^\W\d][\w$]*")
_BARE_KEY = re.compile(r"[^\s:,{}\[\]\"'/]+")
_WORDS: dict[str, Any] = {
    "true": True,
    "false": False,
    "null": None,
    "undefined": None,
    "NaN": float("nan"),
    "Infinity": float("inf"),
    "+Infinity": float("inf"),
    "-Infinity": float("-inf"),
}
_PLAIN = {'"': re.compile(r'[^"\\]*'), "'": re.compile(r"[^'\\]*")}
_ESCAPE = re.compile(r"""\\(?:u([0-9a-fA-F]{4})|x([0-9a-fA-F]{2})|([0-7])|(["'\\/bfFnrtv]))""")
_ESCAPED = {"b": "\b", "f": "\f", "F": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
_LONE_SURROGATE = re.compile("[\ud800-\udfff]")


class _Scanner:
    """Parser of text that the strict parser rejected, by single characters where needed."""

    def __init__(self, text: str, steps_max: int) -> None:
        self.text = text
        self.steps = 0
        self.steps_max = steps_max

    def step(self, position: int) -> None:
        """Count one more value, key or escape. Each takes about a microsecond to read."""
        self.steps += 1
        if self.steps > self.steps_max:
            raise self.error(f"strict JSON after {self.steps_max} steps (JSON_SCAN_STEPS_MAX)", position)

    def whole(self) -> Any:
        value, position = self.value(self.space(0), 0)
        position = self.space(position)
        if position < len(self.text):
            raise self.error("nothing more after the value", position)
        return value

    def error(self, expected: str, position: int) -> ProtocolError:
        found = self.text[position : position + 12]
        at = len(self.text[:position].encode("utf-8", "replace"))
        return ProtocolError(f"JSON: expected {expected}, found {found!r}", at=at)

    def space(self, position: int) -> int:
        match = _SPACE.match(self.text, position)
        assert match is not None  # it matches nothing at all, too
        return match.end()

    def commas(self, position: int) -> int:
        match = _SPACE_OR_COMMA.match(self.text, position)
        assert match is not None
        return match.end()

    def value(self, position: int, depth: int) -> tuple[Any, int]:
        self.step(position)
        head = self.text[position : position + 1]
        if head == "{":
            return self.members(position + 1, depth + 1)
        if head == "[":
            return self.items(position + 1, depth + 1)
        if head == '"' or head == "'":
            return self.string(head, position)
        number = _NUMBER.match(self.text, position)
        if number is not None:
            return self.number(number, position), number.end()
        word = _WORD.match(self.text, position)
        if word is not None and word[0] in _WORDS:
            return _WORDS[word[0]], word.end()
        raise self.error("a value", position)

    def number(self, match: re.Match[str], position: int) -> int | float:
        text, fraction, bare_fraction, exponent = match.groups()
        if len(text) > JSON_NUMBER_LENGTH_MAX:
            raise self.error(f"a number of at most {JSON_NUMBER_LENGTH_MAX} characters", position)
        if fraction or bare_fraction or exponent:
            return float(text)
        return int(text)

    def members(self, position: int, depth: int) -> tuple[dict[Any, Any], int]:
        if depth > JSON_DEPTH_MAX:
            raise self.error(f"at most JSON_DEPTH_MAX, {JSON_DEPTH_MAX}, levels", position - 1)
        found: dict[Any, Any] = {}
        position = self.commas(position)
        while not self.text.startswith("}", position):
            key, position = self.key(position, depth)
            position = self.space(position)
            if not self.text.startswith(":", position):
                raise self.error("a colon after the key", position)
            found[key], position = self.value(self.space(position + 1), depth)
            position = self.after_item("}", position)
        return found, position + 1

    def items(self, position: int, depth: int) -> tuple[list[Any], int]:
        if depth > JSON_DEPTH_MAX:
            raise self.error(f"at most JSON_DEPTH_MAX, {JSON_DEPTH_MAX}, levels", position - 1)
        found: list[Any] = []
        position = self.commas(position)
        while not self.text.startswith("]", position):
            item, position = self.value(position, depth)
            found.append(item)
            position = self.after_item("]", position)
        return found, position + 1

    def after_item(self, close: str, position: int) -> int:
        position = self.space(position)
        if self.text.startswith(close, position):
            return position
        if self.text.startswith(",", position):
            return self.commas(position)
        raise self.error(f"a comma or {close}", position)

    def key(self, position: int, depth: int) -> tuple[Any, int]:
        head = self.text[position : position + 1]
        if head == '"' or head == "'":
            return self.string(head, position)
        if head == "{" or head == "[":
            value, position = self.value(position, depth)
            return _freeze(value), position
        bare = _BARE_KEY.match(self.text, position)
        if bare is None:
            raise self.error("a key", position)
        return bare[0], bare.end()

    def string(self, quote: str, start: int) -> tuple[str, int]:
        text = self.text
        plain = _PLAIN[quote]
        pieces: list[str] = []
        position = start + 1
        while True:
            run = plain.match(text, position)
            assert run is not None
            pieces.append(run[0])
            position = run.end()
            if text.startswith(quote, position):
                break
            self.step(position)
            escape = _ESCAPE.match(text, position)
            if escape is None:
                what = "an escape sequence" if position < len(text) else "a closing quote"
                raise self.error(what, position)
            unicode, latin, octal, letter = escape.groups()
            if letter is not None:
                pieces.append(_ESCAPED.get(letter, letter))
            elif octal is not None:
                pieces.append(chr(int(octal)))
            else:
                pieces.append(chr(int(unicode or latin, 16)))
            position = escape.end()
        value = "".join(pieces)
        if _LONE_SURROGATE.search(value):
            # Two escapes make one character; half of one cannot be written as UTF-8 any more.
            value = value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        return value, position + 1


# --- writing --------------------------------------------------------------------------------------


def dumps(value: object, *, quote_integer_keys: bool = True, ascii_only: bool = False) -> bytes:
    """Write compact JSON: keys in alphabetical order, absent (None) members left out.

    Struct fields have their wire names, enums their value, sets are written as sorted arrays and
    bytes as base64. Integer keys are quoted, which all peers read; ``quote_integer_keys=False``
    writes them bare, as Java does to clients before 4.9.4. Object keys are written bare: Java
    before fastjson 1.2.66 reads no other form.
    """
    writer = _Writer(quote_integer_keys, ascii_only)
    writer.write(value)
    return "".join(writer.out).encode("utf-8", "replace")


class _Writer:
    __slots__ = ("out", "quote_integers", "text")

    def __init__(self, quote_integers: bool, ascii_only: bool) -> None:
        self.out: list[str] = []
        self.quote_integers = quote_integers
        self.text = encode_basestring_ascii if ascii_only else encode_basestring

    def write(self, value: Any) -> None:
        out = self.out
        if isinstance(value, str):
            out.append(self.text(value))
        elif value is None:
            out.append("null")
        elif value is True:
            out.append("true")
        elif value is False:
            out.append("false")
        elif isinstance(value, int):
            out.append(int.__repr__(value))
        elif isinstance(value, float):
            # Java's writer encodes NaN and infinities as null.
            out.append(float.__repr__(value) if isfinite(value) else "null")
        elif isinstance(value, msgspec.Struct):
            self.struct(value)
        elif isinstance(value, Mapping):
            self.mapping(value)
        elif isinstance(value, set | frozenset):
            self.array(sorted(value))
        elif isinstance(value, list | tuple):
            self.array(value)
        elif isinstance(value, bytes | bytearray):
            out.append(f'"{base64.b64encode(value).decode()}"')
        elif isinstance(value, Enum):
            self.write(value.value)
        else:
            raise TypeError(f"cannot write {type(value).__name__} as JSON: {value!r}")

    def struct(self, value: msgspec.Struct) -> None:
        out = self.out
        if _is_plain(type(value)):
            written = _encode_plain(value)
            if self.text is encode_basestring or written.isascii():
                out.append(written)
                return
        comma = "{"
        for attribute, lead in _members_of(type(value)):
            member = getattr(value, attribute)
            if member is None:
                continue
            # Shortcut for the types of nearly all members.
            kind = type(member)
            if kind is int:
                out.append(f"{comma}{lead}{member}")
            elif kind is str:
                out.append(f"{comma}{lead}{self.text(member)}")
            elif kind is bool:
                out.append(f"{comma}{lead}true" if member else f"{comma}{lead}false")
            else:
                out.append(comma)
                out.append(lead)
                self.write(member)
            comma = ","
        out.append("{}" if comma == "{" else "}")

    def mapping(self, value: Mapping[Any, Any]) -> None:
        out = self.out
        comma = "{"
        for key in sorted(value, key=_key_order) if len(value) > 1 else value:
            member = value[key]
            if member is None:
                continue
            out.append(comma)
            if isinstance(key, str):
                out.append(self.text(key))
            elif isinstance(key, bool):
                out.append('"true"' if key else '"false"')
            elif isinstance(key, int):
                out.append(f'"{key:d}"' if self.quote_integers else f"{key:d}")
            else:
                self.write(key)
            out.append(":")
            self.write(member)
            comma = ","
        out.append("{}" if comma == "{" else "}")

    def array(self, items: list[Any] | tuple[Any, ...]) -> None:
        out = self.out
        comma = "["
        for item in items:
            out.append(comma)
            self.write(item)
            comma = ","
        out.append("[]" if comma == "[" else "]")


def _encode_plain(value: msgspec.Struct) -> str:
    """How a struct of nothing but texts, whole numbers and tables of texts is written: by msgspec, in a part
    of the time. Whole tables of topics are made of these."""
    try:
        return _encode_sorted(value).decode()
    except UnicodeEncodeError:  # half a character, which becomes a question mark as everywhere
        fields = {name: getattr(value, name) for name in value.__struct_fields__}
        mended = {name: _mended(member) for name, member in fields.items()}
        return _encode_sorted(type(value)(**mended)).decode()


def _mended(member: Any) -> Any:
    if isinstance(member, str):
        return member.encode("utf-8", "replace").decode()
    if isinstance(member, dict):
        return {_mended(key): _mended(text) for key, text in member.items()}
    return member


_encode_sorted = msgspec.json.Encoder(order="sorted").encode
_PLAIN_KINDS = (str, int, bool, dict[str, str])
_IS_PLAIN: dict[type[msgspec.Struct], bool] = {}


def _is_plain(cls: type[msgspec.Struct]) -> bool:
    plain = _IS_PLAIN.get(cls)
    if plain is None:
        plain = _IS_PLAIN[cls] = all(field.type in _PLAIN_KINDS for field in msgspec.structs.fields(cls))
    return plain


def _key_order(key: Any) -> tuple[int, Any]:
    if isinstance(key, str):
        return 0, key
    if isinstance(key, int):
        return 1, key
    if isinstance(key, msgspec.Struct):
        return 2, msgspec.structs.astuple(key)
    return 3, repr(key)


_MEMBERS: dict[type[msgspec.Struct], tuple[tuple[str, str], ...]] = {}


def _members_of(cls: type[msgspec.Struct]) -> tuple[tuple[str, str], ...]:
    members = _MEMBERS.get(cls)
    if members is None:
        spelled = sorted(zip(cls.__struct_encode_fields__, cls.__struct_fields__, strict=True))
        members = _MEMBERS[cls] = tuple((attribute, f'"{name}":') for name, attribute in spelled)
    return members
