"""Base of the parts of administration: topics, groups, messages, dead letters, access control."""

from __future__ import annotations

from datetime import datetime, timedelta

from kerolox.client.admin.calls import LATEST_MS, AdminCalls
from kerolox.client.message_types import shown
from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.errors import OptionError
from kerolox.protocol.limits import INT64_MAX

When = datetime | timedelta | None  # a timedelta is that long ago; a datetime without zone is local

BEGIN, END = "begin", "end"


class AdminPart:
    """A part of administration, over the calls to brokers and name servers."""

    def __init__(self, calls: AdminCalls) -> None:
        self._own_calls = calls

    @property
    def _calls(self) -> AdminCalls:
        return self._own_calls


def span_ms(start: When, end: When, clock: Clock = SYSTEM_CLOCK) -> tuple[int, int]:
    """Return the milliseconds since 1970 of both ends of a span; without them all times."""
    return (
        0 if start is None else _time_ms(start, clock, "start"),
        INT64_MAX if end is None else _time_ms(end, clock, "end"),
    )


def place_ms(to: str | int | datetime | timedelta, clock: Clock = SYSTEM_CLOCK) -> int:
    """Return the time that a reset goes to: 0 for ``"begin"``, LATEST_MS for ``"end"``."""
    if isinstance(to, str) and to in (BEGIN, END):
        return 0 if to == BEGIN else LATEST_MS
    if isinstance(to, int) and not isinstance(to, bool) and to >= 0:
        return to
    if not isinstance(to, datetime | timedelta):
        raise OptionError("to", shown(to), '"begin", "end", a datetime, a timedelta ago, or milliseconds')
    return _time_ms(to, clock, "to")


def _time_ms(when: datetime | timedelta, clock: Clock, name: str) -> int:
    if isinstance(when, timedelta):
        return clock.wall_ms() - round(when.total_seconds() * 1000)
    if isinstance(when, datetime):
        return round(when.timestamp() * 1000)
    raise OptionError(name, shown(when), "a datetime, or a timedelta ago")
