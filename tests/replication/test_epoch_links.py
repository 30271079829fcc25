"""Leaders and followers under a controller: what is copied, cut, confirmed and refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from kerolox.protocol.ha_epochs import Epoch

from .epoch_kit import group
from .kit import put, until


def epochs(*pairs: tuple[int, int]) -> tuple[Epoch, ...]:
    return tuple(Epoch(*pair) for pair in pairs)


async def test_a_follower_copies_epochs_and_all(tmp_path: Path) -> None:
    async with group(tmp_path) as (one, two):
        await one.lead(1)
        put(one.store, 50)
        await two.follow(one)
        await two.has(one)
        put(one.store, 500)
        await two.has(one)
        assert two.history.entries == epochs((1, 0))


async def test_the_role_moves_and_the_old_leader_is_cut(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with group(tmp_path, 3) as (one, two, three):
        await one.lead(1)
        put(one.store, 50)
        for other in (two, three):
            await other.follow(one)
            await other.has(one)
        await until(one.take_in)
        await until(lambda: one.in_sync.members == {1, 2, 3} or (one.take_in() and False))
        common = one.store.log.max_offset
        for other in (two, three):
            await other.follower.stop()
        put(one.store, 7)  # copied by nobody, and acknowledged to nobody
        lost = one.store.log.max_offset
        assert one.store.progress.confirmed == common
        await two.lead(2)
        assert two.store.progress.confirmed == common
        put(two.store, 9)
        await one.follow(two)
        await one.has(two)
        await three.follow(two)
        await three.has(two)
        assert one.history.entries == epochs((1, 0), (2, common))
        assert "log_truncated" in caplog.text
        assert f"offset={common} before={lost}" in caplog.text
        # And back again.
        await until(two.take_in)
        await two.rest()
        await one.lead(5)
        put(one.store, 3)
        await two.follow(one)
        await two.has(one)
