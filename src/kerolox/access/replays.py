"""Detection of replayed requests. Only signatures of form 2 can be recognized."""

from __future__ import annotations

from collections import OrderedDict

from kerolox.clock import Clock
from kerolox.protocol.signature_v2 import Stamp

SESSIONS_MAX = 10_000  # sessions of signing programs within two windows
NUMBERS_KEPT = 4096  # per session: how far requests on several connections may overtake each other


class _Session:
    """The numbers that one signing program has used."""

    __slots__ = ("highest", "time_ms", "used")

    def __init__(self) -> None:
        self.highest = 0
        self.used = 0  # bit n: the number ``highest - n``
        self.time_ms = 0  # of its newest request

    def take(self, number: int) -> str | None:
        ahead = number - self.highest
        if ahead > 0:
            self.used = 1 if ahead >= NUMBERS_KEPT else (self.used << ahead | 1) & (1 << NUMBERS_KEPT) - 1
            self.highest = number
            return None
        if -ahead >= NUMBERS_KEPT:
            return f"its number {number} is {-ahead} behind the newest one, {self.highest}"
        if self.used >> -ahead & 1:
            return f"its number {number} was used before"
        self.used |= 1 << -ahead
        return None


class Replays:
    """The stamps used within the window. Only verified stamps may be passed in."""

    def __init__(self, clock: Clock, window_s: int) -> None:
        self._clock = clock
        self._window_ms = window_s * 1000
        # A request signed before the start may have been accepted before it.
        self._started_ms = clock.wall_ms()
        self._sessions: OrderedDict[tuple[str, bytes], _Session] = OrderedDict()

    def refusal(self, user: str, stamp: Stamp) -> str | None:
        """Record a stamp. Return the reason to reject it, or None."""
        now_ms = self._clock.wall_ms()
        if abs(now_ms - stamp.time_ms) > self._window_ms:
            return (
                f"it was signed at {stamp.time_ms} ms, and it is {now_ms} ms: more than "
                f"{self._window_ms // 1000} s apart. Set the clocks, or signatureV2WindowSeconds"
            )
        if stamp.time_ms < self._started_ms <= now_ms:
            return "it was signed before this server started"
        key = user, stamp.session
        session = self._sessions.get(key)
        if session is None:
            self._forget(now_ms)
            if len(self._sessions) >= SESSIONS_MAX:
                return f"{SESSIONS_MAX} programs have signed within {2 * self._window_ms // 1000} s"
            session = self._sessions[key] = _Session()
        if (why := session.take(stamp.number)) is None:
            session.time_ms = max(session.time_ms, stamp.time_ms)
            self._sessions.move_to_end(key)
        return why

    def _forget(self, now_ms: int) -> None:
        """Drop the sessions whose newest request is too old to be accepted."""
        while self._sessions:
            oldest = next(iter(self._sessions.values()))
            if oldest.time_ms >= now_ms - 2 * self._window_ms:
                return
            self._sessions.popitem(last=False)
