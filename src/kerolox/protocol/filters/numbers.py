"""Numbers written as text, read as Java reads them.

Properties are texts; compared with a number they become one, and what cannot makes the whole condition
unanswerable. What counts as a number is exactly what ``Integer.valueOf``, ``Long.valueOf`` and
``Double.valueOf`` take.
"""

from __future__ import annotations

import re
from math import copysign, inf, isnan
from typing import Final

from kerolox.protocol.limits import INT32_MAX, INT32_MIN, INT64_MAX, INT64_MIN

_WHOLE = re.compile(r"([+-]?)(\d+)")
_DECIMAL = re.compile(
    r"([+-]?)(?:(NaN|Infinity)|([0-9]+\.?[0-9]*(?:[eE][+-]?[0-9]+)?|\.[0-9]+(?:[eE][+-]?[0-9]+)?)[fFdD]?"
    r"|(0[xX](?:[0-9a-fA-F]+\.?[0-9a-fA-F]*|\.[0-9a-fA-F]+)[pP][+-]?[0-9]+)[fFdD]?)"
)
_BLANKS: Final = "".join(map(chr, range(0x21)))
_DIGITS_MAX: Final = 19
_HEX_EXPONENT_DIGITS_MAX: Final = 9


class Unanswerable(Exception):
    """The condition has no answer for this message: it does not match."""


class Long(int):
    """A whole number that is Java's ``Long``; a plain int is an ``Integer``. They read texts differently."""


def to_int(text: bytes) -> int:
    """``Integer.valueOf``."""
    if len(text) < 10 and text.isdigit():
        return int(text)
    return _whole(text, INT32_MIN, INT32_MAX)


def to_long(text: bytes) -> int:
    """``Long.valueOf``."""
    if len(text) < 19 and text.isdigit():
        return int(text)
    return _whole(text, INT64_MIN, INT64_MAX)


def _whole(text: bytes, low: int, high: int) -> int:
    found = _WHOLE.fullmatch(text.decode("utf-8", "replace"))
    if found is None:
        raise Unanswerable(f"{text!r} is no whole number")
    sign, digits = found.groups()
    # Digits of any script will do, but not those that Java has in two halves.
    if not digits.isascii() and max(digits) > "\uffff":
        raise Unanswerable(f"{text!r} is no whole number")
    if len(digits) > _DIGITS_MAX:
        digits = "".join(str(int(d)) for d in digits).lstrip("0") or "0"
        if len(digits) > _DIGITS_MAX:
            raise Unanswerable(f"{text[:40]!r}... is too large")
    number = int(sign + digits)
    if not low <= number <= high:
        raise Unanswerable(f"{number} does not fit between {low} and {high}")
    return number


def to_double(text: bytes) -> float:
    """``Double.valueOf``."""
    if len(text) < 16 and text.isdigit():
        return float(text)
    found = _DECIMAL.fullmatch(text.decode("utf-8", "replace").strip(_BLANKS))
    if found is None:
        raise Unanswerable(f"{text!r} is no number")
    sign, word, decimal, hexadecimal = found.groups()
    if word == "NaN":
        return float("nan")
    number = inf if word else float(decimal) if decimal else _from_hex(hexadecimal)
    return -number if sign == "-" else number


def _from_hex(text: str) -> float:
    digits, _, exponent = text.lower().partition("p")
    if len(exponent.lstrip("+-0")) > _HEX_EXPONENT_DIGITS_MAX:
        is_zero = not digits[2:].strip("0.")
        return 0.0 if is_zero or exponent.startswith("-") else inf
    try:
        return float.fromhex(text)
    except OverflowError:
        return inf


def order_of_doubles(left: float, right: float) -> int:
    """``Double.compareTo``: NaN is the largest of all and equal to itself, -0.0 is smaller than 0.0."""
    if left < right:
        return -1
    if left > right:
        return 1
    if left == right:
        return int(copysign(1, left) - copysign(1, right)) // 2 if left == 0 else 0
    return isnan(left) - isnan(right)
