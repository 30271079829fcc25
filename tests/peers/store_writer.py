"""A process of its own that writes to a store, so that it can be killed, and what it writes.

Run as ``python -m tests.peers.store_writer PLAN``: it opens the store, appends, tells of each message by
one line of JSON once it is acknowledged, says "done", and closes the store when its input ends.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import zlib
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kerolox.protocol import properties as names
from kerolox.protocol.hosts import host_bytes
from kerolox.protocol.reserved import SCHEDULE_TOPIC
from kerolox.store.message_store import MessageStore
from kerolox.store.options import StoreOptions

ROOT = Path(__file__).parents[2]
LOG_FILE_BYTES = 256 * 1024
QUEUE_FILE_BYTES = 20 * 100
INDEX_SLOTS = 10_000
INDEX_ENTRIES = 40_000
HALF_TOPIC = "RMQ_SYS_TRANS_HALF_TOPIC"
LAST_LEVEL = 18
_COMPRESSED = 0x1
_BORN_HOST = host_bytes("10.1.2.3:4567")


@dataclass(frozen=True)
class Plan:
    """What to write. ``first`` keeps the numbers of several writers of one store apart."""

    root: str
    store_host: str
    topics: tuple[tuple[str, int], ...]  # with the number of queues
    first: int = 0
    count: int = 150
    soon: int = 0  # how many messages to delay by a second


def store_options(root: Path | str) -> StoreOptions:
    """The sizes Apache's broker is given in these tests (BROKER_SIZES)."""
    return StoreOptions(
        store_path=str(root),
        commit_log_file_bytes=LOG_FILE_BYTES,
        queue_file_bytes=QUEUE_FILE_BYTES,
        index_slots=INDEX_SLOTS,
        index_entries=INDEX_ENTRIES,
        disk_free_enough=64 << 20,
    )


BROKER_SIZES = {
    "mappedFileSizeCommitLog": LOG_FILE_BYTES,
    "mappedFileSizeConsumeQueue": QUEUE_FILE_BYTES,
    "maxHashSlotNum": INDEX_SLOTS,
    "maxIndexNum": INDEX_ENTRIES,
}


def text_of(number: int) -> str:
    """What a consumer must get of a message."""
    return f"ours {number} " + "äöü." * (number * 37 % 700)


def table_of(number: int) -> dict[str, str]:
    """Its properties."""
    table = {
        "UNIQ_KEY": f"7F0000010000{number:020X}",
        "colour": ("red", "grün")[number % 2],
        "n": str(number),
    }
    if number % 3:
        table["TAGS"] = ("A", "B", "Ünï")[number % 3]
    if number % 4:
        table["KEYS"] = f"ours{number} shared{number % 5}"
    return table | {"WAIT": "true", "CLUSTER": "DefaultCluster"}


class Write:
    """One run of the process."""

    def __init__(self, plan: Plan) -> None:
        self.plan = plan
        self.store = MessageStore(store_options(plan.root), store_host=host_bytes(plan.store_host))

    async def run(self) -> None:
        await self.store.open()
        numbers = iter(range(self.plan.first, self.plan.first + self.plan.count))
        queues = [(topic, queue_id) for topic, count in self.plan.topics for queue_id in range(count)]
        for turn, number in enumerate(numbers):
            topic, queue_id = queues[turn % len(queues)]
            if turn % 9 == 4:
                await self.batch(
                    topic, queue_id, [number, *(n for _, n in zip(range(6), numbers, strict=False))]
                )
            else:
                await self.single(number, topic, queue_id, compress=turn % 7 == 3)
        topic, _ = self.plan.topics[0]
        end = self.plan.first + self.plan.count
        for number in range(end, end + self.plan.soon):
            await self.delayed(number, topic, 0, 1)
        await self.delayed(end + 100, topic, 1, LAST_LEVEL)
        await self.half(end + 101, topic, 0)
        self.tell("done")
        await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
        await self.store.close()
        self.tell("closed")

    def tell(self, what: object) -> None:
        sys.stdout.write(json.dumps(what) + "\n")
        sys.stdout.flush()

    async def single(
        self,
        number: int,
        topic: str,
        queue_id: int,
        *,
        compress: bool = False,
        more: dict[str, str] | None = None,
    ) -> None:
        body = text_of(number).encode()
        properties = names.pack(table_of(number) | (more or {}))
        place = await self.store.put(
            topic,
            queue_id,
            zlib.compress(body) if compress else body,
            properties,
            flag=number % 1000,
            sys_flag=_COMPRESSED if compress else 0,
            born_host=_BORN_HOST,
        )
        self.tell([number, topic, queue_id, place[1], place[0]])

    async def batch(self, topic: str, queue_id: int, numbers: list[int]) -> None:
        log = self.store.log
        items = [(n % 1000, text_of(n).encode(), names.pack(table_of(n))) for n in numbers]
        places = log.append_batch(
            log.cursor(topic, queue_id),
            items,
            born_timestamp=self.store.clock.wall_ms(),
            born_host=_BORN_HOST,
        )
        log.write()
        for number, place in zip(numbers, places, strict=True):
            self.tell([number, topic, queue_id, place[1], place[0]])

    async def delayed(self, number: int, topic: str, queue_id: int, level: int) -> None:
        more = {"DELAY": str(level), "REAL_TOPIC": topic, "REAL_QID": str(queue_id)}
        await self.single(number, SCHEDULE_TOPIC, level - 1, more=more)

    async def half(self, number: int, topic: str, queue_id: int) -> None:
        more = {"TRAN_MSG": "true", "PGROUP": "ours", "REAL_TOPIC": topic, "REAL_QID": str(queue_id)}
        await self.single(number, HALF_TOPIC, 0, more=more)


@dataclass(frozen=True)
class Acknowledged:
    """A message the writer was told is stored."""

    number: int
    topic: str
    queue_id: int
    queue_offset: int
    physical: int


def write(plan: Plan, *, kill: bool) -> list[Acknowledged]:
    """Run a writer, and end it the clean way or by SIGKILL; what it acknowledged."""
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.peers.store_writer", json.dumps(asdict(plan))],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    with process:
        rows = list(_until_done(process.stdout))
        if kill:
            process.kill()
        process.stdin.close()
        rest = process.stdout.read()
    assert (process.returncode, rest) == ((-9, "") if kill else (0, '"closed"\n'))
    return [Acknowledged(*row) for row in rows]


def _until_done(lines: Any) -> Iterator[list[Any]]:
    for line in lines:
        row = json.loads(line)
        if row == "done":
            return
        yield row
    raise AssertionError("the writer ended before it was done")


if __name__ == "__main__":
    fields = json.loads(sys.argv[1])
    asyncio.run(Write(Plan(**fields | {"topics": tuple(map(tuple, fields["topics"]))})).run())
