"""Which leader wrote which part of this broker's log: how two logs of one group are compared.

Every election begins an epoch with a number of its own, and only the one who was elected writes in it. So two
logs that have an epoch with the same number and beginning are the same up to there; behind it they are the
same until the first of them left that epoch. A follower cuts its log back to that place
(:func:`common_end`), and copies on from there.
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections.abc import Callable, Sequence
from operator import attrgetter

from kerolox.protocol.bodies.controller import EpochRange
from kerolox.protocol.ha_epochs import Epoch
from kerolox.protocol.limits import INT64_MAX
from kerolox.store.disk.epoch_file import Epochs
from kerolox.store.message_store import MessageStore

_START = attrgetter("start")


class EpochHistory:
    """The epochs of one store. What changes them returns when the change is on disk, and raises StoreError
    with nothing changed."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._file = store.epochs

    @property
    def entries(self) -> Epochs:
        """Oldest first. Another tuple after every change."""
        return self._file.entries

    @property
    def last(self) -> int:
        """The number of the epoch the end of the log was written in; 0 when there is none."""
        entries = self._file.entries
        return entries[-1].number if entries else 0

    async def load(self) -> None:
        """Read them. A store that was opened for a controller has them already."""
        await self._in_keeper(self._load)

    async def begin(self, number: int, start: int) -> None:
        """This broker leads from now on, and what it appends is of this epoch. ``start`` is the end of the
        log. Later epochs, and those that begin there or behind it, hold no byte: they go. Raises
        :class:`kerolox.store.disk.epoch_file.EpochsFall` when the log has bytes of a later epoch."""
        await self._in_keeper(lambda: self._file.begin(number, start, self._store.log.min_offset))

    async def heard(self, epoch: Epoch) -> None:
        """The leader's next bytes are of this epoch: to be waited for before they are appended."""
        await self._in_keeper(lambda: self._file.heard(epoch, self._store.log.min_offset))

    async def take(self, epochs: Sequence[Epoch]) -> None:
        """The log is the leader's up to its end, and had no epochs of its own: it has the leader's."""
        await self._in_keeper(lambda: self._file.take(tuple(epochs)))

    async def cut(self, offset: int) -> None:
        """The log ends here. A cut of the store's log does this itself."""
        await self._in_keeper(lambda: self._file.cut(offset))

    async def drop_before(self, min_offset: int) -> None:
        """The log begins here. A store that deletes old files does this itself."""
        await self._in_keeper(lambda: self._file.drop_before(min_offset))

    def ranges(self) -> tuple[EpochRange, ...]:
        """For people: where each begins and ends. The last one is not over."""
        entries = self._file.entries
        ends = [*(epoch.start for epoch in entries[1:]), INT64_MAX]
        return tuple(
            EpochRange(epoch=epoch.number, start_offset=epoch.start, end_offset=end)
            for epoch, end in zip(entries, ends, strict=False)
        )

    def _load(self) -> None:
        self._file.load()
        self._file.fit(self._store.log.max_offset)

    async def _in_keeper(self, work: Callable[[], None]) -> None:
        # To its end, whoever asked for it: what is in memory and what is on disk is the same then.
        loop = asyncio.get_running_loop()
        await asyncio.shield(loop.run_in_executor(self._store.keeper, work))


def epoch_at(entries: Sequence[Epoch], offset: int) -> Epoch:
    """The epoch of the byte at an offset. What lies before the first known one counts to it."""
    return entries[max(0, bisect_right(entries, offset, key=_START) - 1)]


def epoch_end(entries: Sequence[Epoch], offset: int) -> int:
    """Up to where bytes from an offset on are told with the same epoch."""
    found = max(1, bisect_right(entries, offset, key=_START))
    return entries[found].start if found < len(entries) else INT64_MAX


def common_end(own: Sequence[Epoch], own_end: int, leader: Sequence[Epoch], leader_end: int) -> int | None:
    """Up to where two logs are the same, by their epochs: the last one both have, and in it the nearer of its
    two ends. Where both begin is the same, too: an epoch without a byte leaves no trace, so a leader whose
    first message was never copied and one that was elected before any other has none in common. None when
    they do not even begin together.

    RocketMQ 5.5.0 keeps epochs of what it has cut: with such a leader the result may lie too far on. So the
    last bytes before it are compared, too (:mod:`kerolox.replication.overlap`).
    """
    there = dict(_with_ends(leader, leader_end))
    for epoch, end in reversed(_with_ends(own, own_end)):
        if epoch in there:
            return min(end, there[epoch], own_end, leader_end)
    if own and leader and own[0].start == leader[0].start:
        return min(own[0].start, own_end, leader_end)
    return None


def _with_ends(epochs: Sequence[Epoch], end: int) -> list[tuple[Epoch, int]]:
    return [
        (epoch, epochs[number].start if number < len(epochs) else end)
        for number, epoch in enumerate(epochs, start=1)
    ]
