"""How a carrier writes down what it keeps: one line that says what it is, and a JSON document.

The line has the version, the CRC of the document and its length in bytes::

    kerolox-controller 1 8d5fe1a4 412
    {"cluster":"DefaultCluster","name":"broker-a",...}

What is something else is named and refused, and never written over: a controller that forgot its epochs could
not move brokers that know higher ones.
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
    """What is kept is damaged, or of something else."""

    next_step = (
        "restore a copy of it. Without one: stop the group's brokers, move it away, and remove "
        "brokerIdentity and epochFileCheckpoint from the brokers' stores, for they know higher epochs"
    )

    def __init__(self, where: object, what: str) -> None:
        self.where = str(where)
        super().__init__(sentences(f"the controller's state {where} cannot be used: {what}", self.next_step))


class StateUnreadable(StateUnusable):
    """The file or its directory cannot be read at the moment: nothing is known of what is kept."""

    next_step = "let the controller read and write it; if it may, look at the disk. Nothing was changed"


def encode(document: msgspec.Struct) -> bytes:
    body = msgspec.json.encode(document) + b"\n"
    return b"kerolox-controller %d %08x %d\n%b" % (VERSION, zlib.crc32(body), len(body), body)


def decode(data: bytes, kind: type[T], where: object) -> T:
    """The document. Raises StateUnusable, which names where it is."""
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
        raise StateUnusable(where, f"its document is something else ({error})") from error
