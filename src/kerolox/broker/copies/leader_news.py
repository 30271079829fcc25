"""Long poll by which a follower learns of changed tables of its leader at once: see ``table_watch.py``.

RocketMQ's leaders do not support the request. They are asked again once a minute, in case of an upgrade.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from kerolox.clock import Clock
from kerolox.errors import KeroloxError, RequestFailed
from kerolox.protocol.bodies.table_news import TableNews
from kerolox.protocol.codes import ResponseCode

log = logging.getLogger(__name__)

RETRY_S = 0.5
NOT_KNOWN_S = 60.0  # pause after a leader that does not support the request

Ask = Callable[[str, int], Awaitable[TableNews]]


class LeaderNews:
    """One request at a time. ``heard`` is called after each answer."""

    def __init__(self, clock: Clock, heard: Callable[[], None]) -> None:
        self.news: TableNews | None = None  # news that are not taken over yet
        self.works = False  # the leader answers
        self._clock = clock
        self._heard = heard
        self._leader = ""
        self._life = ""
        self._serial = 0  # serial of the last change taken over
        self._not_before_s = 0.0
        self._task: asyncio.Task[None] | None = None

    def watch(self, leader: str, ask: Ask) -> None:
        """Ask this leader, unless a request is in progress."""
        if leader != self._leader:
            self.stop()
            self._leader, self._life, self._serial, self._not_before_s = leader, "", 0, 0.0
        is_due = self._clock.monotonic_s() >= self._not_before_s
        if self._task is None and self.news is None and is_due:
            self._task = asyncio.get_running_loop().create_task(self._ask(ask))

    def taken(self, news: TableNews, *, well: bool) -> None:
        """Confirm the news; ``well``: all tables were copied and saved. Otherwise they are requested
        again."""
        self.news = None
        if well:
            self._life, self._serial = news.life, news.serial
        else:
            self._not_before_s = self._clock.monotonic_s() + RETRY_S

    def stop(self) -> None:
        """Cancel the request."""
        if self._task is not None:
            self._task.cancel()
            self._task = None
        self.news = None
        self.works = False
        self._leader = ""

    async def _ask(self, ask: Ask) -> None:
        try:
            news = await ask(self._life, self._serial)
        except KeroloxError as error:
            is_known = not isinstance(error, RequestFailed) or (
                error.response_code != ResponseCode.REQUEST_CODE_NOT_SUPPORTED
            )
            self._not_before_s = self._clock.monotonic_s() + (RETRY_S if is_known else NOT_KNOWN_S)
            self.works = False
            self._task = None
            return
        self._task = None
        self.works = True
        if news.life == self._life and news.serial == self._serial:
            self._heard()  # nothing changed while the request was held: send the next one
            return
        self.news = news
        self._heard()
