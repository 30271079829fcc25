"""Times and durations as text: one parser for commands, Spark options and pipeline files.

A duration has a unit: ``500ms``, ``90s``, ``15m``, ``2h``, ``1h30m``, ``3d``, also in words: ``15 minutes``.
A number without a unit is accepted only by options whose names have the unit (``requestTimeoutMs``). A time
without a zone is in the zone in which its reader shows times: local in commands, UTC in Spark and pipelines.
"""

from __future__ import annotations

import re
from datetime import datetime, tzinfo
from typing import Final

from kerolox.errors import OptionError

_UNITS_S: Final = {
    **dict.fromkeys(("ms", "millisecond", "milliseconds"), 0.001),
    **dict.fromkeys(("s", "sec", "second", "seconds"), 1),
    **dict.fromkeys(("m", "min", "minute", "minutes"), 60),
    **dict.fromkeys(("h", "hour", "hours"), 3600),
    **dict.fromkeys(("d", "day", "days"), 86_400),
}
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]+)\s*")
SPAN: Final = "500ms, 90s, 15m, 2h, 1h30m or 3d"
EXPECTED: Final = "a time: 2026-01-31T12:00:00, 90s, 15m, 2h or 3d (ago), now, or milliseconds since 1970"


def span_s(text: str) -> float | None:
    """Return the seconds of a duration; None if the text is no duration with units."""
    text, at, total = text.strip().lower(), 0, 0.0
    while at < len(text):
        part = _PART.match(text, at)
        if part is None or part[2] not in _UNITS_S:
            return None
        total += float(part[1]) * _UNITS_S[part[2]]
        at = part.end()
    return total if text else None


def time_ms(text: str, now_ms: int, zone: tzinfo | None = None) -> int:
    """Parse a time into milliseconds since 1970. A time without a zone is in ``zone``; None: local.

    Raises ValueError, OverflowError or OSError.
    """
    text = text.strip()
    if text == "now":
        return now_ms
    if text.isdigit():
        return int(text)
    ago_s = span_s(text.lower().removesuffix("ago"))
    if ago_s is not None:
        return now_ms - round(ago_s * 1000)
    found = datetime.fromisoformat(text)
    if found.tzinfo is None and zone is not None:
        found = found.replace(tzinfo=zone)
    return round(found.timestamp() * 1000)


def parse_time(text: str, now_ms: int, option: str = "time") -> int:
    """Parse a time of a command into milliseconds since 1970. Raises OptionError."""
    try:
        return time_ms(text, now_ms)
    except (ValueError, OverflowError, OSError):
        raise OptionError(option, text, EXPECTED) from None


def parse_moment(text: str, now_ms: int, option: str) -> int:
    """Parse a time in the future. Reject the forms that :func:`parse_time` reads as a time ago."""
    if span_s(text.lower().strip().removesuffix("ago")) is not None:
        raise OptionError(option, text, "a time: 2026-01-31T12:00:00. For a duration from now, use --delay")
    return parse_time(text, now_ms, option)


def parse_span(text: str, option: str) -> float:
    """Parse a duration into seconds. Raises OptionError, also for a number without a unit other than 0."""
    seconds = 0.0 if text.strip() == "0" else span_s(text)
    if seconds is None:
        unit = f" with a unit: {text.strip()}s," if text.strip().isdigit() else ":"
        raise OptionError(option, text, f"a duration{unit} {SPAN}")
    return seconds


def time_text(ms: int | None) -> str:
    """Format a time as local time to the millisecond; an empty text for None, zero and negative times."""
    if ms is None or ms <= 0:
        return ""
    try:
        return datetime.fromtimestamp(ms / 1000).isoformat(sep=" ", timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(ms)
