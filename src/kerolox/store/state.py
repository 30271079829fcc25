"""Obstacles to writing to the store, with their reasons as text for operators."""

from __future__ import annotations

import logging
from enum import Enum

from kerolox.observers import Observers
from kerolox.store.errors import StoreError

log = logging.getLogger(__name__)


class Obstacle(Enum):
    """Reasons why the store cannot be written."""

    FENCED = "fenced"  # a write or flush failed; stays until a restart has checked the disk
    DISK_FULL = "disk full"  # ends when there is space
    NO_DESCRIPTOR = "too many open files"  # ends when a descriptor is free
    NO_NEXT_FILE = "no next file"  # the next file of the log cannot be created; ends when it can
    BEHIND = "behind"  # queues, index or timer cannot be written, and too much data waits in memory
    FOLLOWER = "follower"  # another broker leads
    NO_LEASE = "no lease"  # another broker may lead: the controller has not answered in time
    HANDED_OVER = "handed over"  # another broker is about to lead
    CUTTING = "cutting"  # the log is being truncated; ends within moments
    CLOSED = "closed"


_PLANNED = (  # requested, so not logged as errors
    Obstacle.CUTTING,
    Obstacle.CLOSED,
    Obstacle.FOLLOWER,
    Obstacle.NO_LEASE,
    Obstacle.HANDED_OVER,
)


class NotWritable(StoreError):
    """Store that accepts no messages now, for the reasons in ``obstacles``."""

    def __init__(self, obstacles: dict[Obstacle, str]) -> None:
        self.obstacles = dict(obstacles)
        reasons = "; ".join(f"{obstacle.value}: {why}" for obstacle, why in obstacles.items())
        # A fenced or closed store stays so until a restart; all other obstacles end automatically.
        self.retriable = not obstacles.keys() & {Obstacle.FENCED, Obstacle.CLOSED}
        super().__init__(f"the store accepts no messages: {reasons}")


class StoreState:
    """Obstacles of one store."""

    def __init__(self) -> None:
        self.obstacles: dict[Obstacle, str] = {}
        self._holders: dict[Obstacle, dict[str, str]] = {}  # reasons, by the work that set them
        self.on_change: Observers[[]] = Observers("state of the store changed")

    @property
    def writable(self) -> bool:
        return not self.obstacles

    @property
    def fenced(self) -> bool:
        return Obstacle.FENCED in self.obstacles

    def check_writable(self, *, besides: Obstacle | None = None) -> None:
        """Raise NotWritable if there is an obstacle other than ``besides``."""
        if self.obstacles and set(self.obstacles) != {besides}:
            raise NotWritable(self.obstacles)

    def set(self, obstacle: Obstacle, why: str, *, by: str = "", quiet: bool = False) -> None:
        """Set an obstacle. It stays until all work that set it has cleared it. ``quiet``: without a log
        line."""
        self._holders.setdefault(obstacle, {}).setdefault(by, why)
        if obstacle in self.obstacles:
            return  # the first reason is kept
        self.obstacles[obstacle] = why
        if obstacle not in _PLANNED and not quiet:
            log.error("store_not_writable obstacle=%r reason=%r", obstacle.value, why)
        self.on_change()

    def reword(self, obstacle: Obstacle, why: str) -> None:
        """Replace the reason of an obstacle, if it is set, for obstacles whose reason changes over time."""
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
        self.on_change()
