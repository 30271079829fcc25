"""Consequences of file failures: one table for all kinds of files, operations and error numbers.

Every part of the store and the broker that chooses between fencing, refusing, retrying and carrying on calls
:func:`decide`. RELIABILITY.md shows the same rows (``tests/store/test_failures.py`` compares them), and the
fault matrix is generated from them.

An open for a read counts as READ, an open for a write or a flush as OPEN. Every step of making the next file
of the log counts as CREATE, because that file holds no data yet.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from dataclasses import dataclass
from enum import Enum
from functools import cache

from kerolox.store.errors import DiskError, FsyncFailed, Operation, StoreError
from kerolox.store.state import Obstacle

__all__ = ["TABLE", "Action", "Kind", "Operation", "Row", "decide", "decide_error", "markdown"]


class Kind(Enum):
    """Kinds of files in a store."""

    LOG = "log"
    QUEUE = "queue"  # includes its extension
    INDEX = "key index"
    LEDGER_INDEX = "entry index"  # of a DLedger log
    CHECKPOINT = "checkpoint"  # RocketMQ's checkpoint and kerolox's progress notes
    SUMS = "sums"
    TIMER = "timer"  # its log, wheel and checkpoint
    NOTE = "note"  # written before an operation: deleted topics, a cut of the log, epochs
    TABLE = "table"  # JSON in config/
    LOCK = "lock"  # lock and abort


class Action(Enum):
    """Reactions of the store."""

    FENCE = "fence"  # refuse sends until a restart
    REFUSE = "refuse sends, retry"  # until a retry succeeds
    REDO = "write again"  # continue; unflushed data is written and flushed again
    RETRY = "retry"  # continue; the same work is repeated
    ANSWER = "answer"  # only the request fails
    CARRY_ON = "carry on"  # continue; the file stays, and its removal is repeated


NO_SPACE = frozenset({errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC)})
NO_FILES = frozenset({errno.EMFILE, errno.ENFILE})
ANY: frozenset[int] = frozenset()

# Error numbers that the tests use in addition to those that a row names.
USUAL = (
    errno.EIO, errno.ENOSPC, getattr(errno, "EDQUOT", errno.ENOSPC), errno.EMFILE, errno.ENFILE, errno.EACCES,
    errno.EPERM, errno.EROFS, errno.ENOENT, errno.EEXIST,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Row:
    """Row of the table. ``errors`` empty: any error number."""

    kinds: tuple[Kind, ...]
    operations: tuple[Operation, ...]
    errors: frozenset[int]
    action: Action
    senders: str
    readers: str
    line: str  # event word in the log; empty: no line, the answered error reports it
    gauge: str  # empty: none
    ends: str
    obstacle: Obstacle | None = None

    def covers(self, kind: Kind, operation: Operation, number: int | None) -> bool:
        return (
            kind in self.kinds and operation in self.operations and (not self.errors or number in self.errors)
        )

    @property
    def may_pass(self) -> bool:
        """Return True if the same call may succeed later without a restart."""
        return self.action is not Action.FENCE


_ALL = tuple(Operation)
_DERIVED = (Kind.QUEUE, Kind.INDEX, Kind.LEDGER_INDEX, Kind.TIMER)
_CHANGES = tuple(each for each in Operation if each not in (Operation.READ, Operation.REMOVE))
# For the log: after a failed flush the content of the medium is unknown, whatever the reason was.
_BUT_FLUSH = tuple(each for each in _CHANGES if each is not Operation.FLUSH)
_OBSTACLE = "kerolox_store_obstacle"
_FAILING = "kerolox_store_failing"
_REFUSED = "14, may be sent again"
_FENCED = "14 until a restart"

# The first row that covers a failure applies.
TABLE: tuple[Row, ...] = (
    # --- reading -------------------------------------------------------------------------------------
    Row(
        (Kind.LOG, *_DERIVED), (Operation.READ,), ANY, Action.ANSWER,
        "taken", "2 (SYSTEM_BUSY) with file, offset and error; may be asked again, progress stands still",
        "store_unreadable", "kerolox_store_unreadable_files",
        "when the place can be read again, within seconds",
    ),
    # --- the log -------------------------------------------------------------------------------------
    Row(
        (Kind.LOG,), _BUT_FLUSH, NO_SPACE, Action.REFUSE,
        _REFUSED, "served", "store_not_writable", _OBSTACLE, "when there is space, within seconds",
        Obstacle.DISK_FULL,
    ),
    Row(
        (Kind.LOG,), _BUT_FLUSH, NO_FILES, Action.REFUSE,
        _REFUSED, "served", "store_not_writable", _OBSTACLE, "when a descriptor is free, within seconds",
        Obstacle.NO_DESCRIPTOR,
    ),
    Row(
        (Kind.LOG,), (Operation.CREATE,), ANY, Action.REFUSE,
        _REFUSED, "served", "store_not_writable", _OBSTACLE, "when the next file can be made, within seconds",
        Obstacle.NO_NEXT_FILE,
    ),
    Row(
        (Kind.LOG,), (Operation.REMOVE,), ANY, Action.CARRY_ON,
        "taken", "served", "store_failing", _FAILING, "removed in a later round",
    ),
    Row(
        (Kind.LOG,), _CHANGES, ANY, Action.FENCE,
        _FENCED, "served", "store_not_writable", _OBSTACLE, "by a restart: recovery keeps what is there",
        Obstacle.FENCED,
    ),
    # --- files that are made of the log --------------------------------------------------------------
    Row(
        _DERIVED, _CHANGES, NO_SPACE, Action.REFUSE,
        _REFUSED, "served", "store_not_writable", _OBSTACLE, "when there is space, within seconds",
        Obstacle.DISK_FULL,
    ),
    Row(
        _DERIVED, _CHANGES, NO_FILES, Action.REFUSE,
        _REFUSED, "served", "store_not_writable", _OBSTACLE, "when a descriptor is free, within seconds",
        Obstacle.NO_DESCRIPTOR,
    ),
    Row(
        _DERIVED, (Operation.REMOVE,), ANY, Action.CARRY_ON,
        "taken", "served", "store_failing", _FAILING, "removed in a later round, or by the next start",
    ),
    Row(
        (Kind.LEDGER_INDEX,), _BUT_FLUSH, ANY, Action.REFUSE,
        _REFUSED, "served", "store_not_writable", _OBSTACLE, "when the unit of an entry can be written",
        Obstacle.BEHIND,
    ),
    Row(
        _DERIVED, _CHANGES, ANY, Action.REDO,
        "taken; 14, may be sent again, once more waits than memory is meant for", "served from memory",
        "store_failing", _FAILING, "with a round that writes and flushes all of it, or by a restart",
        Obstacle.BEHIND,
    ),
    # --- our notes -----------------------------------------------------------------------------------
    Row(
        (Kind.CHECKPOINT, Kind.SUMS), _ALL, NO_SPACE, Action.REFUSE,
        _REFUSED, "served", "store_not_writable", _OBSTACLE, "when there is space, within seconds",
        Obstacle.DISK_FULL,
    ),
    Row(
        (Kind.CHECKPOINT, Kind.SUMS), _ALL, ANY, Action.RETRY,
        "taken", "served", "store_failing", _FAILING, "with a round that succeeds; a start reads more",
    ),
    Row(
        (Kind.NOTE,), _ALL, ANY, Action.ANSWER,
        "taken", "served; what asked for the act gets 14, and nothing was done", "", "",
        "when it is asked for again and succeeds",
    ),
    Row(
        (Kind.TABLE,), _ALL, ANY, Action.ANSWER,
        "taken; 14 where the topic is new", "served; a change of a table gets 14, and was undone",
        "table_not_saved", _FAILING, "with the next save, within seconds",
    ),
    Row(
        (Kind.LOCK,), (Operation.REMOVE,), ANY, Action.CARRY_ON,
        "taken", "served", "abort_not_removed", "", "the next start recovers as after a crash",
    ),
    Row(
        (Kind.LOCK,), _ALL, ANY, Action.ANSWER,
        "the broker does not start", "the broker does not start", "", "",
        "when the file can be used",
    ),
)  # fmt: skip


@cache
def decide(kind: Kind, operation: Operation, number: int | None) -> Row:
    """Return the row for a failure. ``number`` None: the error has no error number."""
    for row in TABLE:
        if row.covers(kind, operation, number):
            return row
    raise LookupError(f"no row for {kind.value}, {operation.value}, {number}")


def decide_error(kind: Kind, error: StoreError, operation: Operation | None = None) -> Row:
    """Return the row for an error. ``operation``: the work under way, where it decides and not the failed
    step."""
    if isinstance(error, FsyncFailed):
        return decide(kind, operation or Operation.FLUSH, error.os_error)
    if isinstance(error, DiskError):
        return decide(kind, operation or error.operation, error.os_error)
    if operation is not None:
        return decide(kind, operation, None)
    # Not a disk error but a gap in a queue or a damaged record: a retry gives the same result.
    return decide(Kind.LOG, Operation.WRITE, None)


def combinations() -> Iterator[tuple[Kind, Operation, int, Row]]:
    """Go through every kind, operation and usual error number, with its row."""
    for kind in Kind:
        for operation in Operation:
            for number in USUAL:
                yield kind, operation, number, decide(kind, operation, number)


def markdown() -> str:
    """Return the table as RELIABILITY.md shows it."""
    lines = [
        "| file | operation | error | the store | senders | readers | log line | gauge | ends |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in TABLE:
        operations = "any" if row.operations == _ALL else ", ".join(each.value for each in row.operations)
        names = sorted({errno.errorcode[number] for number in row.errors})
        obstacle = f" (`{row.obstacle.value}`)" if row.obstacle is not None else ""
        shown = [f"`{word}`" if word else "–" for word in (row.line, row.gauge)]
        cells = (
            ", ".join(kind.value for kind in row.kinds), operations, ", ".join(names) or "any other",
            f"{row.action.value}{obstacle}", row.senders, row.readers, *shown, row.ends,
        )  # fmt: skip
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"
