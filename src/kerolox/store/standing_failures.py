"""Failures of the store that have not ended yet: obstacles, counted log lines, metrics.

One object per store. A component that meets a failure reports it here and gets the row of
:mod:`kerolox.store.failures`; it also reports when its work succeeds again.
"""

from __future__ import annotations

import errno
import logging
from collections import Counter
from dataclasses import dataclass

from kerolox.clock import Clock
from kerolox.store.errors import DiskError, StoreError
from kerolox.store.failures import Action, Kind, Operation, Row, decide_error
from kerolox.store.state import Obstacle, StoreState

log = logging.getLogger(__name__)

SAY_AGAIN_S = 60.0

_WORDS = {
    (Kind.LOG, "append"): "an append failed",
    (Kind.LOG, "flush"): "a flush failed",
    (Kind.LOG, "commit"): "a flush failed",
    (Kind.LOG, "roll"): "the next file of the log cannot be created",
    (Kind.LOG, "clean"): "old files of the log cannot be deleted",
    (Kind.QUEUE, "dispatch"): "messages cannot be dispatched",
    (Kind.QUEUE, "flush"): "consume queues cannot be written",
    (Kind.QUEUE, "remove"): "files of deleted queues cannot be removed",
    (Kind.INDEX, "flush"): "the key index cannot be written",
    (Kind.LEDGER_INDEX, "flush"): "the index of entries cannot be written",
    (Kind.TIMER, "enter"): "messages cannot be entered into the timer",
    (Kind.TIMER, "flush"): "the timer's files cannot be written",
    (Kind.CHECKPOINT, "flush"): "the checkpoint cannot be written",
    (Kind.SUMS, "flush"): "the sums cannot be written",
}

_NEXT = {
    Action.REFUSE: "remove the cause; the work is retried, and sends are accepted when it succeeds",
    Action.REDO: "check the disk and the kernel log if this continues; the data is written again",
    Action.RETRY: "no action needed: it is retried; until then a start after a crash reads more of the log",
    Action.ANSWER: "requests for it are rejected; changes by the broker itself are retried, and a "
    "restart before that loses them",
    Action.CARRY_ON: "no action needed: the file stays for now, and its removal is retried",
}


@dataclass(slots=True)
class StandingFailure:
    """Kind of work that is failing."""

    row: Row
    why: str
    since_s: float
    times: int
    said_s: float
    obstacle: Obstacle | None
    is_lifted: bool = False  # the obstacle is cleared for a trial


class StandingFailures:
    """Failures of one store, by kind of file and work. The event loop owns it."""

    def __init__(self, state: StoreState, clock: Clock) -> None:
        self.state = state
        self.current: dict[tuple[Kind, str], StandingFailure] = {}
        # Failures since the start, by kind, operation and name of the error.
        self.counted: Counter[tuple[str, str, str]] = Counter()
        self._clock = clock

    def failed(
        self,
        kind: Kind,
        error: StoreError,
        *,
        work: str,
        operation: Operation | None = None,
        full: bool = False,
    ) -> Row:
        """Apply the table's row to this failure of ``work``, and return the row.

        ``full``: the unwritten data no longer fits into memory, so sends are refused as well.
        """
        row = decide_error(kind, error, operation)
        number = error.os_error if isinstance(error, DiskError) else None
        step = operation or (error.operation if isinstance(error, DiskError) else Operation.WRITE)
        self.counted[kind.value, step.value, errno.errorcode.get(number or 0, "none")] += 1
        why = f"{_words(kind, work)}: {error}"
        if row.action is Action.FENCE:
            self.state.set(Obstacle.FENCED, why)
            return row
        obstacle = row.obstacle if row.action is Action.REFUSE else None
        if full:
            obstacle = row.obstacle or Obstacle.BEHIND
        now_s = self._clock.monotonic_s()
        standing = self.current.get((kind, work))
        tried_again = standing is not None and standing.is_lifted
        if standing is None:
            standing = StandingFailure(row, why, now_s, 0, now_s, None)
            self.current[kind, work] = standing
            if obstacle is None:  # an obstacle has its own log line
                self._say(kind, work, standing, row)
        standing.times += 1
        standing.row, standing.why = row, why
        if standing.obstacle not in (None, obstacle):
            assert standing.obstacle is not None
            self.state.clear(standing.obstacle, by=_name(kind, work))
        standing.obstacle, standing.is_lifted = obstacle, False
        if obstacle is not None:
            self.state.set(obstacle, why, by=_name(kind, work), quiet=tried_again)
        if now_s - standing.said_s >= SAY_AGAIN_S:
            self._say(kind, work, standing, row)
            standing.said_s = now_s
        return row

    def lift(self, kind: Kind, work: str) -> None:
        """Allow a trial of the work: sends are accepted until it fails once more. Not reported, because there
        is a trial every second."""
        standing = self.current.get((kind, work))
        if standing is not None and standing.obstacle is not None:
            self.state.clear(standing.obstacle, by=_name(kind, work), quiet=True)
            standing.obstacle, standing.is_lifted = None, True

    def passed(self, kind: Kind, work: str) -> None:
        """Note that the work succeeded. Cheap when it has not failed."""
        if not self.current:
            return
        standing = self.current.pop((kind, work), None)
        if standing is None:
            return
        log.warning(
            "store_works_again file=%r work=%r times=%d seconds=%.1f",
            kind.value, work, standing.times, self._clock.monotonic_s() - standing.since_s,
        )  # fmt: skip
        if standing.obstacle is not None:
            self.state.clear(standing.obstacle, by=_name(kind, work))

    def is_failing(self, kind: Kind, work: str) -> bool:
        return (kind, work) in self.current

    def reasons(self) -> list[str]:
        """Return descriptions of the failures that are no obstacle, for ``/healthz``."""
        return [each.why for each in self.current.values() if each.obstacle is None]

    def _say(self, kind: Kind, work: str, standing: StandingFailure, row: Row) -> None:
        log.error(
            "%s file=%r work=%r error=%r times=%d next=%r",
            row.line if row.obstacle is None else "store_failing",
            kind.value, work, standing.why, max(1, standing.times), _NEXT[row.action],
        )  # fmt: skip


def _words(kind: Kind, work: str) -> str:
    return _WORDS.get((kind, work), f"{kind.value}, {work}")


def _name(kind: Kind, work: str) -> str:
    return f"{kind.value}, {work}"
