"""The command header as JSON. See FRAME.md.

Java writes the keys in alphabetical order, so the code comes first: the headers of the hot
conversations are told by their first bytes and decoded, envelope and own header, in one pass.
All others take two passes: the envelope, and the own header when it is asked for.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from kerolox.errors import ProtocolError
from kerolox.protocol.codes import VERSION, language_numbered
from kerolox.protocol.header import Header, check_field_count, decode_json_fields, encode_fields
from kerolox.protocol.json_dialect import STRICT_ERRORS, loads_header, loads_strict
from kerolox.protocol.limits import INT32_MAX, INT32_MIN

if TYPE_CHECKING:
    from kerolox.protocol.command import Command

H = TypeVar("H", bound=Header)

_EMPTY = b"{}"


class _Envelope(msgspec.Struct):
    code: int = 0
    flag: int = 0
    opaque: int | None = None
    version: int = 0
    language: int | str | None = "JAVA"
    remark: str | None = None
    extFields: msgspec.Raw = msgspec.Raw(b"")


_decode_envelope = msgspec.json.Decoder(_Envelope).decode
_decode_table = msgspec.json.Decoder(dict[str, str]).decode

# First eleven bytes of a header → decoder of envelope and own header in one pass.
_ONE_PASS: dict[bytes, Any] = {}


def decode_in_one_pass(code: int, cls: type[Header]) -> None:
    """Requests with this code carry this header and come often: decode them whole at once."""
    shape = msgspec.defstruct(
        f"_Hot{cls.__name__}",
        [
            ("code", int),
            ("opaque", int),
            ("extFields", cls),
            ("flag", int, 0),
            ("version", int, 0),
            ("language", int | str | None, "JAVA"),
            ("remark", str | None, None),
        ],
    )
    _ONE_PASS[(b'{"code":%d,' % code)[:11]] = (code, msgspec.json.Decoder(shape, strict=False).decode)


class UnusualHeader(ProtocolError):
    """A header that strict JSON does not explain: :func:`in_strict_spelling` reads it, if it can be read."""


def decode_into(command: Command, header: bytes) -> None:
    """Fill a command from the header bytes. Raises UnusualHeader, ProtocolError."""
    hot = _ONE_PASS.get(header[:11])
    if hot is not None:
        try:
            envelope = hot[1](header)
        except STRICT_ERRORS:
            pass  # not of these types, or no strict JSON: see below
        else:
            opaque = envelope.opaque
            # Eleven bytes cannot tell 310 from 3105, so the code is compared as well.
            if envelope.code == hot[0] and INT32_MIN <= opaque <= INT32_MAX:
                command.code = hot[0]
                command.opaque = opaque
                command.flag = envelope.flag
                command.version = envelope.version
                command.language = envelope.language
                command.remark = envelope.remark
                command._typed = envelope.extFields
                command._raw = None
                command._whole = header
                return
    try:
        plain = _decode_envelope(header)
    except STRICT_ERRORS:
        raise UnusualHeader("command header: not strict JSON of these types") from None
    code, opaque, flag, version = plain.code, plain.opaque, plain.flag, plain.version
    if opaque is None:
        raise ProtocolError("command header has no opaque: its answer could not be told from others")
    if not (
        INT32_MIN <= code <= INT32_MAX
        and INT32_MIN <= opaque <= INT32_MAX
        and INT32_MIN <= flag <= INT32_MAX
        and INT32_MIN <= version <= INT32_MAX
    ):
        for name in ("code", "opaque", "flag", "version"):
            value = getattr(plain, name)
            if not INT32_MIN <= value <= INT32_MAX:
                raise ProtocolError(f"command header: {name} {value} is no signed 32-bit number")
    command.code = code
    command.opaque = opaque
    command.flag = flag
    command.version = version
    command.language = plain.language
    command.remark = plain.remark
    raw = bytes(plain.extFields)
    command._raw = _EMPTY if not raw or raw == b"null" else raw


def decode_header(raw: bytes, cls: type[H]) -> H:
    """The own header of a command decoded here."""
    return decode_json_fields(raw, cls)


def decode_fields(raw: bytes) -> dict[str, str]:
    """The own header as a table of strings."""
    check_field_count(raw)
    try:
        return _decode_table(raw)
    except STRICT_ERRORS:
        fields = loads_strict(raw)
        if not isinstance(fields, dict):
            raise ProtocolError("command header: extFields is not an object") from None
        return {str(key): text_of(value) for key, value in fields.items() if value is not None}


def encode(
    code: int,
    flag: int,
    opaque: int,
    version: int,
    language: int | str | None,
    remark: str | None,
    fields: dict[str, str] | None,
) -> bytes:
    """A header as Java writes it: keys in alphabetical order, no spaces, absent things left out."""
    table: dict[str, object] = {"code": code}
    if fields is not None:
        table["extFields"] = fields
    table["flag"] = flag
    table["language"] = language if isinstance(language, str) else language_numbered(language or 0).name
    table["opaque"] = opaque
    if remark is not None:
        table["remark"] = remark
    table["serializeTypeCurrentRPC"] = "JSON"
    table["version"] = version
    return msgspec.json.encode(table)


# Header class → a quicker writer of its own fields, for answers that are given by the thousand.
OWN_WRITERS: dict[type[Header], Callable[[Any], bytes]] = {}

_TAIL = f',"serializeTypeCurrentRPC":"JSON","version":{VERSION}}}'.encode()


def encode_answer(code: int, opaque: int, header: Header | None, remark: str | None) -> bytes:
    """The header of an answer of ours."""
    if header is None:
        fields = _EMPTY
    else:
        write = OWN_WRITERS.get(type(header))
        fields = msgspec.json.encode(encode_fields(header)) if write is None else write(header)
    if remark is None:
        return b'{"code":%d,"extFields":%b,"flag":1,"language":"PYTHON","opaque":%d%b' % (
            code,
            fields,
            opaque,
            _TAIL,
        )
    return b'{"code":%d,"extFields":%b,"flag":1,"language":"PYTHON","opaque":%d,"remark":%b%b' % (
        code,
        fields,
        opaque,
        msgspec.json.encode(remark),
        _TAIL,
    )


def quoted(text: str) -> str:
    """A text as JSON has it; remembered, for the few that come again and again."""
    known = _QUOTED.get(text)
    if known is None:
        known = msgspec.json.encode(text).decode()
        if len(_QUOTED) > 64:
            _QUOTED.clear()
        if len(text) <= QUOTED_LENGTH_MAX:
            _QUOTED[text] = known
    return known


QUOTED_LENGTH_MAX = 256  # of a text that is remembered
_QUOTED: dict[str, str] = {}


def text_of(value: object) -> str:
    """A value of a foreign header as the text Java would have made of it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def own_fields(header: bytes) -> bytes:
    """The table of own fields inside a whole header that was decoded in one pass."""
    return bytes(_decode_envelope(header).extFields) or _EMPTY


