"""Event loop and process of a client. The client cannot be used in others."""

from __future__ import annotations

import asyncio
import os

from kerolox.client.errors import AfterFork, OtherLoop

_forks = 0  # between the first process and this one


def _count_fork() -> None:
    global _forks
    _forks += 1


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_count_fork)


class Home:
    """Event loop and process that were current at the creation of this object."""

    __slots__ = ("_forks", "_loop")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._forks = _forks

    @property
    def in_parent(self) -> bool:
        """True in a forked child of the process it was made in."""
        return self._forks != _forks

    def check(self) -> None:
        """Raise AfterFork or OtherLoop unless called in this loop and process."""
        if self._forks != _forks:
            raise AfterFork("client")
        if asyncio.get_running_loop() is not self._loop:
            raise OtherLoop("client")
