"""When an answer may leave, in each flush mode."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.store.dispatch.kit import Rig, rig_at
from tests.store.test_flush import append

import kerolox
from kerolox.store.log.safe import Safe
from kerolox.store.options import FlushMode
from kerolox.store.state import NotWritable


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig_at(tmp_path, commit_log_file_bytes=1 << 20) as rig:
        yield rig


async def test_written_is_enough_under_asynchronous_flush(rig: Rig) -> None:
    store = await rig.open(flush_mode=FlushMode.ASYNC)
    rig.disk.stall_syncs()
    end = append(store, b"one")
    store.log.write()
    told: list[Safe] = []
    store.acks.when_safe(end, told.append)
    assert told == [Safe.YES]
    await store.acks.safe(end)
    store.flusher.flush_soon()
    rig.disk.wait_for_stalled_sync()
    assert (store.acks.wait, store.acks.stalled_ms) == (False, 0.0)  # nobody waits for it
    rig.disk.release_syncs()


async def test_the_disk_has_it_under_synchronous_flush(rig: Rig) -> None:
    store = await rig.open(flush_mode=FlushMode.SYNC)
    rig.disk.stall_syncs()
    end = append(store, b"one")
    store.log.write()
    told: list[Safe] = []
    store.acks.when_safe(end, told.append)
    assert told == []
    rig.disk.wait_for_stalled_sync()
    await rig.clock.advance(3)
    assert (store.acks.wait, store.acks.stalled_ms) == (True, 3000.0)
    rig.disk.release_syncs()
    await store.acks.safe(end)
    assert told == [Safe.YES]


async def test_a_failed_flush_is_not_safe(rig: Rig) -> None:
    store = await rig.open(flush_mode=FlushMode.SYNC)
    rig.disk.fail_syncs(1)
    end = append(store, b"one")
    store.log.write()
    with pytest.raises(NotWritable, match="the store accepts no messages: fenced"):
        await store.acks.safe(end)


@pytest.mark.parametrize(
    ("asks", "where"),
    [
        (r"\.wait_safe\(", {"acks.py", "set_acks.py"}),
        # Beside the answers: when a log is flushed, and up to where it may be read.
        (r"\.flush_mode\b", {"acks.py", "flush.py", "message_store.py"}),
        (
            r"\bSafe\.[A-Z]",
            {"safe.py", "acks.py", "flush.py", "waits.py", "majority_waits.py", "replica_waits.py"},
        ),
        (
            r"\.(wait_for_replicas|replicas_needed|replicas_min|replicas_degrade)\b",
            {"acks.py", "set_acks.py", "leadership.py"},
        ),
    ],
)
def test_one_place_decides_when_to_answer(asks: str, where: set[str]) -> None:
    """Who stores messages is told how it ended, and asks neither for the flush mode nor for the flush."""
    sources = Path(kerolox.__file__).parent.rglob("*.py")
    assert {path.name for path in sources if re.search(asks, path.read_text())} == where