def in_strict_spelling(header: bytes) -> bytes:
    """A header in the spelling that Java writes, from one that strict JSON refuses but Java takes: bare keys,
    numbers as text, enum ordinals."""
    try:
        table = loads_header(header)
    except ProtocolError as error:
        raise ProtocolError(f"command header: {error.what}", at=error.at) from None
    if not isinstance(table, dict):
        raise ProtocolError("command header is not a JSON object", at=0)
    plain: dict[str, object] = {}
    for name in _NUMBERS:
        value = table.get(name)
        if value is None:
            continue
        try:
            number = int(value) if not isinstance(value, str) else int(float(value))
        except (TypeError, ValueError, OverflowError):
            raise ProtocolError(f"command header: {name} {value!r} is no number") from None
        _check_width(name, number)
        plain[name] = number
    fields = table.get("extFields")
    if fields is not None and not isinstance(fields, dict):
        raise ProtocolError("command header: extFields is not an object")
    plain["extFields"] = {
        str(key): text_of(value) for key, value in (fields or {}).items() if value is not None
    }
    remark, language = table.get("remark"), table.get("language", "JAVA")
    plain["remark"] = None if remark is None else text_of(remark)
    is_known = isinstance(language, str) or (isinstance(language, int) and INT32_MIN <= language <= INT32_MAX)
    plain["language"] = language if is_known else None
    return msgspec.json.encode(plain)


_NUMBERS = ("code", "flag", "opaque", "version")


def _check_width(name: str, value: int) -> None:
    if not INT32_MIN <= value <= INT32_MAX:
        raise ProtocolError(f"command header: {name} {value} is no signed 32-bit number")
