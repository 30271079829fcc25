"""Header lists: what a request may hold, and blocks of the headers that a server sends.

Blocks that a server sends use neither the dynamic table nor Huffman codes: responses of one service differ in
few bytes, so constant blocks cost less than smaller ones.
"""

from __future__ import annotations

from collections.abc import Iterable

Fields = list[tuple[bytes, bytes]]

# First byte of a connection's first block: the dynamic table of this encoder has no room (RFC 7541, 6.3).
NO_TABLE = b"\x20"

_STATUS = {b"200": b"\x88", b"204": b"\x89", b"400": b"\x8c", b"404": b"\x8d", b"500": b"\x8e"}
# Names of the static table that servers send, with their numbers (RFC 7541, appendix A).
_NUMBERS = {b":status": 8, b"content-length": 28, b"content-type": 31}
_FORBIDDEN = {b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade"}
_PSEUDO = {b":method", b":scheme", b":path", b":authority"}
_UPPER = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZ")


def _number(value: int, bits: int, first: int) -> bytes:
    """Return an integer with a prefix of `bits` bits (RFC 7541, 5.1)."""
    limit = (1 << bits) - 1
    if value < limit:
        return bytes((first | value,))
    out = bytearray((first | limit,))
    value -= limit
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def encode(fields: Iterable[tuple[bytes, bytes]]) -> bytes:
    """Return a header block that changes no table."""
    out = []
    for name, value in fields:
        known = _STATUS.get(value) if name == b":status" else None
        if known is not None:
            out.append(known)
            continue
        number = _NUMBERS.get(name)
        if number is None:
            out += (b"\x00", _number(len(name), 7, 0), name)
        else:
            out.append(_number(number, 4, 0))
        out += (_number(len(value), 7, 0), value)
    return b"".join(out)


def request_fault(fields: Fields) -> str | None:
    """Return why these fields are no request (RFC 9113, 8.2 and 8.3), or None."""
    seen: set[bytes] = set()
    is_regular = False
    for name, value in fields:
        if name[:1] == b":":
            if is_regular:
                return f"the pseudo-header {_text(name)} follows a regular header"
            if name not in _PSEUDO:
                return f"{_text(name)} is no pseudo-header of a request"
            if name in seen:
                return f"{_text(name)} is given twice"
            seen.add(name)
        else:
            is_regular = True
            fault = _field_fault(name, value)
            if fault:
                return fault
    for name in (b":method", b":scheme", b":path"):
        if name not in seen:
            return f"{_text(name)} is missing"
    if (b":path", b"") in fields:
        return ":path is empty"
    return None


def trailers_fault(fields: Fields) -> str | None:
    """Return why these fields are no trailers, or None."""
    for name, value in fields:
        if name[:1] == b":":
            return f"the trailers hold the pseudo-header {_text(name)}"
        fault = _field_fault(name, value)
        if fault:
            return fault
    return None


def content_length(fields: Fields) -> int | None:
    """Return the announced length of the body; None without one, -1 if it is no number or ambiguous."""
    found: int | None = None
    for name, value in fields:
        if name == b"content-length":
            if not value.isdigit() or len(value) > 18 or found not in (None, int(value)):
                return -1
            found = int(value)
    return found


def _field_fault(name: bytes, value: bytes) -> str | None:
    if not name or not _UPPER.isdisjoint(name) or b"\0" in name or b"\r" in name or b"\n" in name:
        return f"the header name {_text(name)} is empty, in upper case or holds a control character"
    if name in _FORBIDDEN or (name == b"te" and value != b"trailers"):
        return f"the header {_text(name)} belongs to HTTP/1.1"
    if b"\0" in value or b"\r" in value or b"\n" in value:
        return f"the value of {_text(name)} holds a control character"
    return None


def _text(name: bytes) -> str:
    return repr(name[:64].decode("latin-1"))
