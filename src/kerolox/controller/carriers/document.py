"""Encoding of a carrier's data: a header line and a JSON document.

The line has the version, the CRC of the document and its length in bytes::

    kerolox-controller 1 8d5fe1a4 412
    {"cluster":"DefaultCluster","name":"broker-a",...}

Other content is reported and rejected, never overwritten: a controller that lost its epochs could not move
brokers that know higher ones.
"""

from __future__ import annotations

import re
import zlib
from typing import TypeVar

import msgspec

from kerolox.errors import KeroloxError, sentences

VERSION = 1

_HEAD = re.compile(rb"kerolox-controller (\d{1,9}) ([0-9a-f]{8}) (\d{1,9})\n")

T = TypeVar("T")


class StateUnusable(KeroloxError):
    """Stored data that is damaged or not a controller's state."""

    next_step = (
        "restore it from a backup. Without one: stop the group's brokers, move it away, and remove "
        "brokerIdentity and epochFileCheckpoint from the brokers' stores, because they contain higher epochs"
    )

    def __init__(self, where: object, what: str) -> None:
        self.where = str(where)
        super().__init__(sentences(f"the controller's state {where} cannot be used: {what}", self.next_step))


class StateUnreadable(StateUnusable):
    """The file or its directory cannot be read at the moment: its content is unknown."""

    next_step = "allow the controller to read and write it; or check the disk. Nothing was changed"


def encode(document: msgspec.Struct) -> bytes:
    body = msgspec.json.encode(document) + b"\n"
    return b"kerolox-controller %d %08x %d\n%b" % (VERSION, zlib.crc32(body), len(body), body)


def decode(data: bytes, kind: type[T], where: object) -> T:
    """Decode a document. Raises StateUnusable with its location."""
    head = _HEAD.match(data)
    if head is None:
        raise StateUnusable(where, f"it begins with {data[:40]!r}, not with kerolox-controller")
    version, crc, length = int(head[1]), int(head[2], 16), int(head[3])
    if version != VERSION:
        raise StateUnusable(where, f"it has version {version}, this program reads {VERSION}")
    body = data[head.end() :]
    if len(body) != length:
        raise StateUnusable(where, f"its document has {len(body)} bytes, the first line says {length}")
    if zlib.crc32(body) != crc:
        raise StateUnusable(
            where, f"the CRC of its document is {zlib.crc32(body):08x}, the first line says {crc:08x}"
        )
    try:
        return msgspec.json.decode(body, type=kind)
    except msgspec.DecodeError as error:
        raise StateUnusable(where, f"its document is not a controller's state ({error})") from error
