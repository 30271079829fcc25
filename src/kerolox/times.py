"""Parsing and formatting of times and durations on the command line."""

from __future__ import annotations

import re
from datetime import datetime

from kerolox.errors import OptionError

_AGO = re.compile(r"(\d+)\s*(s|m|h|d)(\s+ago)?")
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SPAN = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|m|h|d)\s*")
_SPAN_S = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86_400}
EXPECTED = "a time: 2026-01-31T12:00:00, 90s, 15m, 2h or 3d (ago), now, or milliseconds since 1970"


def parse_time(text: str, now_ms: int, option: str = "time") -> int:
    """Parse a time into milliseconds since 1970. A time without a zone is local."""
    text = text.strip()
    if text == "now":
        return now_ms
    ago = _AGO.fullmatch(text)
    if ago is not None:
        return now_ms - int(ago[1]) * _UNIT_MS[ago[2]]
    if text.isdigit():
        return int(text)
    try:
        return int(datetime.fromisoformat(text).timestamp() * 1000)
    except (ValueError, OverflowError, OSError):
        raise OptionError(option, text, EXPECTED) from None


def parse_span(text: str, option: str) -> float:
    """Parse ``500ms``, ``90s``, ``15m``, ``2h``, ``1h30m`` or ``3d`` into seconds. The default unit is s."""
    text = text.strip()
    parts = _SPAN.findall(text)
    if parts and "".join(number + unit for number, unit in parts) == text.replace(" ", ""):
        return sum(float(number) * _SPAN_S[unit] for number, unit in parts)
    try:
        seconds = float(text)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise OptionError(option, text, "a duration: 500ms, 90s, 15m, 2h, 1h30m or 3d")
    return seconds


def parse_moment(text: str, now_ms: int, option: str) -> int:
    """Parse a time in the future. Reject the forms that :func:`parse_time` reads as a time ago."""
    if _AGO.fullmatch(text.strip()):
        raise OptionError(option, text, "a time: 2026-01-31T12:00:00. For a duration from now, use --delay")
    return parse_time(text, now_ms, option)


def time_text(ms: int | None) -> str:
    """Format a time as local time to the millisecond; an empty text for None, zero and negative times."""
    if ms is None or ms <= 0:
        return ""
    try:
        return datetime.fromtimestamp(ms / 1000).isoformat(sep=" ", timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(ms)
