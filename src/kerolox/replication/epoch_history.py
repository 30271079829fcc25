"""The epochs of this broker's log, by which two logs of one group are compared.

Every election begins an epoch with a unique number, and only the elected broker writes in it. So two logs
with an epoch of the same number and start are equal up to there; behind it they are equal until the end of
that epoch in either log. A follower truncates its log to that offset (:func:`common_end`) and continues from
there.
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
    """The epochs of one store. Methods that change them return once the change is on disk, and raise
    StoreError if nothing was changed."""

    def __init__(self, store: MessageStore) -> None:
        self._store = store
        self._file = store.notes.epochs

    @property
    def entries(self) -> Epochs:
        """Oldest first. A new tuple after every change."""
        return self._file.entries

    @property
    def last(self) -> int:
        """The number of the epoch at the end of the log; 0 if there is none."""
        entries = self._file.entries
        return entries[-1].number if entries else 0

    async def load(self) -> None:
        """Load the epochs. A store opened for a controller has loaded them already."""
        await self._in_thread(self._load)

    async def begin(self, number: int, start: int) -> None:
        """Begin an epoch: this broker leads from now on. ``start`` is the end of the log. Later epochs, and
        those that begin at or behind it, contain no byte and are removed. Raises
        :class:`kerolox.store.disk.epoch_file.EpochsFall` if the log has bytes of a later epoch."""
        await self._in_thread(lambda: self._file.begin(number, start, self._store.log.min_offset))

    async def heard(self, epoch: Epoch) -> None:
        """Store the epoch of the leader's next bytes; wait for it before they are appended."""
        await self._in_thread(lambda: self._file.heard(epoch, self._store.log.min_offset))

    async def take(self, epochs: Sequence[Epoch]) -> None:
        """Take over the leader's epochs: this log had none and equals the leader's up to its end."""
        await self._in_thread(lambda: self._file.take(tuple(epochs)))

    async def cut(self, offset: int) -> None:
        """Remove epochs behind the new end of the log. Truncating the store's log does this automatically."""
        await self._in_thread(lambda: self._file.cut(offset))

    async def drop_before(self, min_offset: int) -> None:
        """Remove epochs before the new start of the log. A store that deletes old files does this
        automatically."""
        await self._in_thread(lambda: self._file.drop_before(min_offset))

    def ranges(self) -> tuple[EpochRange, ...]:
        """Return the range of each epoch, for display. The last one has no end."""
        entries = self._file.entries
        ends = [*(epoch.start for epoch in entries[1:]), INT64_MAX]
        return tuple(
            EpochRange(epoch=epoch.number, start_offset=epoch.start, end_offset=end)
            for epoch, end in zip(entries, ends, strict=False)
        )

    def _load(self) -> None:
        self._file.load()
        self._file.fit(self._store.log.max_offset)

    async def _in_thread(self, work: Callable[[], None]) -> None:
        # Never cancelled midway, so that memory and disk stay equal.
        loop = asyncio.get_running_loop()
        await asyncio.shield(loop.run_in_executor(self._store.urgent, work))


def epoch_at(entries: Sequence[Epoch], offset: int) -> Epoch:
    """Return the epoch of the byte at an offset. Bytes before the first known epoch count to it."""
    return entries[max(0, bisect_right(entries, offset, key=_START) - 1)]


def epoch_end(entries: Sequence[Epoch], offset: int) -> int:
    """Return the end of the range from `offset` that is sent with one epoch."""
    found = max(1, bisect_right(entries, offset, key=_START))
    return entries[found].start if found < len(entries) else INT64_MAX


def common_end(own: Sequence[Epoch], own_end: int, leader: Sequence[Epoch], leader_end: int) -> int | None:
    """Return the offset up to which two logs agree, by their epochs: in the last common epoch the nearer of
    its two ends.

    A common start agrees as well: an epoch without a byte is not recorded, so a leader whose first message
    was never replicated and a broker that was elected before any other have no epoch in common. Returns None
    if the starts differ too.

    RocketMQ 5.5.0 keeps epochs of bytes that it truncated: with such a leader the result may be too high. So
    the last bytes before it are compared as well (:mod:`kerolox.replication.overlap`).
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
