"""A bloom filter: which of a crowd may want a message, in a few bytes.

Each subscription sets a few bits, found by hashing its name. Where one of them is missing, the message is
not wanted; where all are set, it may be. The hash is MurmurHash3's 128-bit one, of which 64 are used.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Final

from kerolox.protocol.java import wrap32

_MASK: Final = 0xFFFF_FFFF_FFFF_FFFF
_C1: Final = 0x87C3_7B91_1142_53D5
_C2: Final = 0x4CF5_AD43_2745_937F


class BloomFilter:
    """Made for so many users and an error rate in percent. ``bits`` it has, ``places`` are set by each."""

    def __init__(self, error_percent: int, users: int) -> None:
        rate = error_percent / 100
        self.places = math.ceil(math.log(rate) / math.log(0.5))
        needed = math.ceil(users * (math.log(1 / rate) / math.log(2)) * (math.log(math.e) / math.log(2)))
        self.bits = 8 * math.ceil(needed / 8)

    @property
    def size_bytes(self) -> int:
        return self.bits // 8

    def places_of(self, name: str) -> tuple[int, ...]:
        """The bits of a user."""
        found = murmur3(name.encode("utf-8", "replace"))
        low, high = wrap32(found), wrap32(found >> 32)
        places: list[int] = []
        for number in range(1, self.places + 1):
            mixed = wrap32(low + number * high)
            places.append((~mixed if mixed < 0 else mixed) % self.bits)
        return tuple(places)

    def with_bits(self, places: tuple[int, ...]) -> int:
        """A number with these bits set; ORed together they become a map by :meth:`packed`."""
        number = 0
        for place in places:
            number |= 1 << place
        return number

    def packed(self, number: int) -> bytes:
        """Bit ``p`` is the bit of value ``1 << p % 8`` in byte ``p // 8``: the little end first."""
        return number.to_bytes(self.size_bytes, "little")


@lru_cache(4096)
def murmur3(data: bytes) -> int:
    """The first 64 bits of MurmurHash3 x64 128 with seed 0."""
    length = len(data)
    h1 = h2 = 0
    for at in range(0, length - length % 16, 16):
        k1 = int.from_bytes(data[at : at + 8], "little")
        k2 = int.from_bytes(data[at + 8 : at + 16], "little")
        h1 ^= _mix1(k1)
        h1 = (_rotate(h1, 27) + h2) * 5 + 0x52DC_E729 & _MASK
        h2 ^= _mix2(k2)
        h2 = (_rotate(h2, 31) + h1) * 5 + 0x3849_5AB5 & _MASK
    rest = data[length - length % 16 :]
    h2 ^= _mix2(int.from_bytes(rest[8:], "little"))
    h1 ^= _mix1(int.from_bytes(rest[:8], "little"))
    h1 ^= length
    h2 ^= length
    h1 = h1 + h2 & _MASK
    h2 = h2 + h1 & _MASK
    return _final(h1) + _final(h2) & _MASK


def _mix1(number: int) -> int:
    return _rotate(number * _C1 & _MASK, 31) * _C2 & _MASK


def _mix2(number: int) -> int:
    return _rotate(number * _C2 & _MASK, 33) * _C1 & _MASK


def _rotate(number: int, by: int) -> int:
    return (number << by | number >> 64 - by) & _MASK


def _final(number: int) -> int:
    number ^= number >> 33
    number = number * 0xFF51_AFD7_ED55_8CCD & _MASK
    number ^= number >> 33
    number = number * 0xC4CE_B9FE_1A85_EC53 & _MASK
    return number ^ number >> 33
