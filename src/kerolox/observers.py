"""Observers of an event: called one after the other, and isolated from the event and from each other."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Generic, ParamSpec

log = logging.getLogger(__name__)

P = ParamSpec("P")


class Observers(Generic[P]):
    """Calls everyone that was appended, in order. An exception of one is logged; the others are still called,
    and the event takes its course. Parts whose failure must stop the event are not observers.

    ``tell`` does the same as a call, at half the cost: for what happens with every message.
    """

    __slots__ = ("_called", "_event", "_failures", "tell")

    tell: Callable[P, None]

    def __init__(self, event: str) -> None:
        self._event = event
        self._failures = 0
        self._renew(())

    def append(self, observer: Callable[P, object]) -> None:
        self._renew((*self._called, observer))

    def remove(self, observer: Callable[P, object]) -> None:
        left = list(self._called)
        left.remove(observer)
        self._renew(tuple(left))

    def __contains__(self, observer: object) -> bool:
        return observer in self._called

    def __len__(self) -> int:
        return len(self._called)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> None:
        self.tell(*args, **kwargs)

    def _renew(self, called: tuple[Callable[P, object], ...]) -> None:
        self._called = called
        if not called:
            self.tell = _tell_nobody
        elif len(called) == 1:
            self.tell = self._tell_one(called[0])
        else:
            self.tell = self._tell_all

    def _tell_one(self, observer: Callable[P, object]) -> Callable[P, None]:
        def tell(*args: P.args, **kwargs: P.kwargs) -> None:
            try:
                observer(*args, **kwargs)
            except Exception:
                self._failed()

        return tell

    def _tell_all(self, *args: P.args, **kwargs: P.kwargs) -> None:
        for observer in self._called:
            try:
                observer(*args, **kwargs)
            except Exception:
                self._failed()

    def _failed(self) -> None:
        self._failures += 1
        if self._failures & (self._failures - 1) == 0:  # the 1st, 2nd, 4th, 8th, ...
            log.exception(
                "observer_failed event=%r times=%d next='report this defect; the event itself is complete'",
                self._event, self._failures,
            )  # fmt: skip


def _tell_nobody(*args: object, **kwargs: object) -> None:
    pass
