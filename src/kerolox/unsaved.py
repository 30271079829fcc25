"""Changes that were promised: on disk before anybody hears of success, or undone.

Whoever changes a table by name notes here what the name meant before. When the table was written the change
stays. When it could not be, the change is taken back and all who wait hear why: so memory and disk agree, and
nothing was acknowledged that a restart forgets.
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
    """A change could not be written, and was undone."""

    code = 14  # SERVICE_NOT_AVAILABLE
    retriable = True
    next_step = "try again when it can be: space or rights may be missing on that disk"

    def __init__(self, path: object, why: object) -> None:
        self.path = str(path)
        self.why = str(why)
        super().__init__(
            sentences(f"nothing was changed: {path} could not be written: {why}", self.next_step)
        )


# Told when a save has ended: None, or why the change is not on disk.
Then = Callable[["NotSaved | None"], None]
# Saves a table as it is now, soon, and tells when that has ended.
Save = Callable[[Then], None]


class _Change(Generic[V]):
    __slots__ = ("before", "waiting")

    def __init__(self, before: V | None) -> None:
        self.before = before
        self.waiting: list[Then] = []


class Unsaved(Generic[K, V]):
    """The changes of one table that are on their way to the disk.

    ``put_back`` gives a key the value it had; None: it was not there. Without ``save``, as in tests of parts,
    every change counts as written.
    """

    def __init__(self, put_back: Callable[[K, V | None], None]) -> None:
        self.save: Save | None = None
        self._put_back = put_back
        self._changes: dict[K, list[_Change[V]]] = {}  # the oldest first

    def __contains__(self, key: K) -> bool:
        return key in self._changes

    def __len__(self) -> int:
        return len(self._changes)

    def changed(self, key: K, before: V | None) -> None:
        """The table has just changed: save it, and keep the change or undo it."""
        if self.save is None:
            return
        change = _Change(before)
        self._changes.setdefault(key, []).append(change)
        self.save(lambda error: self._ended(key, change, error))

    def when_saved(self, key: K, then: Then) -> None:
        """Tell when the last change of this key has ended; at once when there is none under way."""
        changes = self._changes.get(key)
        if changes is None:
            then(None)
        else:
            changes[-1].waiting.append(then)

    def all_saved(self) -> Awaitable[None]:
        """The same as :meth:`saved` for all that are under way."""
        return self.saved(*self._changes)

    def saved(self, *keys: K) -> Awaitable[None]:
        """Wait until the changes of these keys are on disk. Raises NotSaved.

        Call it before anything else is awaited: a change that was undone meanwhile is none any more.
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
                left[at].before = change.before  # a later change stands on this one
            else:
                self._put_back(key, change.before)
        for then in [then for one in ended for then in one.waiting]:
            then(error)


def _end(future: asyncio.Future[NotSaved | None], error: NotSaved | None) -> None:
    if not future.done():
        future.set_result(error)


class _FirstError:
    """Awaits them all. An object, since a coroutine that is never awaited complains."""

    def __init__(self, ends: list[asyncio.Future[NotSaved | None]]) -> None:
        self._ends = ends

    def __await__(self) -> Generator[object, None, None]:
        for end in self._ends:
            error = yield from end
            if error is not None:
                raise error
