"""Rejected requests by source address: after repeated failures answers are delayed, and floods are cut
off."""

from __future__ import annotations

import logging
from collections import OrderedDict
from typing import Any

from kerolox.clock import Clock
from kerolox.front.refusals import Refusal
from kerolox.front.requests import Answer, Request

log = logging.getLogger(__name__)

FREE = 10  # rejections of one address that are answered without delay
FORGIVEN_S = 60.0  # the count of an address restarts after this time without a rejection
DELAY_FIRST_S = 0.1
# Clients time out after three seconds: a client with a wrong key must receive the error within that time.
DELAY_MAX_S = 1.0
WAITING_MAX = 32  # delayed answers per address; beyond it the connection is closed
ADDRESSES_MAX = 10_000  # addresses counted at a time; the least recent are dropped first


class _Address:
    __slots__ = ("count", "last_s", "waiting")

    def __init__(self) -> None:
        self.count = 0
        self.waiting = 0
        self.last_s = 0.0


class Failures:
    """Answers rejected requests, at once or with a delay."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._known: OrderedDict[str, _Address] = OrderedDict()
        self.total = 0

    def refuse(self, asked: Request[Any], refusal: Refusal) -> None:
        self.total += 1
        host = asked.caller.address.rpartition(":")[0]
        known = self._note(host)
        answer = refusal.answer()
        delay_s = delay_after(known.count)
        if not delay_s:
            asked.answer(answer)
            return
        if known.waiting >= WAITING_MAX:
            asked.caller.close(f"{known.count} requests from {host} were refused, and {known.waiting} wait")
            return
        known.waiting += 1
        self._clock.call_later(delay_s, lambda: self._answer(known, asked, answer))

    def _answer(self, known: _Address, asked: Request[Any], answer: Answer) -> None:
        known.waiting -= 1
        asked.answer(answer)

    def _note(self, host: str) -> _Address:
        now_s = self._clock.monotonic_s()
        known = self._known.get(host)
        if known is None:
            known = self._known[host] = _Address()
            if len(self._known) > ADDRESSES_MAX:
                self._known.popitem(last=False)
        self._known.move_to_end(host)
        if now_s - known.last_s > FORGIVEN_S:
            known.count = 0
        known.count += 1
        known.last_s = now_s
        if known.count == FREE + 1:
            log.warning(
                "refused_often address=%s count=%d next='further rejections are answered late; check its "
                "secret key, or block the address if it guesses secrets'",
                host, known.count,
            )  # fmt: skip
        return known


def delay_after(count: int) -> float:
    """Return the delay of the answer to the `count`-th rejection, in seconds."""
    if count <= FREE:
        return 0.0
    return min(DELAY_FIRST_S * 2.0 ** min(count - FREE - 1, 10), DELAY_MAX_S)
