"""Whether the store may be written and read, and if not, why. In words, because people ask."""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum

from kerolox.store.errors import StoreError

log = logging.getLogger(__name__)


class Obstacle(Enum):
    """What can stand in the way of writing."""

    FENCED = "fenced"  # a write or flush failed: for good, until a restart has looked at the disk
    DISK_FULL = "disk full"  # goes away when space returns
    NO_DESCRIPTOR = "too many open files"  # goes away when a descriptor is free
    NO_NEXT_FILE = "no next file"  # the log cannot go on in a new file; goes away when one can be made
    BEHIND = "behind"  # queues, index or timer cannot be written, and too much waits in memory
    FOLLOWER = "follower"  # another broker leads
    NO_LEASE = "no lease"  # another broker may lead: the controller has not answered for too long
    HANDED_OVER = "handed over"  # another broker is about to lead
    CUTTING = "cutting"  # the log is being cut back; for a moment
    CLOSED = "closed"


_PLANNED = (  # somebody asked for it
    Obstacle.CUTTING,
    Obstacle.CLOSED,
    Obstacle.FOLLOWER,
    Obstacle.NO_LEASE,
    Obstacle.HANDED_OVER,
)


class NotWritable(StoreError):
    """The store takes no messages now. ``obstacles`` says why."""

    def __init__(self, obstacles: dict[Obstacle, str]) -> None:
        self.obstacles = dict(obstacles)
        reasons = "; ".join(f"{obstacle.value}: {why}" for obstacle, why in obstacles.items())
        # Fenced or closed, it stays so until a restart; everything else ends by itself.
        self.retriable = not obstacles.keys() & {Obstacle.FENCED, Obstacle.CLOSED}
        super().__init__(f"the store takes no messages: {reasons}")


class StoreState:
    """The obstacles of one store."""

    def __init__(self) -> None:
        self.obstacles: dict[Obstacle, str] = {}
        self._holders: dict[Obstacle, dict[str, str]] = {}  # the reasons, by the work that met them
        self.on_change: list[Callable[[], None]] = []

    @property
    def writable(self) -> bool:
        return not self.obstacles

    @property
    def why_follows(self) -> str:
        """Who leads, or why nobody does, while this broker does not; empty when it does."""
        return self.obstacles.get(Obstacle.FOLLOWER, "")

    @property
    def fenced(self) -> bool:
        return Obstacle.FENCED in self.obstacles

    def check_writable(self, *, besides: Obstacle | None = None) -> None:
        """Raise if something stands in the way of writing, ``besides`` one that does not count here."""
        if self.obstacles and set(self.obstacles) != {besides}:
            raise NotWritable(self.obstacles)

    def set(self, obstacle: Obstacle, why: str, *, by: str = "", quiet: bool = False) -> None:
        """Put an obstacle up. It stays until everything that put it up has cleared it. ``quiet``: without a
        log line."""
        self._holders.setdefault(obstacle, {}).setdefault(by, why)
        if obstacle in self.obstacles:
            return  # the first reason is the one that matters
        self.obstacles[obstacle] = why
        if obstacle not in _PLANNED and not quiet:
            log.error("store_not_writable obstacle=%r reason=%r", obstacle.value, why)
        for callback in self.on_change:
            callback()

    def reword(self, obstacle: Obstacle, why: str) -> None:
        """Another reason for an obstacle that is there, of those that have one after the other."""
        if obstacle in self.obstacles:
            self.obstacles[obstacle] = self._holders[obstacle][""] = why

    def clear(self, obstacle: Obstacle, *, by: str = "", quiet: bool = False) -> None:
        if obstacle is Obstacle.FENCED:
            raise ValueError("a fenced store stays fenced until it is opened again")
        holders = self._holders.get(obstacle, {})
        if holders.pop(by, None) is None:
            return
        if holders:
            self.obstacles[obstacle] = next(iter(holders.values()))
            return
        del self.obstacles[obstacle]
        if obstacle not in _PLANNED and not quiet:
            log.warning("store_obstacle_gone obstacle=%r", obstacle.value)
        for callback in self.on_change:
            callback()
