"""``brokerIdentity``: a broker's identity in its group, in the file format of RocketMQ's brokers. No I/O.

A broker under a controller receives one permanent id. While it requests one, it keeps the request in
``brokerIdentity-temp``, with a code that lets it repeat the request, because the answer may be lost.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from kerolox.errors import ProtocolError

IDENTITY_FILE = "brokerIdentity"
TEMPORARY_IDENTITY_FILE = "brokerIdentity-temp"
SET_SUFFIX = "-set"  # suffix of kerolox's file with the newest in-sync set that this broker knows

_SEPARATOR = "#"
_ID = re.compile("[0-9]{1,19}")
_IDS_MAX = 2**63 - 1


class BrokerIdentity(NamedTuple):
    """A broker's identity in its group. ``check_code`` is set only while the id is being requested."""

    cluster: str
    broker_name: str
    id: int
    check_code: str | None = None


def encode_identity(identity: BrokerIdentity) -> bytes:
    """Encode the file. Raises ProtocolError for names that could not be decoded."""
    parts = [identity.cluster, identity.broker_name, str(identity.id)]
    if identity.check_code is not None:
        parts.append(identity.check_code)
    for part in parts:
        if _SEPARATOR in part or not part:
            raise ProtocolError(f"{IDENTITY_FILE}: {part!r} in {parts}: expected text without {_SEPARATOR}")
    _check_id(identity.id)
    return _SEPARATOR.join(parts).encode()


def decode_identity(data: bytes) -> BrokerIdentity:
    """Decode either of the two files. Raises ProtocolError."""
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
    """Return the code that identifies a broker's request for an id: its address and the time of the first
    request."""
    return f"{address};{now_ms}"


def address_of_check_code(code: str) -> str:
    return code.partition(";")[0]


def _check_id(id: int) -> None:
    if not 1 <= id <= _IDS_MAX:
        raise ProtocolError(f"{IDENTITY_FILE}: id {id}, expected 1 to {_IDS_MAX}")
