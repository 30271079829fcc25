"""A follower has what its leader has, byte for byte."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kerolox.replication.link_state import LinkState
from kerolox.store.options import FlushMode

from .kit import FILE, Following, Leading, Settings, pair, put, store_at, until


@pytest.mark.parametrize("flush_mode", [FlushMode.ASYNC, FlushMode.SYNC])
async def test_from_nothing_and_on(tmp_path: Path, flush_mode: FlushMode) -> None:
    async with pair(tmp_path, lambda store: put(store, 1000), flush_mode=flush_mode) as (leading, following):
        assert leading.store.log.max_offset > 3 * FILE
        await following.has(leading.store)
        assert following.follower.copying
        for _ in range(20):
            put(leading.store, 3)
            await asyncio.sleep(0)
        await following.has(leading.store)
        (name,) = leading.told.names
        await until(lambda: leading.told.acks[name][-1] == leading.store.log.max_offset)
        acks = leading.told.acks[name]
        assert acks == sorted(set(acks))
    assert leading.told.names == []


async def test_from_an_empty_leader(tmp_path: Path) -> None:
    async with pair(tmp_path) as (leading, following):
        await following.becomes(LinkState.COPYING)
        put(leading.store, 5)
        await following.has(leading.store)


async def test_what_is_written_arrives_without_anybody_polling(tmp_path: Path) -> None:
    async with pair(tmp_path, put, Settings(ha_heartbeat_ms=60_000, ha_silence_ms=600_000)) as (
        leading,
        following,
    ):
        await following.has(leading.store)
        for _ in range(20):
            put(leading.store)
            await following.has(leading.store)  # no heartbeat comes that would take it along


@pytest.mark.parametrize("count", [0, 20])
async def test_a_follower_that_lacks_nothing_hears_so_at_once(tmp_path: Path, count: int) -> None:
    never = Settings(ha_heartbeat_ms=3600_000, ha_silence_ms=3600_000)
    async with pair(tmp_path, lambda store: put(store, count), never) as (leading, following):
        for _ in range(2):
            await following.becomes(LinkState.COPYING)
            await following.has(leading.store)
            await following.follower.stop()
            await following.follower.start()


async def test_from_behind_after_a_restart(tmp_path: Path) -> None:
    async with store_at(tmp_path / "leader") as leads, Leading(leads) as leading:
        put(leads, 300)
        async with (
            store_at(tmp_path / "follower") as follows,
            Following(follows, leading.address) as following,
        ):
            await following.has(leads)
        put(leads, 700)
        async with store_at(tmp_path / "follower") as follows:
            had = follows.log.max_offset
            assert had > 0
            async with Following(follows, leading.address) as following:
                await following.has(leads)
                # What it has is compared, not copied again.
                assert leading.told.acks[leading.told.names[-1]][0] < had


async def test_a_log_that_does_not_begin_at_the_beginning(tmp_path: Path) -> None:
    async with store_at(tmp_path / "leader") as leads:
        put(leads, 1000)
        await leads.flusher.flush_all()
        assert leads.segments.delete_before(2 * FILE + 1) == 2
        async with Leading(leads) as leading:
            async with (
                store_at(tmp_path / "follower") as follows,
                Following(follows, leading.address) as following,
            ):
                await following.has(leads)
                assert follows.log.min_offset == leads.log.min_offset == 2 * FILE
            # It is found again after a start.
            async with store_at(tmp_path / "follower") as follows:
                assert follows.log.min_offset == 2 * FILE
                async with Following(follows, leading.address) as following:
                    put(leads, 5)
                    await following.has(leads)


@pytest.mark.parametrize("batch", [1, 7, 1000, 1 << 20])
async def test_ranges_of_any_length(tmp_path: Path, batch: int) -> None:
    count = 5 if batch == 1 else 400
    async with pair(tmp_path, lambda s: put(s, count), Settings(ha_batch_bytes=batch)) as (
        leading,
        following,
    ):
        await following.has(leading.store)
        put(leading.store, 10)
        await following.has(leading.store)


async def test_a_record_longer_than_a_range(tmp_path: Path) -> None:
    async with pair(tmp_path, commit_log_file_bytes=8 << 20) as (leading, following):
        put(leading.store, 2, size=3 << 20)
        await following.has(leading.store)


async def test_two_followers(tmp_path: Path) -> None:
    async with (
        pair(tmp_path, lambda s: put(s, 500)) as (leading, one),
        store_at(tmp_path / "other") as store,
        Following(store, leading.address) as other,
    ):
        put(leading.store, 100)
        await one.has(leading.store)
        await other.has(leading.store)
        assert len(leading.told.names) == 2


async def test_the_transient_buffer_is_copied_when_it_is_in_the_file(tmp_path: Path) -> None:
    async with (
        store_at(tmp_path / "leader", transient=True) as leads,
        Leading(leads) as leading,
        store_at(tmp_path / "follower") as follows,
        Following(follows, leading.address) as following,
    ):
        await following.becomes(LinkState.COPYING)
        put(leads, 10)
        assert leads.progress.committed < leads.progress.appended
        await following.has(leads)


async def test_a_limit_counts_the_log(tmp_path: Path) -> None:
    settings = Settings(ha_limited=True, ha_bytes_per_s=20_000)
    async with pair(tmp_path, lambda s: put(s, 1000), settings) as (leading, following):
        loop = asyncio.get_running_loop()
        begun = loop.time()
        await asyncio.sleep(1.5)
        most = 20_000 * (loop.time() - begun + 2)  # of windows that were begun before, and are not over
        assert 0 < following.store.log.max_offset <= most < leading.store.log.max_offset
        settings.ha_limited = False
        await following.has(leading.store)


async def test_what_is_not_in_memory_is_read_in_a_thread(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with store_at(tmp_path / "leader") as leads, Leading(leads) as leading:
        put(leads, 1000)
        monkeypatch.setattr(leads.segments, "read_hot", lambda offset, size: None)
        async with (
            store_at(tmp_path / "follower") as follows,
            Following(follows, leading.address) as following,
        ):
            await following.has(leads)
            put(leads, 10)
            await following.has(leads)
