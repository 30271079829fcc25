"""The table of file failures: complete, consistent, and the one in the documentation."""

from __future__ import annotations

import ast
import errno
from pathlib import Path

import pytest

import kerolox
from kerolox.store.errors import QueueGap, disk_error, sync_error
from kerolox.store.failures import (
    TABLE,
    Action,
    Kind,
    Operation,
    combinations,
    decide,
    decide_error,
    markdown,
)
from kerolox.store.state import Obstacle

RELIABILITY = Path(__file__).parents[2] / "docs" / "RELIABILITY.md"
SOURCE = Path(kerolox.__file__).parent


def test_every_failure_has_a_row() -> None:
    found = list(combinations())
    assert len(found) == len(Kind) * len(Operation) * 10
    for kind in Kind:
        for operation in Operation:
            assert decide(kind, operation, None).action in Action


def test_every_row_decides_something() -> None:
    used = {id(row) for *_, row in combinations()}
    assert [row.line for row in TABLE if id(row) not in used] == []


def test_only_the_log_fences() -> None:
    fenced = {kind for kind, _, _, row in combinations() if row.action is Action.FENCE}
    assert fenced == {Kind.LOG}
    for kind in Kind:
        for operation in Operation:
            for number in (errno.EMFILE, errno.ENFILE, errno.ENOSPC):
                if operation is not Operation.READ:
                    is_log_flush = (kind, operation) == (Kind.LOG, Operation.FLUSH)
                    assert decide(kind, operation, number).may_pass is not is_log_flush


def test_rows_that_refuse_sends_name_the_obstacle() -> None:
    for row in TABLE:
        if row.action in (Action.REFUSE, Action.FENCE):
            assert row.obstacle is not None
            assert (row.obstacle is Obstacle.FENCED) == (row.action is Action.FENCE)


@pytest.mark.parametrize(
    ("action", "operation"),
    [
        ("open", Operation.OPEN),
        ("open directory", Operation.OPEN),
        ("create", Operation.CREATE),
        ("allocate", Operation.CREATE),
        ("make directory", Operation.CREATE),
        ("write", Operation.WRITE),
        ("read", Operation.READ),
        ("list", Operation.READ),
        ("look at", Operation.READ),
        ("remove", Operation.REMOVE),
        ("remove directory", Operation.REMOVE),
        ("rename to /x", Operation.RENAME),
        ("truncate", Operation.TRUNCATE),
    ],
)
def test_an_error_knows_its_operation(action: str, operation: Operation) -> None:
    assert disk_error(OSError(errno.EIO, "x"), action, "/x").operation is operation


def test_errors_are_decided_by_what_was_done() -> None:
    full = disk_error(OSError(errno.EDQUOT, "quota"), "allocate", "/x")
    assert decide_error(Kind.LOG, full).obstacle is Obstacle.DISK_FULL
    assert decide_error(Kind.LOG, sync_error(OSError(errno.EIO, "x"), "/x")).action is Action.FENCE
    # The flush of a new file, before anything lies in it.
    made = decide_error(Kind.LOG, sync_error(OSError(errno.EIO, "x"), "/x"), Operation.CREATE)
    assert made.obstacle is Obstacle.NO_NEXT_FILE
    assert decide_error(Kind.QUEUE, sync_error(OSError(errno.EIO, "x"), "/x")).action is Action.REDO
    assert decide_error(Kind.QUEUE, QueueGap("t", 0, 1, 2, "/a/b/c/d")).action is Action.FENCE


def test_the_documentation_shows_the_table() -> None:
    assert markdown() in RELIABILITY.read_text(), (
        "put the output of kerolox.store.failures.markdown() into docs/RELIABILITY.md"
    )


# Decisions that the table does not take: what the disk looks like, and what leaves two files that contradict
# each other.
OTHER_OBSTACLES = {
    ("store/expiry.py", "DISK_FULL"),  # by space that is left, not by a failure
    ("store/truncate.py", "FENCED"),  # half a cut
    ("store/log/flush.py", "FENCED"),  # an error that is not the disk's
    ("store/standing_failures.py", "FENCED"),
}
FAILURES = {"DISK_FULL", "FENCED", "NO_DESCRIPTOR", "NO_NEXT_FILE", "BEHIND"}


def test_all_who_catch_failures_ask_the_table() -> None:
    """A fence, an obstacle, or a look at the kind of an error is a decision: it stands in the table."""
    found: set[tuple[str, str]] = set()
    wrong: list[str] = []
    for part in ("store", "broker"):
        for path in (SOURCE / part).rglob("*.py"):
            name = str(path.relative_to(SOURCE))
            if name in ("store/failures.py", "store/errors.py") or name.startswith("store/offline/"):
                continue
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.Name) and node.id in ("DiskFull", "TooManyOpenFiles", "ReadOnlyDisk"):
                    wrong.append(f"{name}:{node.lineno} decides by {node.id}")
                if isinstance(node, ast.Attribute) and node.attr == "os_error" and "store/" not in name:
                    wrong.append(f"{name}:{node.lineno} decides by an error number")
                if isinstance(node, ast.Call) and ast.unparse(node.func).endswith("state.set") and node.args:
                    obstacle = ast.unparse(node.args[0]).removeprefix("Obstacle.")
                    found |= {(name, obstacle)} & {(name, failure) for failure in FAILURES}
    assert not wrong
    assert found == OTHER_OBSTACLES
