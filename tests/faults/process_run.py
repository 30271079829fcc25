"""A sample of the matrix against a broker in a process of its own, then failures that nobody injects: few
descriptors, and a full disk."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import random
import subprocess
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kerolox import KeroloxError, Message, Producer, PushConsumer, PushOptions, Received
from kerolox.store.errors import Operation
from tests.broker.test_open_files import connect_many, open_files
from tests.peers.ours import OurNameServer
from tests.rig.waiting import wait_until

from .failing_calls import PARTS
from .places import Place, places
from .process_scene import BrokerProcess, process_scene

_ERRORS = {
    Operation.READ: errno.EMFILE,
    Operation.CREATE: errno.ENOSPC,
    Operation.WRITE: errno.EIO,
    Operation.FLUSH: errno.EIO,
}
BODIES = 600  # of 30 kB: many files of the log
IDLE = 300  # connections
LIMIT = 256  # descriptors


def sample() -> list[Place]:
    return [place for place in places(*PARTS) if place.number == _ERRORS.get(place.operation)]


def run_process(
    folder: Path, only: str | None, violations: list[str], progress: Callable[[str], None]
) -> dict[str, Any]:
    log = logging.getLogger("kerolox")
    log.setLevel(logging.CRITICAL)  # clients tell of every answer
    chosen = [place for place in sample() if only in (None, place.name, place.kind.value)]
    result = asyncio.run(go_through(folder, chosen, violations, progress))
    if only is None:
        for name, story in (("few_descriptors", few_descriptors), ("full_disk", full_disk)):
            wrong = asyncio.run(told(story(folder / name)))
            violations += [f"{name}: {what}" for what in wrong]
            result[name] = "; ".join(wrong) or "passed"
            progress(f"process, {name}: {result[name]}")
    return result


async def go_through(
    folder: Path, chosen: list[Place], violations: list[str], progress: Callable[[str], None]
) -> dict[str, Any]:
    """After a place that went wrong the next ones get brokers of their own."""
    waiting, reached = list(chosen), 0
    while waiting:
        async with process_scene(folder / str(len(waiting))) as ours:
            wrong: list[str] = []
            while waiting and not wrong:
                place = waiting.pop(0)
                wrong = await told(ours.run(place))
                ours.files.fault = None
                reached += ours.hits > 0
                violations += [f"process: {what}" for what in wrong]
                number = len(chosen) - len(waiting)
                progress(
                    f"process, {number} of {len(chosen)}: {place.name}, {ours.hits} failed {wrong or ''}"
                )
    return {"places": len(chosen), "reached": reached, "not_reached": len(chosen) - reached}


async def told(story: Any) -> list[str]:
    """What is wrong, an exception among it."""
    try:
        found: list[str] = await story
    except Exception:
        found = [traceback.format_exc()]
    return found


# --- failures that nobody injects ------------------------------------------------------------------------


async def few_descriptors(folder: Path) -> list[str]:
    """More files of the log and idle connections than descriptors: every message arrives."""
    with servers(folder, open_files=LIMIT) as (broker, start), open_files(4096):
        await asyncio.to_thread(start)
        sent = await send_all(broker, BODIES)
        return missing(sent, await receive(broker, len(sent), idle=IDLE))


async def full_disk(folder: Path) -> list[str]:
    """A disk of 24 MiB fills up, sends are refused by name; it has room again, and sends go on."""
    with small_disk(folder / "leader" / "store") as store:
        if store is None:
            return []  # not root: the seam and the library have it
        with servers(folder, diskSpaceFreeEnough=0, cleanFileForciblyEnable=False) as (broker, start):
            await asyncio.to_thread(start)
            sent = await send_all(broker, 20)
            filler, room = store / "filler", os.statvfs(store)
            filler.write_bytes(bytes(room.f_bavail * room.f_frsize))
            sent |= await send_all(broker, 100, first=20, refused=True)
            health = await asyncio.to_thread(broker.health)
            wrong = [] if "disk full" in health else [f"{len(sent)} of 120 taken, /healthz: {health!r}"]
            filler.unlink()
            await asyncio.to_thread(wait_until, lambda: not broker.health(), broker.health, 30)
            sent |= await send_all(broker, 20, first=200)
            return wrong + missing(sent, await receive(broker, len(sent)))


@contextmanager
def small_disk(place: Path) -> Iterator[Path | None]:
    """A file system of its own at this place; None where it may not be mounted."""
    place.mkdir(parents=True)
    mount = ["mount", "-t", "tmpfs", "-o", "size=24m", "tmpfs", place]
    if subprocess.run(mount, capture_output=True).returncode:
        yield None
        return
    try:
        yield place
    finally:
        subprocess.run(["umount", "--lazy", place], check=True)


@contextmanager
def servers(
    folder: Path, open_files: int = 0, **properties: object
) -> Iterator[tuple[BrokerProcess, Callable[[], None]]]:
    nameserver = OurNameServer(folder / "nameserver")
    nameserver.start()
    (folder / "leader").mkdir(parents=True, exist_ok=True)
    broker = BrokerProcess(folder / "leader", nameserver.address, {}, properties, open_files)
    try:
        yield broker, broker.start
    finally:
        broker.kill()
        nameserver.kill()


async def send_all(broker: BrokerProcess, count: int, *, first: int = 0, refused: bool = False) -> set[bytes]:
    """The bodies that were taken; each has to be, unless some may be ``refused``."""
    taken = set()
    async with Producer(broker.nameserver_address, group="producers") as producer:
        for number in range(first, first + count):
            body = random.Random(number).randbytes(30 << 10)  # cannot be compressed
            try:
                await producer.send(Message("T", body))
            except KeroloxError:
                if not refused:
                    raise
            else:
                taken.add(body)
    return taken


async def receive(broker: BrokerProcess, count: int, *, idle: int = 0) -> set[bytes]:
    """What a push consumer gets: until it has as many, or nothing more came for a minute. ``idle``: others
    connect when it has its first message."""
    seen: set[bytes] = set()
    came, goes_on = asyncio.Event(), asyncio.Event()
    async with PushConsumer(
        broker.nameserver_address, group="readers", options=PushOptions(start="first")
    ) as consumer:

        @consumer.on("T")
        async def take(message: Received) -> None:
            seen.add(message.body)
            came.set()
            await goes_on.wait()

        await asyncio.wait_for(came.wait(), 60)
        others = await connect_many(broker.address, idle)
        goes_on.set()
        while len(seen) < count:
            came.clear()
            try:
                await asyncio.wait_for(came.wait(), 60)
            except TimeoutError:
                break
        for writer in others:
            writer.close()
    return seen


def missing(sent: set[bytes], seen: set[bytes]) -> list[str]:
    lost = sent - seen
    return [f"{len(lost)} of {len(sent)} acknowledged messages did not arrive"] if lost else []
