"""Signatures of form 2: over all that a request says, and good for one use.

RocketMQ's signature (:mod:`kerolox.protocol.signature`) joins the values of the fields. It covers neither the
request code nor where one value ends and the next begins, and it has no time: a recorded request can be sent
again, with another code and the same text divided anew. This one is kerolox's own. It travels beside the
other, as the field ``SignatureV2``, and covers

- the request code, and whether the request is one-way;
- the name and the value of each field, and the body, each with its length;
- the time, and a session and a number that are used together once.

The field is URL-safe Base64 of

| bytes | |
|---|---|
| 8 | time of signing, ms since 1970 |
| 8 | session: random, one for each signing program |
| 8 | number: from 1 on, one more for each request of the session |
| 32 | HMAC-SHA-256 with the secret key |

All numbers are big-endian. RocketMQ's servers take the field for one that they do not know.
"""

from __future__ import annotations

import hmac
import struct
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Mapping
from typing import Final, NamedTuple

from kerolox.protocol.signature import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE

SIGNATURE_V2: Final = "SignatureV2"
# Credentials of the sender; only the receiving server may use them.
CREDENTIAL_FIELDS: Final = frozenset({ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, SIGNATURE_V2})

_STAMP: Final = struct.Struct(">q8sQ")
_HEAD: Final = struct.Struct(">i?I")  # code, one-way, number of fields
_LENGTH: Final = struct.Struct(">I")
_MAC_BYTES: Final = 32
_TEXT_BYTES: Final = 76  # 56 bytes as Base64
_PURPOSE: Final = b"kerolox request signature, form 2\n"
_NOT_SIGNED: Final = frozenset({SIGNATURE, SIGNATURE_V2})


class Stamp(NamedTuple):
    """When a request was signed, and the number that is used once."""

    time_ms: int
    session: bytes
    number: int


def signature_v2(
    code: int, one_way: bool, fields: Mapping[str, str], body: bytes, secret_key: str, stamp: Stamp
) -> str:
    """Return the value of ``SignatureV2`` for a request."""
    head = _STAMP.pack(*stamp)
    return urlsafe_b64encode(head + _mac(code, one_way, fields, body, secret_key, head)).decode()


def verified_stamp(
    code: int, one_way: bool, fields: Mapping[str, str], body: bytes, secret_key: str
) -> Stamp | None:
    """Return the stamp of a request whose fields *as received* carry the right signature; else None."""
    text = fields.get(SIGNATURE_V2, "")
    if len(text) != _TEXT_BYTES or not text.isascii():
        return None
    try:
        data = urlsafe_b64decode(text)
    except ValueError:
        return None
    if len(data) != _STAMP.size + _MAC_BYTES:
        return None
    head, given = data[: _STAMP.size], data[_STAMP.size :]
    if not hmac.compare_digest(given, _mac(code, one_way, fields, body, secret_key, head)):
        return None
    return Stamp(*_STAMP.unpack(head))


def _mac(
    code: int, one_way: bool, fields: Mapping[str, str], body: bytes, secret_key: str, stamp: bytes
) -> bytes:
    signed = sorted((name.encode("utf-8", "replace"), name) for name in fields if name not in _NOT_SIGNED)
    parts = [_PURPOSE, stamp, _HEAD.pack(code, one_way, len(signed))]
    for encoded, name in signed:
        value = fields[name].encode("utf-8", "replace")
        parts += (_LENGTH.pack(len(encoded)), encoded, _LENGTH.pack(len(value)), value)
    parts += (_LENGTH.pack(len(body)), body)
    return hmac.digest(secret_key.encode(), b"".join(parts), "sha256")
