"""Access-key signatures of commands.

The signed text is every header field's value in the order of the field names, with nothing between
them, then the body; its HMAC-SHA1 under the secret key, as Base64, is the field ``Signature``.
"""

from __future__ import annotations

import hashlib
import hmac
from base64 import b64encode
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple

from kerolox.compiled import compiled

ACCESS_KEY: Final = "AccessKey"
SECURITY_TOKEN: Final = "SecurityToken"
SIGNATURE: Final = "Signature"
UNIQUE_KEY_QUERY: Final = "_UNIQUE_KEY_QUERY"
# Peers up to this version ordinal do not sign _UNIQUE_KEY_QUERY (they add it after signing).
UNSIGNED_QUERY_VERSION_MAX: Final = 399
# Clients add these after they signed.
ZONE_FIELDS: Final = frozenset({"__ZONE_NAME", "__ZONE_MODE"})

_BLOCK_BYTES: Final = 64  # of SHA-1

_NOTHING: Final[frozenset[str]] = frozenset()
_QUERY: Final = frozenset({UNIQUE_KEY_QUERY})


class Signer(NamedTuple):
    """A prepared key for frequent verification. Made by :func:`signer`."""

    access_key: bytes
    key: bytes  # the secret as the first block of HMAC

    def __repr__(self) -> str:  # never the secret
        return f"Signer({self.access_key!r})"

    def has_signed(self, fields: Mapping[str, str], body: bytes) -> bool:
        """Return whether these fields have this access key and the correct signature, without the exceptions
        that :func:`verify` allows."""
        if fields.get(ACCESS_KEY, "").encode("utf-8", "replace") != self.access_key:
            return False
        return _same(fields.get(SIGNATURE, ""), _signature_of(fields, body, self.key, _NOTHING))


def signer(access_key: str, secret_key: str) -> Signer:
    return Signer(access_key.encode(), _key(secret_key))


def _key(secret_key: str) -> bytes:
    key = secret_key.encode()
    if len(key) > _BLOCK_BYTES:
        key = hashlib.sha1(key).digest()
    return key.ljust(_BLOCK_BYTES, b"\0")


def signature(
    fields: Mapping[str, str], body: bytes | None, secret_key: str, left_out: frozenset[str] = _NOTHING
) -> str:
    """Return the signature of header fields and body. ``Signature`` itself is never part of it."""
    key, body = _key(secret_key), body or b""
    # Every signed request passes here.
    found = signature_of(fields, body, key, left_out) if type(fields) is dict else None
    return _signature_of(fields, body, key, left_out) if found is None else found


def _signature_of(fields: Mapping[str, str], body: bytes, key: bytes, left_out: frozenset[str]) -> str:
    """Return the signature by a prepared key. The compiled twin returns None for fields that it leaves to
    this function."""
    signed = [name for name in fields if name != SIGNATURE and name not in left_out]
    signed.sort(key=_code_units)
    text = "".join([fields[name] for name in signed]).encode("utf-8", "replace")
    return b64encode(hmac.digest(key, text + body, "sha1")).decode()


signature_of: Callable[[dict[str, str], bytes, bytes, frozenset[str]], str | None]
signature_of = compiled("signature_of", _signature_of)


def sign(
    fields: Mapping[str, str],
    body: bytes | None,
    access_key: str,
    secret_key: str,
    security_token: str | None = None,
) -> dict[str, str]:
    """Return the header fields with the access key and the signature added."""
    signed = {**fields, ACCESS_KEY: access_key}
    if security_token:
        signed[SECURITY_TOKEN] = security_token
    signed[SIGNATURE] = signature(signed, body, secret_key)
    return signed


def verify(fields: Mapping[str, str], body: bytes | None, secret_key: str, peer_version: int) -> bool:
    """Return whether the fields *as received* have the correct signature for this secret key."""
    given = fields.get(SIGNATURE)
    if not given:
        return False
    left_out = _QUERY if peer_version <= UNSIGNED_QUERY_VERSION_MAX else _NOTHING
    if _same(given, signature(fields, body, secret_key, left_out)):
        return True
    # RocketMQ's brokers reject clients with a zone; the two fields carry no right, so they are accepted here.
    if ZONE_FIELDS.isdisjoint(fields):
        return False
    return _same(given, signature(fields, body, secret_key, left_out | ZONE_FIELDS))


def _same(given: str, right: str) -> bool:
    return given.isascii() and hmac.compare_digest(given, right)


def _code_units(name: str) -> bytes:
    # Java sorts by UTF-16 code units; UTF-8 would put supplementary characters elsewhere.
    return name.encode("utf-16-be", "surrogatepass")
