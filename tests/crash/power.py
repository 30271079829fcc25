"""A machine that loses power while a store is written: in this process, on a disk that only pretends.

Only synchronous flush promises anything here: what it acknowledged is there. And whatever else the disk
kept of the unflushed pages, in whatever order, the store opens and agrees with itself.
"""

from __future__ import annotations

import asyncio
import random
import shutil
from collections.abc import Iterator
from pathlib import Path

from kerolox.errors import KeroloxError
from kerolox.store.message_store import MessageStore
from kerolox.testing.faults import FaultyFiles

from .messages import BLOCK, BORN_HOST, BORN_MS, message, options
from .verify import Place, Verified, Violation, verify

WRITERS = 5


class FailingPower(FaultyFiles):
    """Loses power at a chosen flush: before it begins to count."""

    def __init__(self, at_sync: int, seed: int | None) -> None:
        super().__init__()
        self.left = at_sync
        self.seed = seed
        self.lost = False

    def lose_power(self) -> None:
        with self._lock:
            if not self.lost:
                self.lost = True
                # The old store is only dead as far as the test is concerned: it must not write any more.
                self.read_only = True
                self.power_loss(self.seed, names=True)

    def _before_sync(self, path: str) -> None:
        with self._lock:
            self.left -= 1
            if self.left <= 0:
                self.lose_power()
        super()._before_sync(path)


class PowerCut:
    """One directory and one seed: rounds of writing and losing power."""

    def __init__(self, root: Path, seed: int, mode: str = "sync") -> None:
        self.root = root
        self.seed = seed
        self.mode = mode
        self.chance = random.Random(f"power-{mode}-{seed}")
        self.acked: dict[int, Place] = {}
        self.acknowledged = 0
        self.losses = 0
        self.looked_for = 0
        self.story: list[str] = []

    async def run(self, losses: int) -> Verified:
        """That many losses, each followed by a look at what is left."""
        while True:
            await self._lose_power_once()
            disk = FaultyFiles()
            if self.mode != "sync":
                self.acked.clear()  # nothing of it was promised to survive this
            try:
                seen = await verify(
                    str(self.root), self.mode, self.acked, files=disk, boot=f"boot {self.losses}b"
                )
            except Exception as error:
                told = "\n".join(self.story[-6:])
                raise Violation(f"{type(error).__name__}: {error}\nseed {self.seed}:\n{told}") from error
            self.looked_for += len(self.acked)
            self.story.append(f"  verified {seen}")
            if self.losses >= losses:
                return seen

    async def _lose_power_once(self) -> None:
        chance = self.chance
        self.losses += 1
        at = int(2 ** chance.uniform(0, 8))
        how = None if chance.random() < 0.2 else chance.randrange(1 << 30)
        self.story.append(f"loss {self.losses}: at flush {at}, pages by {how}")
        disk = FailingPower(at, how)
        store = MessageStore(options(str(self.root), self.mode), files=disk, boot=f"boot {self.losses}a")
        try:
            await store.open()
        except KeroloxError:
            if not disk.lost:
                raise
            return
        blocks = iter(range(self.losses << 20, (self.losses << 20) + 400))
        await asyncio.gather(*(self._write(store, disk, blocks) for _ in range(WRITERS)))
        disk.lose_power()
        await store.close()

    async def _write(self, store: MessageStore, disk: FailingPower, blocks: Iterator[int]) -> None:
        log = store.log
        for block in blocks:
            numbers = range(block * BLOCK, block * BLOCK + self.chance.randint(1, BLOCK))
            first = message(numbers[0])
            try:
                store.state.check_writable()
                items = [(m.flag, m.body, m.properties) for m in map(message, numbers)]
                places = log.append_batch(
                    log.cursor(first.topic, first.queue_id),
                    items,
                    born_timestamp=BORN_MS,
                    born_host=BORN_HOST,
                )
                log.write()
                if self.mode == "sync":
                    await store.acks.safe(places[-1][0] + places[-1][2])
                else:
                    await asyncio.sleep(self.chance.choice((0, 0.001)))
            except KeroloxError:
                if not disk.lost:
                    raise
                return
            self.acked.update(zip(numbers, places, strict=True))
            self.acknowledged += len(places)

    def clear(self) -> None:
        shutil.rmtree(self.root, ignore_errors=True)
