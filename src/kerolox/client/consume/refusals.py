"""Why brokers do not let a consumer read. It goes on asking, since they may be set otherwise later; what they
said is kept for whoever wonders why nothing comes, and logged once, not once a second."""

from __future__ import annotations

import logging

from kerolox.client.errors import AccessDenied, FilterRefused
from kerolox.errors import KeroloxError, RequestFailed

log = logging.getLogger(__name__)

_Place = tuple[str, str]  # topic and broker; no broker when none could be asked about it in particular


class Refusals:
    """What brokers refused to one consumer, since they last served it."""

    def __init__(self, group: str) -> None:
        self._group = group
        self._said: dict[_Place, RequestFailed] = {}
        self._times: dict[tuple[_Place, str], int] = {}

    @property
    def latest(self) -> RequestFailed | None:
        return next(reversed(self._said.values()), None)

    def note(self, error: KeroloxError, topic: str, broker: str = "") -> bool:
        """Keep it, if it is a refusal: asking again does not help."""
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
        """A broker serves the topic."""
        if self._said:
            for place in ((topic, broker), (topic, "")):
                if self._said.pop(place, None) is not None:
                    self._times = {key: count for key, count in self._times.items() if key[0] != place}

    def told(self) -> None:
        """Somebody was told; what is heard from now on is news again."""
        self._said.clear()
