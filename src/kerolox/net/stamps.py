"""Stamps of signatures of form 2: time, session and number of a request."""

from __future__ import annotations

import itertools
import os

from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.protocol.signature_v2 import Stamp


class Stamps:
    """Stamps of one session; each number is used once."""

    def __init__(self, clock: Clock = SYSTEM_CLOCK) -> None:
        self._clock = clock
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._session = os.urandom(8)
        self._numbers = itertools.count(1)

    def next(self) -> Stamp:
        if self._pid != os.getpid():  # forked: the numbers of this session belong to the parent
            self._begin()
        return Stamp(self._clock.wall_ms(), self._session, next(self._numbers))
