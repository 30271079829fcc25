"""Sizes as text, in one unit: 1 KiB is 1024 bytes, when shown and when read (``64m`` is 64 MiB)."""

from __future__ import annotations

from typing import Final

_SHOWN: Final = (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10))
_READ: Final = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30}


def size_text(size_bytes: float) -> str:
    """``1536`` → ``1.5 KiB``: at most three significant digits."""
    for unit, size in _SHOWN:
        if size_bytes >= size:
            return f"{_digits(size_bytes / size)} {unit}"
    return f"{_digits(size_bytes)} B"


def size_bytes(text: str) -> int:
    """Parse a size in bytes, with an optional unit k, m or g: ``64m``. Raises ValueError."""
    lower = text.strip().lower().removesuffix("b")
    times = _READ.get(lower[-1:], 0)
    try:
        found = int(lower[:-1] if times else lower) * (times or 1)
    except ValueError:
        raise ValueError("no whole number") from None
    if found < 1:
        raise ValueError("out of range")
    return found


def _digits(number: float) -> str:
    return f"{number:.3g}" if number < 999.5 else f"{number:.0f}"
