"""Power fails around delay levels: what was acknowledged comes, whatever the disk kept of the progress."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path

import pytest

from kerolox.broker.later.delay_notes import SYNC_PAUSE_S
from kerolox.store.options import FlushMode
from kerolox.testing.faults import FaultyFiles

from .delay_kit import DelayRig


@pytest.mark.parametrize("seed", range(1, 7))
async def test_nothing_acknowledged_is_lost_with_the_power(tmp_path: Path, seed: int) -> None:
    chance = random.Random(f"delays-power-{seed}")
    rig = DelayRig(tmp_path / "store", flush_mode=FlushMode.SYNC, delay_levels="1s 2s 5s")
    acked: set[bytes] = set()
    for life in range(6):
        disk = rig.files = FaultyFiles()
        rig.boot = f"boot {life}"
        await rig.open()
        for _ in range(chance.randrange(1, 12)):
            bodies = await rig.send(*[chance.randrange(1, 4) for _ in range(chance.randrange(1, 30))])
            if chance.random() < 0.8:
                await rig.store.acks.safe(rig.store.progress.appended)
                acked.update(bodies)
            await rig.clock.advance(chance.choice((0, 0.3, 1, 2)))
            if chance.random() < 0.3:
                await rig.delays._save()
        disk.power_loss(None if chance.random() < 0.2 else chance.randrange(1 << 30), names=True)
        await rig.die()
    rig.files = FaultyFiles()
    rig.boot = "last"
    await rig.open()
    await rig.clock.advance(5)
    await rig.store.flusher.flush_all()
    assert acked
    assert acked - set(rig.delivered()) == set()
    await rig.close()


async def flushed(rig: DelayRig) -> None:
    """The log as it is now is on the disk, and so is what is said of it. Time passes only where a pause asks
    for it: what falls due meanwhile would be delivered, and not be flushed."""
    await rig.store.flusher.flush_all()
    marks = rig.delays.marks
    while not marks.is_safe:
        if marks._syncing is None:
            await rig.clock.advance(SYNC_PAUSE_S)
        else:
            await asyncio.wait([marks._syncing])
            await asyncio.sleep(0)


@pytest.mark.parametrize("seed", [None, 1, 2, 3])
async def test_what_was_delivered_before_the_last_flush_does_not_come_again(
    tmp_path: Path, seed: int | None
) -> None:
    """Lives shorter than the interval at which progress is saved: only the marks can tell."""
    rig = DelayRig(tmp_path / "store", delay_levels="1s 2s 3s")
    await rig.open()
    bodies = []
    for life in range(8):
        await rig.close() if life == 0 else await rig.die()
        disk = rig.files = FaultyFiles()
        rig.boot = f"boot {life}"
        await rig.open()
        bodies += await rig.send(*[1, 2, 3] * 40)
        await rig.clock.advance(1.5)
        await flushed(rig)
        disk.power_loss(seed, names=True)
    await rig.die()
    rig.files, rig.boot = FaultyFiles(), "last"
    await rig.open()
    await rig.clock.advance(3)
    assert not (tmp_path / "store" / "config" / "delayOffset.json").exists()
    assert sorted(rig.delivered()) == sorted(bodies)
    await rig.close()


async def test_what_was_delivered_since_the_last_flush_comes_again_and_nothing_else(tmp_path: Path) -> None:
    """Both marks that a kill would need are newer than the flushed log by then."""
    disk = FaultyFiles()
    rig = DelayRig(tmp_path / "store", files=disk, delay_levels="1s", flush_interval_ms=10_000_000)
    await rig.open()
    old = await rig.send(*[1] * 20)
    await rig.clock.advance(1)
    await flushed(rig)
    new = []
    for _ in range(5):
        new += await rig.send(1)
    await rig.store.flusher.flush_all()  # parked for good, not yet delivered
    await rig.clock.advance(1)
    await rig.send(1, 1, 1)  # never flushed: lost with the power
    await rig.clock.advance(1)
    assert rig.store.progress.flushed < rig.store.progress.appended
    disk.power_loss(names=True)
    await rig.die()
    rig.files, rig.boot = FaultyFiles(), "two"
    await rig.open()
    await rig.clock.advance(2)
    assert rig.delivered() == old + new
    await rig.close()
