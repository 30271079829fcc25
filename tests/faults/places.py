"""Places of the fault matrix: a kind of file, an operation, an error number, and the row that decides."""

from __future__ import annotations

import errno
import os
from typing import NamedTuple

from kerolox.store.errors import Operation
from kerolox.store.failures import Kind, Row, combinations

# Sampled by the gate: with every kind and operation.
GATE_ERRORS = (errno.EIO, errno.ENOSPC, errno.EMFILE)
_NOTES = ("kerolox.deleted", "kerolox.cut", "epochFileCheckpoint")


class Place(NamedTuple):
    kind: Kind
    operation: Operation
    number: int
    row: Row

    @property
    def name(self) -> str:
        return f"{self.kind.value}-{self.operation.value}-{errno.errorcode[self.number]}"


def places(*kinds: Kind) -> list[Place]:
    """Every combination of these kinds that the table of failures knows."""
    return [Place(*found) for found in combinations() if found[0] in kinds]


def kind_of(path: str) -> Kind | None:
    """The kind of file at a path of a store; None for what belongs to none, as directories of a server."""
    words = path.split(os.sep)
    name = words[-1].removesuffix(".tmp").removesuffix(".bak")
    if "commitlog" in words:
        return Kind.LOG
    if "consumequeue" in words or "consumequeue_ext" in words:
        return Kind.QUEUE
    if "timerlog" in words or name in ("timerwheel", "timercheck", "kerolox.timer"):
        return Kind.TIMER
    if name in ("checkpoint", "kerolox.marks"):
        return Kind.CHECKPOINT
    if any(word.startswith("dledger-") for word in words):
        return Kind.LEDGER_INDEX if "index" in words else Kind.LOG
    if "index" in words:
        return Kind.INDEX
    if name == "kerolox.sums":
        return Kind.SUMS
    if name in _NOTES:
        return Kind.NOTE
    if name in ("lock", "abort"):
        return Kind.LOCK
    return Kind.TABLE if "config" in words else None


class Fault(NamedTuple):
    """A fault as FaultyFiles asks it."""

    kind: Kind
    operation: Operation
    number: int

    def __call__(self, operation: Operation, path: str) -> int | None:
        return self.number if operation is self.operation and kind_of(path) is self.kind else None
