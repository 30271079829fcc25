"""Address patterns of white lists in RocketMQ 4's account files.

Patterns: ``10.1.2.3``, ``10.1.2.{3,4}``, ``10.1.2-5.*``, ``fe80::1``, ``fe80:0:*``, several separated by
commas, ``*``. A blank list matches no address. Every part of an address is compared. RocketMQ ignores the
parts after the first ``*`` or range: there ``10.*.0.1`` matches all of ``10.*.*.*``, here it does not.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Iterable
from typing import TypeAlias

import msgspec

from kerolox.access.policies import Address

EVERYWHERE = ("*", "*.*.*.*", "*:*:*:*:*:*:*:*")
PATTERNS_MAX = 1000  # per list

# Ranges of numbers that match one part of an address.
Ranges: TypeAlias = tuple[tuple[int, int], ...]


class AddressPattern(msgspec.Struct, frozen=True):
    """A set of addresses. ``parts`` has four or eight items, one for each number; empty: all addresses."""

    text: str
    parts: tuple[Ranges, ...] = ()

    @property
    def is_everywhere(self) -> bool:
        return not self.parts

    def matches(self, address: Address) -> bool:
        if not self.parts:
            return True
        numbers = _numbers(address)
        return len(numbers) == len(self.parts) and all(
            any(low <= number <= high for low, high in ranges)
            for number, ranges in zip(numbers, self.parts, strict=True)
        )


Patterns: TypeAlias = tuple[AddressPattern, ...]


def matches_any(patterns: Iterable[AddressPattern], address: Address | None) -> bool:
    """Return whether a pattern matches the address. Callers without one (in the same process) never match."""
    return address is not None and any(pattern.matches(address) for pattern in patterns)


def parse_addresses(text: str) -> Patterns:
    """Parse a list of patterns. Raises ValueError with the reason."""
    found = tuple(_parse(one.strip()) for one in _split(text) if one.strip())
    if len(found) > PATTERNS_MAX:
        raise ValueError(f"{len(found)} addresses in one list, the limit is {PATTERNS_MAX}")
    return found


def _split(text: str) -> list[str]:
    """Split at commas outside of braces."""
    return re.split(r",(?![^{]*\})", text)


def _parse(text: str) -> AddressPattern:
    if text in EVERYWHERE:
        return AddressPattern(text)
    if not set("*-{}") & set(text):
        try:
            numbers = _numbers(ipaddress.ip_address(text))
        except ValueError:
            raise _wrong(text) from None
        return AddressPattern(text, tuple(((number, number),) for number in numbers))
    parts = _groups_of_six(text) if ":" in text else text.split(".")
    count, base, most = (8, 16, 0xFFFF) if ":" in text else (4, 10, 255)
    if len(parts) != count or parts[0] == "*":
        raise _wrong(text)
    return AddressPattern(text, tuple(_ranges(part.strip(), base, most, text) for part in parts))


def _groups_of_six(text: str) -> list[str]:
    """Return the eight groups of an IPv6 pattern. A trailing ``*`` or range leaves all later groups free."""
    before, gap, behind = text.partition("::")
    head = before.split(":") if before else []
    tail = behind.split(":") if behind else []
    if gap:
        if len(head) + len(tail) > 7:
            raise _wrong(text)
        return head + ["0"] * (8 - len(head) - len(tail)) + tail
    if head[-1] == "*" or "-" in head[-1]:
        head += ["*"] * (8 - len(head))
    return head


def _ranges(part: str, base: int, most: int, text: str) -> Ranges:
    if part == "*":
        return ((0, most),)
    braces = re.fullmatch(r"\{(.*)\}", part)
    texts = braces[1].split(",") if braces else [part]
    found = []
    for one in texts:
        low, minus, high = one.strip().partition("-")
        if braces and minus:
            raise _wrong(text)
        found.append((_number(low, base, most, text), _number(high if minus else low, base, most, text)))
    if any(low > high for low, high in found):
        raise _wrong(text)
    return tuple(found)


def _number(digits: str, base: int, most: int, text: str) -> int:
    allowed = r"[0-9a-fA-F]{1,4}" if base == 16 else r"[0-9]{1,3}"
    if not re.fullmatch(allowed, digits) or int(digits, base) > most:
        raise _wrong(text)
    return int(digits, base)


def _numbers(address: Address) -> tuple[int, ...]:
    packed = address.packed
    if address.version == 4:
        return tuple(packed)
    return tuple(int.from_bytes(packed[at : at + 2], "big") for at in range(0, 16, 2))


def _wrong(text: str) -> ValueError:
    return ValueError(
        f"{text!r} is not an address: write 10.1.2.3, 10.1.2.{{3,4}}, 10.1.2-5.*, fe80::1, fe80:0:*, or * "
        "for all"
    )
