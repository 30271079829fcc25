"""Times as people write them, and as they read them."""

from __future__ import annotations

import re
from datetime import datetime

from kerolox.errors import OptionError

_AGO = re.compile(r"(\d+)\s*(s|m|h|d)(\s+ago)?")
_UNIT_MS = {"s": 1000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
EXPECTED = "a time: 2026-01-31T12:00:00, 90s, 15m, 2h or 3d (ago), now, or milliseconds since 1970"


def parse_time(text: str, now_ms: int, option: str = "time") -> int:
    """Milliseconds since 1970. A time without zone is local."""
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


def time_text(ms: int | None) -> str:
    """Local time to the millisecond; nothing for no time."""
    if ms is None or ms <= 0:
        return ""
    try:
        return datetime.fromtimestamp(ms / 1000).isoformat(sep=" ", timespec="milliseconds")
    except (ValueError, OverflowError, OSError):
        return str(ms)
