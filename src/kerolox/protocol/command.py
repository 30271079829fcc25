"""Command: the content of one frame. Requests and answers have the same shape.

A decoded command keeps its own header as raw bytes; :meth:`Command.header` converts them to a typed header,
:attr:`Command.fields` to a table of strings (for signatures and tools). A form that is not used costs
nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from kerolox.protocol import header_binary, header_json
from kerolox.protocol.codes import (
    VERSION,
    Language,
    language_named,
    language_numbered,
    request_name,
    response_name,
)
from kerolox.protocol.frame import BINARY, JSON, pack_frame, pack_prefix
from kerolox.protocol.header import Header, decode_fields, encode_fields
from kerolox.protocol.signature import ACCESS_KEY, UNIQUE_KEY_QUERY, UNSIGNED_QUERY_VERSION_MAX, verify
from kerolox.protocol.signature_v2 import Stamp, verified_stamp
from kerolox.shown_text import shortened

H = TypeVar("H", bound=Header)

ANSWER = 1  # flag bit 0
ONE_WAY = 2  # flag bit 1: the receiver answers nothing, not even an error


class Command:
    """A request or an answer."""

    __slots__ = (
        "_fields",
        "_raw",
        "_typed",
        "_whole",
        "body",
        "code",
        "encoding",
        "flag",
        "language",
        "opaque",
        "remark",
        "version",
    )

    def __init__(
        self,
        code: int,
        *,
        opaque: int = 0,
        flag: int = 0,
        fields: dict[str, str] | None = None,
        remark: str | None = None,
        body: bytes = b"",
        language: int | str | None = Language.PYTHON,
        version: int = VERSION,
        encoding: int = JSON,
    ) -> None:
        self.code = code
        self.opaque = opaque
        self.flag = flag
        self.remark = remark
        self.body = body
        self.language = language
        self.version = version
        self.encoding = encoding
        self._raw: bytes | None = None
        self._whole: bytes | None = None  # the whole JSON header, when decoded in one pass
        self._typed: Header | None = None
        self._fields = fields

    @property
    def is_answer(self) -> bool:
        return bool(self.flag & ANSWER)

    @property
    def is_one_way(self) -> bool:
        return bool(self.flag & ONE_WAY)

    @property
    def fields(self) -> dict[str, str]:
        """The own header as strings, exactly as received, including unknown entries."""
        if self._fields is None:
            if self._whole is not None:
                self._raw = header_json.own_fields(self._whole)
            if self._raw is None:
                self._fields = {} if self._typed is None else encode_fields(self._typed)
            elif self.encoding == BINARY:
                self._fields = header_binary.decode_fields(self._raw)
            else:
                self._fields = header_json.decode_fields(self._raw)
        return self._fields

    def header(self, cls: type[H]) -> H:
        """Return the own header, typed. Raises InvalidRequest if a required field is missing or wrong."""
        typed = self._typed
        if type(typed) is cls:
            return typed
        if self._raw is None:
            return decode_fields(self.fields, cls)
        decode = header_binary.decode_header if self.encoding == BINARY else header_json.decode_header
        decoded = self._typed = decode(self._raw, cls)
        return decoded

    # The signature: see kerolox.front.proof.

    @property
    def user(self) -> str:
        """The access key of a request as received; an empty text if it has none."""
        return self.fields.get(ACCESS_KEY, "")

    def holds(self, secret: str, /, *, any_release: bool = False) -> bool:
        """Return whether a request as received carries the signature of this secret."""
        fields = self.fields
        if verify(fields, self.body, secret, self.version):
            return True
        if not any_release or UNIQUE_KEY_QUERY not in fields:
            return False
        # Releases differ in whether they sign this field, and some do not follow their version. It carries no
        # right.
        other = 0 if self.version > UNSIGNED_QUERY_VERSION_MAX else UNSIGNED_QUERY_VERSION_MAX + 1
        return verify(fields, self.body, secret, other)

    def stamp(self, secret: str, /) -> Stamp | None:
        """Return the stamp of a request as received if it carries a right signature of form 2."""
        return verified_stamp(self.code, self.is_one_way, self.fields, self.body, secret)

    def encode(self) -> bytes:
        """Return the whole frame."""
        encode = header_binary.encode if self.encoding == BINARY else header_json.encode
        return pack_frame(
            self.encoding,
            encode(
                self.code,
                self.flag,
                self.opaque,
                self.version,
                self.language,
                self.remark,
                self.fields or None,
            ),
            self.body,
        )

    def __repr__(self) -> str:
        name = response_name(self.code) if self.is_answer else request_name(self.code)
        kind = "answer" if self.is_answer else "one-way" if self.is_one_way else "request"
        return f"<{kind} {name} opaque={self.opaque} fields={self.fields} body={len(self.body)} bytes>"


def request(
    code: int,
    header: Header | None = None,
    body: bytes = b"",
    *,
    opaque: int,
    one_way: bool = False,
    fields: dict[str, str] | None = None,
    encoding: int = JSON,
) -> Command:
    """Return an outgoing request. ``fields`` are added to those of the header (signatures, namespaces)."""
    own = encode_fields(header) if header is not None else {}
    if fields:
        own.update(fields)
    return Command(
        code, opaque=opaque, flag=ONE_WAY if one_way else 0, fields=own, body=body, encoding=encoding
    )


def decode_command(encoding: int, header: bytes, body: bytes, *, is_strict: bool = False) -> Command:
    """A command from one frame. Raises ProtocolError when the header cannot be read; if ``is_strict``,
    UnusualHeader for JSON in an unusual spelling, which costs a hundred times as much to read."""
    command = Command.__new__(Command)
    command.body = body
    command.encoding = encoding
    command._fields = None
    command._typed = None
    command._whole = None
    if encoding == JSON:
        try:
            header_json.decode_into(command, header)
        except header_json.UnusualHeader:
            if is_strict:
                raise
            header_json.decode_into(command, header_json.in_strict_spelling(header))
    else:
        header_binary.decode_into(command, encoding, header)
    return command


def language_of(command: Command) -> Language:
    """Return the peer's programming language, as in this command."""
    told = command.language
    return language_named(told) if isinstance(told, str) else language_numbered(told or 0)


def encode_answer(
    encoding: int,
    opaque: int,
    code: int,
    header: Header | None = None,
    remark: str | None = None,
    body: bytes | Sequence[bytes] = b"",
) -> bytes:
    """Return the whole frame of an outgoing answer."""
    parts = (body,) if isinstance(body, bytes) else body
    return b"".join((answer_head(encoding, opaque, code, header, remark, sum(map(len, parts))), *parts))


def answer_head(
    encoding: int, opaque: int, code: int, header: Header | None, remark: str | None, body_length: int
) -> bytes:
    """Return the part of an answer's frame before its body, for callers that write a long body separately."""
    if remark is not None:
        remark = shortened(remark)
    if encoding == BINARY:
        head = header_binary.encode_answer(code, opaque, header, remark)
    else:
        head = header_json.encode_answer(code, opaque, header, remark)
    return pack_prefix(encoding, len(head), body_length) + head
