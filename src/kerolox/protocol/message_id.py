"""The two ids of a message, both upper-case hex. See MESSAGE.md, "Ids".

The *offset id* is the position of a message: broker host and physical offset. The broker assigns it. The
*unique key* is created by the sender before the send, and every copy keeps it.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from datetime import datetime, tzinfo
from typing import Final, NamedTuple

from kerolox.errors import InvalidRequest

_OFFSET = struct.Struct(">q")
_KEY_TAIL = struct.Struct(">HiIH")

# A clock set back by less than this is taken for a correction of the clock; the key then says 0.
_CLOCK_STEP_MS_MAX: Final = 1_000_000


def offset_id(store_host: bytes, physical_offset: int) -> str:
    """Return the id of the message at a physical offset of the broker at ``store_host``."""
    return f"{store_host.hex().upper()}{physical_offset & 0xFFFF_FFFF_FFFF_FFFF:016X}"


def offset_id_prefix(store_host: bytes) -> str:
    """Return the part of the offset id that all messages of a broker share: 16 or 40 digits."""
    return store_host.hex().upper()


_HEX = tuple(f"{byte:02X}" for byte in range(256))  # quicker than to format a number for each key


class OffsetId(NamedTuple):
    """A decoded offset id."""

    store_host: bytes
    physical_offset: int


def read_offset_id(text: str) -> OffsetId:
    """Decode an offset id of 32 (IPv4) or 56 (IPv6) digits to broker host and physical offset."""
    raw = _hex(text, "offset message id")
    return OffsetId(raw[:-8], _OFFSET.unpack_from(raw, len(raw) - 8)[0])


class UniqueKeys:
    """Generator of unique keys: ``next()`` returns one.

    ``ip`` are the 4 or 16 bytes of an address of this host, ``salt`` any number fixed for the life of the
    process, ``wall_ms`` the clock. Months begin at midnight in ``zone``; None is the local zone. The counter
    has 16 bits: keys repeat after 65536 in one millisecond.
    """

    def __init__(
        self, ip: bytes, process_id: int, salt: int, wall_ms: Callable[[], int], zone: tzinfo | None = None
    ) -> None:
        if len(ip) not in (4, 16):
            raise InvalidRequest(f"an address of {len(ip)} bytes; it has 4 (IPv4) or 16 (IPv6)")
        self._wall_ms = wall_ms
        self._zone = zone
        self._prefix = f"{ip.hex().upper()}{process_id & 0xFFFF:04X}{salt & 0xFFFF_FFFF:08X}"
        self._counter = 0
        self._start_ms, self._next_start_ms = month_of(wall_ms(), zone)
        self._head_ms, self._head = -1, ""  # what keys of one millisecond have in common

    def next(self) -> str:
        """Return a new key of 32 or 56 digits."""
        now_ms = self._wall_ms()
        if now_ms != self._head_ms:
            self._head = self._head_at(now_ms)
            self._head_ms = now_ms
        counter = self._counter
        self._counter = (counter + 1) & 0xFFFF
        return f"{self._head}{_HEX[counter >> 8]}{_HEX[counter & 255]}"

    def some(self, count: int) -> list[str]:
        """Return `count` new keys, all with the time of the first; at most as many as the counter can
        distinguish."""
        first = self.next()
        head, counter = self._head, self._counter
        self._counter = (counter + count - 1) & 0xFFFF
        following = range(counter, counter + count - 1)
        return [first, *[f"{head}{_HEX[n >> 8 & 255]}{_HEX[n & 255]}" for n in following]]

    def _head_at(self, now_ms: int) -> str:
        if now_ms >= self._next_start_ms:
            self._start_ms, self._next_start_ms = month_of(now_ms, self._zone)
        since_ms = now_ms - self._start_ms
        if -_CLOCK_STEP_MS_MAX < since_ms < 0:
            since_ms = 0
        return f"{self._prefix}{since_ms & 0xFFFF_FFFF:08X}"


class UniqueKey(NamedTuple):
    """A decoded unique key."""

    ip: bytes
    process_id: int
    salt: int
    since_month_ms: int
    counter: int

    def made_at_ms(self, now_ms: int, zone: tzinfo | None = None) -> int:
        """Return the time of creation, if it was within the last month: the key does not contain the
        month."""
        start_ms, _ = month_of(now_ms, zone)
        if start_ms + self.since_month_ms >= now_ms:
            start_ms, _ = month_of(start_ms - 1, zone)
        return start_ms + self.since_month_ms


def read_unique_key(text: str) -> UniqueKey:
    """Decode a unique key that follows the layout. Brokers treat it as plain text."""
    raw = _hex(text, "unique key")
    return UniqueKey(raw[:-12], *_KEY_TAIL.unpack_from(raw, len(raw) - 12))


def month_of(now_ms: int, zone: tzinfo | None = None) -> tuple[int, int]:
    """Return the start of the month of a wall time, and the start of the next month."""
    try:
        now = datetime.fromtimestamp(now_ms / 1000, zone)
        start = now.replace(day=1, hour=0, minute=0, second=0, microsecond=0, fold=0)
        months = start.year * 12 + start.month
        after = start.replace(year=months // 12, month=months % 12 + 1)
        return round(start.timestamp() * 1000), round(after.timestamp() * 1000)
    except (ValueError, OverflowError, OSError) as error:
        raise InvalidRequest(f"wall time {now_ms} ms is not in the calendar: {error}") from error


def _hex(text: str, what: str) -> bytes:
    if len(text) not in (32, 56):
        raise InvalidRequest(f"{what} {text!r} has {len(text)} characters; it has 32 (IPv4) or 56 (IPv6)")
    try:
        raw = bytes.fromhex(text)
    except ValueError as error:
        raise InvalidRequest(f"{what} {text!r} is not hex: {error}") from error
    if len(raw) * 2 != len(text):  # fromhex passes over blanks
        raise InvalidRequest(f"{what} {text!r} is not hex: it has blanks")
    return raw
