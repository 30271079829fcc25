"""Waiting for what has to happen."""

from __future__ import annotations

import time
from collections.abc import Callable

POLL_S = 0.02


class TooLate(AssertionError):
    """Something that has to happen did not, for so long that it never will."""


def wait_until(reached: Callable[[], bool], what: Callable[[], str], for_s: float) -> float:
    """How long it took. Raises TooLate."""
    began_s = time.monotonic()
    while not reached():
        if time.monotonic() - began_s > for_s:
            raise TooLate(f"not within {for_s:g} s: {what()}")
        time.sleep(POLL_S)
    return time.monotonic() - began_s
