"""Changes that are acknowledged only once they are on disk, and undone otherwise.

The owner of a table records the previous value of each changed key here. After the table was written the
change is final. If the write fails, the change is undone and all waiting callers receive the error: so memory
and disk agree, and no acknowledged change is lost by a restart.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Generator
from functools import partial
from typing import Generic, TypeVar

from kerolox.errors import KeroloxError, sentences

K = TypeVar("K")
V = TypeVar("V")


class NotSaved(KeroloxError):
    """A change could not be written and was undone."""

    code = 14  # SERVICE_NOT_AVAILABLE
    retriable = True
    next_step = "free disk space or correct the permissions, then try again"

    def __init__(self, path: object, why: object) -> None:
        self.path = str(path)
        self.why = str(why)
        super().__init__(
            sentences(f"nothing was changed: {path} could not be written: {why}", self.next_step)
        )


# Called at the end of a save: with None, or with the error if the change is not on disk.
Then = Callable[["NotSaved | None"], None]
# Saves the current table soon and calls `Then` at the end.
Save = Callable[[Then], None]


class _Change(Generic[V]):
    __slots__ = ("before", "waiting")

    def __init__(self, before: V | None) -> None:
        self.before = before
        self.waiting: list[Then] = []


class Unsaved(Generic[K, V]):
    """The changes of one table that are being written.

    ``put_back`` restores the previous value of a key; None: the key did not exist. Without ``save``, as in
    unit tests, every change counts as written.
    """

    def __init__(self, put_back: Callable[[K, V | None], None], save: Save | None) -> None:
        self._save = save
        self._put_back = put_back
        self._changes: dict[K, list[_Change[V]]] = {}  # oldest first

    def __contains__(self, key: K) -> bool:
        return key in self._changes

    def __len__(self) -> int:
        return len(self._changes)

    def changed(self, key: K, before: V | None) -> None:
        """Record that the table has changed: save it, then keep or undo the change."""
        if self._save is None:
            return
        change = _Change(before)
        self._changes.setdefault(key, []).append(change)
        self._save(lambda error: self._ended(key, change, error))

    def when_saved(self, key: K, then: Then) -> None:
        """Call back when the last change of this key is final; at once if none is pending."""
        changes = self._changes.get(key)
        if changes is None:
            then(None)
        else:
            changes[-1].waiting.append(then)

    def all_saved(self) -> Awaitable[None]:
        """Wait until all pending changes are on disk. Raises NotSaved."""
        return self.saved(*self._changes)

    def saved(self, *keys: K) -> Awaitable[None]:
        """Wait until the changes of these keys are on disk. Raises NotSaved.

        Call it before anything else is awaited: a change that was undone meanwhile is no longer known.
        """
        loop = asyncio.get_running_loop()
        ends: list[asyncio.Future[NotSaved | None]] = []
        for key in keys:
            ends.append(loop.create_future())
            self.when_saved(key, partial(_end, ends[-1]))
        return _FirstError(ends)

    def _ended(self, key: K, change: _Change[V], error: NotSaved | None) -> None:
        changes = self._changes.get(key, [])
        if change not in changes:
            return  # a later save had it, too
        at = changes.index(change)
        if error is None:
            ended, left = changes[: at + 1], changes[at + 1 :]
        else:
            ended, left = [change], changes[:at] + changes[at + 1 :]
        if left:
            self._changes[key] = left
        else:
            del self._changes[key]
        if error is not None:
            if at < len(left):
                left[at].before = change.before  # the later change now builds on this one's previous value
            else:
                self._put_back(key, change.before)
        for then in [then for one in ended for then in one.waiting]:
            then(error)


def _end(future: asyncio.Future[NotSaved | None], error: NotSaved | None) -> None:
    if not future.done():
        future.set_result(error)


class _FirstError:
    """Awaits all of them. An object, because a coroutine that is never awaited would warn."""

    def __init__(self, ends: list[asyncio.Future[NotSaved | None]]) -> None:
        self._ends = ends

    def __await__(self) -> Generator[object, None, None]:
        for end in self._ends:
            error = yield from end
            if error is not None:
                raise error
