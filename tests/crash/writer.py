"""The process that is killed: writes messages and tells, over a pipe, of each that counts.

What is told is what the mode promises to survive the process: under synchronous flush what was flushed,
under the transient buffer what was committed, else what ``write`` has returned for.
"""

from __future__ import annotations

import asyncio
import os
import random
from typing import Any

from kerolox.store.disk.files import Files
from kerolox.store.log.acks import NotSafe
from kerolox.store.log.commit_log import Place
from kerolox.store.message_store import MessageStore

from .dying import DyingFiles
from .messages import BLOCK, BORN_HOST, BORN_MS, message, options


class Writer:
    """One life of a store: opened, written to, perhaps closed, if nobody kills it before.

    The plan: ``root``, ``mode``, ``seed``, ``first_block``, ``blocks`` (how many until it closes the
    store), and perhaps ``die`` (the arguments of DyingFiles).
    """

    def __init__(self, plan: dict[str, Any], pipe: int) -> None:
        self.plan = plan
        self.mode = str(plan["mode"])
        self.chance = random.Random(plan["seed"])
        self.pipe = pipe
        self.uncommitted: list[tuple[int, str]] = []

    def tell(self, line: str) -> None:
        # At most a page: a pipe takes that whole, so a kill leaves no half of it.
        os.write(self.pipe, line.encode())

    async def run(self) -> None:
        die = self.plan.get("die")
        files = Files() if die is None else DyingFiles(**die)
        self.store = MessageStore(options(self.plan["root"], self.mode), files=files)
        self.tell("opening\n")
        found = await self.store.open()
        self.tell(f"open {int(found.crashed)} {found.end}\n")
        first = int(self.plan["first_block"])
        blocks = iter(range(first, first + int(self.plan["blocks"])))
        # Under synchronous flush several write at once: they share flushes.
        await asyncio.gather(*(self.write(blocks) for _ in range(4 if self.mode == "sync" else 1)))
        self.tell("closing\n")
        await self.store.close()
        self.tell("closed\n")

    async def write(self, blocks: Any) -> None:
        chance = self.chance
        log = self.store.log
        for block in blocks:
            numbers = range(block * BLOCK, block * BLOCK + chance.randint(1, BLOCK))
            way = chance.randrange(3)
            cursor = log.cursor(message(numbers[0]).topic, message(numbers[0]).queue_id)
            if way == 0:
                items = [(m.flag, m.body, m.properties) for m in map(message, numbers)]
                places = log.append_batch(cursor, items, born_timestamp=BORN_MS, born_host=BORN_HOST)
                log.write()
                await self.acknowledge(numbers, places)
            elif way == 1:
                places = [self.append(cursor, number) for number in numbers]
                log.write()
                await self.acknowledge(numbers, places)
            else:
                for number in numbers:
                    place = self.append(cursor, number)
                    log.write()
                    await self.acknowledge(range(number, number + 1), [place])
            await asyncio.sleep(chance.choice((0, 0, 0.0005)))
            self.acknowledge_committed()

    def append(self, cursor: Any, number: int) -> Place:
        m = message(number)
        return self.store.log.append(
            cursor, m.body, m.properties, flag=m.flag, born_timestamp=BORN_MS, born_host=BORN_HOST
        )

    async def acknowledge(self, numbers: range, places: list[Place]) -> None:
        end = places[-1][0] + places[-1][2]
        if self.mode == "sync":
            try:
                await self.store.acks.safe(end)
            except NotSafe:
                return  # a slow disk: stored, perhaps, and not acknowledged
        rows = zip(numbers, places, strict=True)
        text = "".join(
            f"ack {number} {physical} {offset} {size}\n" for number, (physical, offset, size) in rows
        )
        if self.mode == "transient":
            self.uncommitted.append((end, text))
            self.acknowledge_committed()
        else:
            self.tell(text)

    def acknowledge_committed(self) -> None:
        while self.uncommitted and self.uncommitted[0][0] <= self.store.progress.committed:
            self.tell(self.uncommitted.pop(0)[1])


def run(plan: dict[str, Any], pipe: int) -> None:
    asyncio.run(Writer(plan, pipe).run())
