"""HTTP/1: the head of a request, and answers with one body. For pages that scrapers and people look at."""

from __future__ import annotations

from base64 import b64decode
from collections.abc import Mapping
from typing import Final, NamedTuple

from kerolox.errors import KeroloxError

HEAD_BYTES_MAX: Final = 8192
FIELDS_MAX: Final = 64
HEAD_END: Final = b"\r\n\r\n"
_REASONS: Final = {
    200: "OK",
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    413: "Content Too Large",
    431: "Request Header Fields Too Large",
    500: "Internal Server Error",
    503: "Service Unavailable",
}


class HttpError(KeroloxError):
    """A request that is answered with this status."""

    def __init__(self, status: int, text: str) -> None:
        self.status = status
        super().__init__(text)


class HttpHead(NamedTuple):
    """The head of a request. Names of fields are in lower case."""

    method: str
    path: str
    query: str
    fields: Mapping[str, str]

    @property
    def credentials(self) -> tuple[str, str]:
        """User and password (RFC 7617), or two empty texts."""
        scheme, _, encoded = self.fields.get("authorization", "").partition(" ")
        if scheme.lower() != "basic":
            return "", ""
        try:
            user, _, password = b64decode(encoded.strip(), validate=True).decode().partition(":")
        except ValueError:
            raise HttpError(400, "the credentials are not Base64 of user:password") from None
        return user, password


def parse_head(head: bytes) -> HttpHead:
    """Parse the head of a request without its end. Raises HttpError."""
    first, *lines = head.decode("latin-1").split("\r\n")
    words = first.split(" ")
    if len(words) != 3 or not words[2].startswith("HTTP/1."):
        raise HttpError(400, "not an HTTP/1 request")
    if len(lines) > FIELDS_MAX:
        raise HttpError(431, f"{len(lines)} header fields, the limit is {FIELDS_MAX}")
    fields: dict[str, str] = {}
    for line in lines:
        name, colon, value = line.partition(":")
        name = name.lower()
        if not colon or not name or name != name.strip():  # a continued line, too (RFC 9112, 5.2)
            raise HttpError(400, f"not a header field: {line[:80]!r}")
        if name in fields and name in ("authorization", "content-length", "transfer-encoding"):
            raise HttpError(400, f"the header field {name} appears twice")
        fields[name] = value.strip()
    path, _, query = words[1].partition("?")
    return HttpHead(words[0], path, query, fields)


def check_no_body(head: HttpHead) -> None:
    """Raise HttpError if a body follows the head."""
    if "transfer-encoding" in head.fields or head.fields.get("content-length", "0") != "0":
        raise HttpError(413, "requests for pages have no body")


def encode_answer(
    status: int, content_type: str, body: bytes, fields: Mapping[str, str] = {}, *, with_body: bool = True
) -> bytes:
    """Return an answer after which the connection closes."""
    own = {
        "Content-Type": content_type,
        "Content-Length": str(len(body)),
        "Cache-Control": "no-store",
        "Connection": "close",
        **fields,
    }
    lines = [f"HTTP/1.1 {status} {_REASONS.get(status, 'Other')}"]
    lines += [f"{name}: {value}" for name, value in own.items()]
    head = "\r\n".join(lines).encode("latin-1", "replace")
    return head + HEAD_END + (body if with_body else b"")
