"""``brokerIdentity``: who a broker is in its group, as RocketMQ's brokers keep it in a file. No I/O.

A broker under a controller gets an id once and for all. While it asks for one it keeps what it asked for in
``brokerIdentity-temp``, with a code that lets it ask again: an answer may be lost.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from kerolox.errors import ProtocolError

IDENTITY_FILE = "brokerIdentity"
TEMPORARY_IDENTITY_FILE = "brokerIdentity-temp"
SET_SUFFIX = "-set"  # of the file beside it that has the newest in-sync set this broker knows; ours

_SEPARATOR = "#"
_ID = re.compile("[0-9]{1,19}")
_IDS_MAX = 2**63 - 1


class BrokerIdentity(NamedTuple):
    """A broker's place in its group. ``check_code`` is there while the id is only asked for."""

    cluster: str
    broker_name: str
    id: int
    check_code: str | None = None


def encode_identity(identity: BrokerIdentity) -> bytes:
    """The whole file. Raises ProtocolError for names that could not be read back."""
    parts = [identity.cluster, identity.broker_name, str(identity.id)]
    if identity.check_code is not None:
        parts.append(identity.check_code)
    for part in parts:
        if _SEPARATOR in part or not part:
            raise ProtocolError(f"{IDENTITY_FILE}: {part!r} in {parts}: expected text without {_SEPARATOR}")
    _check_id(identity.id)
    return _SEPARATOR.join(parts).encode()


def decode_identity(data: bytes) -> BrokerIdentity:
    """Either of the two files. Raises ProtocolError."""
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise ProtocolError(f"{IDENTITY_FILE}: {data[:80]!r} is no text", at=error.start) from None
    parts = text.strip().split(_SEPARATOR)
    if len(parts) not in (3, 4) or not all(parts) or not _ID.fullmatch(parts[2]):
        raise ProtocolError(
            f"{IDENTITY_FILE}: {text[:80]!r}, expected cluster#brokerName#id, or that with #checkCode"
        )
    _check_id(int(parts[2]))
    return BrokerIdentity(parts[0], parts[1], int(parts[2]), parts[3] if len(parts) == 4 else None)


def register_check_code(address: str, now_ms: int) -> str:
    """What makes a broker's request for an id its own: its address, and when it first asked."""
    return f"{address};{now_ms}"


def address_of_check_code(code: str) -> str:
    return code.partition(";")[0]


def _check_id(id: int) -> None:
    if not 1 <= id <= _IDS_MAX:
        raise ProtocolError(f"{IDENTITY_FILE}: id {id}, expected 1 to {_IDS_MAX}")
