"""Rejections of a consumer's reads by brokers.

The consumer continues to ask, because settings of brokers may change. The latest error is kept for users, and
logged once instead of once per second.
"""

from __future__ import annotations

import logging

from kerolox.client.errors import AccessDenied, FilterRefused
from kerolox.errors import KeroloxError, RequestFailed

log = logging.getLogger(__name__)

_Place = tuple[str, str]  # topic and broker; an empty broker for errors of the whole topic


class Refusals:
    """Rejections of one consumer since the brokers last served it."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._said: dict[_Place, RequestFailed] = {}
        self._times: dict[tuple[_Place, str], int] = {}

    @property
    def latest(self) -> RequestFailed | None:
        return next(reversed(self._said.values()), None)

    def note(self, error: KeroloxError, topic: str, broker: str = "") -> bool:
        """Record an error that a retry cannot solve. Return False for other errors."""
        if not isinstance(error, AccessDenied | FilterRefused):
            return False
        place = (topic, broker)
        self._said.pop(place, None)  # the latest comes last
        self._said[place] = error
        key = (place, error.remark or "")
        times = self._times[key] = self._times.get(key, 0) + 1
        if times & (times - 1) == 0:  # counted, not repeated
            log.warning(
                "reading_refused group=%s topic=%s broker=%s times=%d error=%r",
                self._group, topic, broker, times, str(error),
            )  # fmt: skip
        return True

    def served(self, topic: str, broker: str) -> None:
        """Clear the rejections of a broker that serves the topic again."""
        if self._said:
            for place in ((topic, broker), (topic, "")):
                if self._said.pop(place, None) is not None:
                    self._times = {key: count for key, count in self._times.items() if key[0] != place}

    def mark_reported(self) -> None:
        """Mark the current refusals as reported."""
        self._said.clear()
