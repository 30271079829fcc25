"""Reads that wait for the disk: repeated when data was removed meanwhile, and limited."""

from __future__ import annotations

import asyncio
import re
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

import kerolox
from kerolox.errors import Overloaded
from kerolox.store.disk import readers as module
from kerolox.store.disk.readers import THREADS, Readers
from kerolox.store.errors import OffsetOutOfRange, StoreError


@pytest.fixture
def readers() -> Iterator[Readers]:
    made = Readers()
    yield made
    made.close()


def gone() -> StoreError:
    return OffsetOutOfRange("gone", path="p", offset=0, low=0, high=0)


async def test_a_read_beside_a_cut_is_repeated(readers: Readers) -> None:
    seen: list[int] = []

    def look() -> int:
        seen.append(len(seen))
        if len(seen) < 3:
            readers.repeat()  # as the loop does at this moment
        if len(seen) == 2:
            raise gone()  # a file that the cut has removed
        return len(seen)

    assert await readers.read(look) == 3
    assert readers.waiting == 0


async def test_an_error_without_a_cut_is_raised(readers: Readers) -> None:
    def look() -> None:
        raise gone()

    with pytest.raises(OffsetOutOfRange):
        await readers.read(look)
    assert readers.waiting == 0


async def test_requests_are_refused_when_too_many_wait(
    readers: Readers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "READS_MAX", THREADS + 2)
    go_on = threading.Event()
    reads = [asyncio.ensure_future(readers.read(go_on.wait, limited=True)) for _ in range(THREADS + 2)]
    await asyncio.sleep(0)
    with pytest.raises(Overloaded, match=r"\[OVERLOAD\]6 reads wait for the disk, the limit is 6"):
        await readers.read(int, limited=True)
    own = asyncio.ensure_future(readers.read(int))  # of the broker itself
    await asyncio.sleep(0)
    go_on.set()
    await asyncio.gather(*reads)
    assert await own == 0
    assert await readers.read(int, limited=True) == 0


async def test_a_cancelled_read_waits_no_more(readers: Readers) -> None:
    go_on = threading.Event()
    read = asyncio.ensure_future(readers.read(go_on.wait))
    await asyncio.sleep(0)
    assert readers.waiting == 1
    read.cancel()
    with pytest.raises(asyncio.CancelledError):
        await read
    assert readers.waiting == 0
    go_on.set()


# Work of the broker in other threads: no file of the store is read there.
ELSEWHERE = {
    "body.encode", "table.encode", "decode", "AllTopics.decode", "TopicConfigTable.decode",
    "GroupConfigTable.decode", "_remove", "self._keep", "write_atomically", "path.read_bytes", "self._finish",
}  # fmt: skip


def test_the_broker_reads_the_store_only_there() -> None:
    found: set[str] = set()
    for path in (Path(kerolox.__file__).parent / "broker").rglob("*.py"):
        text = path.read_text()
        found |= set(re.findall(r"to_thread\(\s*([\w.]+)", text))
        if path.name != "address.py":
            assert not re.search(r"run_in_executor\(\s*None", text), path
    assert found == ELSEWHERE
