"""When an answer may leave, in each flush mode."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.store.dispatch.kit import Rig, rig_at
from tests.store.test_flush import append

from kerolox.store.log.flush import Safe
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
    with pytest.raises(NotWritable, match="the store takes no messages: fenced"):
        await store.acks.safe(end)
