"""The files of a store, read by nothing but their format: what is judged does not read itself."""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

MESSAGE = 0xDAA320A7
MESSAGE_2 = 0xDAA320AB  # its topic has two bytes of length
BLANK = 0xCBD43194
# size, magic, CRC of the body, queue, flag, queue offset, place, system flag, born, (born host)
HEAD = struct.Struct(">IIIiiqqiq")
# stored, (store host), times consumed again, place of the transaction's first half, (body)
SECOND = struct.Struct(">q")
ENTRY = struct.Struct(">qiq")  # of a queue: place, size, hash of the tag
BORN_V6, STORED_V6 = 1 << 4, 1 << 5


class Record(NamedTuple):
    topic: str
    queue: int
    offset: int
    place: int
    size: int
    body: bytes
    host: str = ""  # who stored it first


class Entry(NamedTuple):
    """Of a queue: where in the log the message lies."""

    place: int
    size: int


class BadLog(AssertionError):
    """Bytes that are no log; the message has the place."""


@dataclass(frozen=True)
class Log:
    """Bytes of a commit log, from ``begin`` on."""

    begin: int
    data: bytes

    @property
    def end(self) -> int:
        return self.begin + len(self.data)


def read_log(store: Path, end: int) -> Log:
    """The log of a store up to ``end``."""
    files = sorted((store / "commitlog").glob("[0-9]*"))
    if not files:
        return Log(end, b"")
    begin = int(files[0].name)
    parts = []
    at = begin
    for path in files:
        if at >= end:
            break
        if int(path.name) != at:
            raise BadLog(f"{path} comes next after {at}")
        data = path.read_bytes()
        parts.append(data[: end - at])
        at += len(data)
    if at < end:
        raise BadLog(f"the files of {store} end at {at}, and the log at {end}")
    return Log(begin, b"".join(parts))


def records_of(log: Log) -> list[Record]:
    """Every message of a log, in order. Raises BadLog for anything that is none."""
    records = []
    data, at = log.data, 0
    while at < len(data):
        if len(data) - at < 8:
            raise BadLog(f"the log ends in the middle of a record, at {log.begin + at}")
        size, magic = struct.unpack_from(">II", data, at)
        if size == 0 or at + size > len(data):
            raise BadLog(f"a record of {size} bytes at {log.begin + at}, and the log ends at {log.end}")
        if magic != BLANK:
            records.append(_record(data, at, log.begin + at, size, magic))
        at += size
    return records


def _record(data: bytes, at: int, place: int, size: int, magic: int) -> Record:
    if magic not in (MESSAGE, MESSAGE_2):
        raise BadLog(f"no record at {place}: it begins with {data[at : at + 8].hex()}")
    _, _, crc, queue, _, offset, own_place, flag, _ = HEAD.unpack_from(data, at)
    if own_place != place:
        raise BadLog(f"the record at {place} says it lies at {own_place}")
    where = at + HEAD.size + (20 if flag & BORN_V6 else 8) + SECOND.size
    host = _host(data[where : where + 20]) if flag & STORED_V6 else _host(data[where : where + 8])
    where += (20 if flag & STORED_V6 else 8) + 4 + 8
    (length,) = struct.unpack_from(">i", data, where)
    body = data[where + 4 : where + 4 + length]
    if len(body) != length or zlib.crc32(body) & 0x7FFFFFFF != crc & 0x7FFFFFFF:
        raise BadLog(f"the body of the record at {place} is not what was stored")
    where += 4 + length
    width = 1 if magic == MESSAGE else 2
    named = int.from_bytes(data[where : where + width])
    topic = data[where + width : where + width + named].decode()
    return Record(topic, queue, offset, place, size, body, host)


def _host(address: bytes) -> str:
    return f"{ip_address(address[:-4])}:{int.from_bytes(address[-4:])}"


def read_queue(store: Path, topic: str, queue: int, count: int) -> dict[int, Entry]:
    """The first ``count`` entries of a queue by their offset, as far as its files have them. They have no
    gaps, but may begin late."""
    entries = {}
    for path in sorted((store / "consumequeue" / topic / str(queue)).glob("[0-9]*")):
        begin = int(path.name) // ENTRY.size
        for number, (place, size, _) in enumerate(ENTRY.iter_unpack(path.read_bytes())):
            if size > 0 and begin + number < count:
                entries[begin + number] = Entry(place, size)
    return entries
