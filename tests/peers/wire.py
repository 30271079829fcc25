"""One remoting request from a bare socket, for probes that must not depend on any client."""

from __future__ import annotations

import json
import socket
import struct
from dataclasses import dataclass
from typing import Any

UPDATE_BROKER_CONFIG = 25
GET_BROKER_CLUSTER_INFO = 106


@dataclass(frozen=True)
class Answer:
    code: int
    remark: str | None
    ext_fields: dict[str, str]
    body: bytes


def request(
    address: str,
    code: int,
    ext_fields: dict[str, str] | None = None,
    body: bytes = b"",
    timeout: float = 3.0,
) -> Answer:
    """Send one command with a JSON header and return the answer; OSError if that cannot be done."""
    host, _, port = address.rpartition(":")
    header = json.dumps(
        {
            "code": code,
            "language": "OTHER",
            "version": 0,
            "opaque": 1,
            "flag": 0,
            "extFields": ext_fields or {},
            "serializeTypeCurrentRPC": "JSON",
        }
    ).encode()
    with socket.create_connection((host, int(port)), timeout) as connection:
        connection.settimeout(timeout)
        total = 4 + len(header) + len(body)
        connection.sendall(struct.pack(">II", total, len(header)) + header + body)
        (length,) = struct.unpack(">I", _exactly(connection, 4))
        frame = _exactly(connection, length)
    # The top byte of the second length is the header's encoding.
    kind, header_length = frame[0], int.from_bytes(frame[1:4])
    raw, rest = frame[4 : 4 + header_length], frame[4 + header_length :]
    if kind == 1:
        # A server set to binary headers answers so whatever it was asked in; the code is enough here.
        return Answer(int.from_bytes(raw[:2]), None, {}, rest)
    fields: dict[str, Any] = json.loads(raw)
    return Answer(fields["code"], fields.get("remark"), fields.get("extFields") or {}, rest)


def _exactly(connection: socket.socket, count: int) -> bytes:
    data = bytearray()
    while len(data) < count:
        chunk = connection.recv(count - len(data))
        if not chunk:
            raise ConnectionError("the peer closed the connection")
        data += chunk
    return bytes(data)
