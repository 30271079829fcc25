"""Delay levels: ``1s 5s 10s ...``, numbered from 1."""

from __future__ import annotations

from kerolox.errors import OptionError

DEFAULT_LEVELS = "1s 5s 10s 30s 1m 2m 3m 4m 5m 6m 7m 8m 9m 10m 20m 30m 1h 2h"
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}


def parse_levels(text: str) -> tuple[int, ...]:
    """Return the delays in milliseconds; the delay of level ``n`` has index ``n - 1``."""
    try:
        levels = tuple(int(word[:-1]) * _UNIT_MS[word[-1]] for word in text.split())
    except (ValueError, KeyError, IndexError):
        raise OptionError(
            "messageDelayLevel", text, "times such as 30s, 5m, 2h or 1d, separated by spaces"
        ) from None
    if not levels:
        raise OptionError("messageDelayLevel", text, "at least one level")
    return levels


def due_ms(levels: tuple[int, ...], level: int, store_timestamp: int) -> int:
    """Return the due time of a message of this level. Levels above the last one count as the last one."""
    return store_timestamp + levels[min(level, len(levels)) - 1]
