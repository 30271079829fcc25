"""Java's arithmetic where the format depends on it: string hashes and integer overflow.

Tag hashes and key-index hashes are ``String.hashCode()``: ``h = 31 * h + unit`` over UTF-16 code units,
wrapped to 32 bits. A Python loop over 40 characters takes about 2.4 µs, a large part of a send.
:func:`java_hash` takes 0.9 µs: a hash is a number written in base 31, and ``int(text, 31)`` is a C loop.
Digits only go to 30, so each unit is split into ``31 * high + low`` by two translation tables, and the two
numbers are added.
"""

from __future__ import annotations

from typing import Final

from kerolox.protocol.limits import INT32_MIN

_MASK32: Final = 0xFFFF_FFFF
_MASK64: Final = 0xFFFF_FFFF_FFFF_FFFF
_DIGITS: Final = b"0123456789abcdefghijklmnopqrstu"
_LOW: Final = bytes(_DIGITS[unit % 31] for unit in range(256))
_HIGH: Final = bytes(_DIGITS[unit // 31] for unit in range(256))

# int(text, 31) is quadratic in the length (and rejects over 4300 digits): longer texts are split.
_PIECE: Final = 128
# Up to this length the plain loop is faster than two translations and two calls.
_LOOP_MAX: Final = 8
_POWERS: Final = tuple(pow(31, exponent, 1 << 32) for exponent in range(_PIECE + 1))


def wrap32(number: int) -> int:
    """Wrap a number to Java's ``int``."""
    number &= _MASK32
    return number - 0x1_0000_0000 if number & 0x8000_0000 else number


def wrap64(number: int) -> int:
    """Wrap a number to Java's ``long``."""
    number &= _MASK64
    return number - 0x1_0000_0000_0000_0000 if number & 0x8000_0000_0000_0000 else number


def java_hash(text: str | bytes, seed: int = 0) -> int:
    """``String.hashCode()`` of text, or of UTF-8 bytes; a signed 32-bit number.

    ``seed`` is the hash of what comes before: ``java_hash(b, java_hash(a)) == java_hash(a + b)``,
    so the hash of a prefix that repeats (``topic#`` and the head of a client's keys) is kept.
    """
    if isinstance(text, str):
        if not text.isascii():
            return _hash_of_units(text, seed)
        text = text.encode()
    elif not text.isascii():
        return _hash_of_units(text.decode("utf-8", "replace"), seed)
    length = len(text)
    if length <= _LOOP_MAX:
        for unit in text:
            seed = seed * 31 + unit
    elif length <= _PIECE:
        seed = seed * _POWERS[length] + int(text.translate(_LOW), 31) + 31 * int(text.translate(_HIGH), 31)
    else:
        seed = _hash_of_bytes(text, seed)
    seed &= _MASK32
    return seed - 0x1_0000_0000 if seed & 0x8000_0000 else seed


def index_hash(hash_code: int) -> int:
    """Return the hash as the key index stores it: its absolute value, and 0 for the minimum, which has
    none."""
    return 0 if hash_code == INT32_MIN else abs(hash_code)


def _hash_of_bytes(units: bytes, seed: int) -> int:
    for start in range(0, len(units), _PIECE):
        piece = units[start : start + _PIECE]
        low = int(piece.translate(_LOW), 31)
        high = int(piece.translate(_HIGH), 31)
        seed = (seed * _POWERS[len(piece)] + low + 31 * high) & _MASK32
    return seed


def _hash_of_units(text: str, seed: int) -> int:
    """Units over 255: the hash is linear, so high and low bytes are hashed apart and added."""
    units = text.encode("utf-16-be", "surrogatepass")
    return wrap32(_hash_of_bytes(units[1::2], seed) + 256 * _hash_of_bytes(units[0::2], 0))
