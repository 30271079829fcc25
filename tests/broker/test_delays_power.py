"""Power fails around delay levels: what was acknowledged comes, whatever the disk kept of the progress."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

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
