"""A leader that waits for its followers, which copy its log: both are real."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kerolox.store.log.acks import NotCopied
from kerolox.store.options import FlushMode

from .kit import Following, Leading, store_at, until


@pytest.mark.parametrize("mode", FlushMode)
async def test_what_is_acknowledged_is_at_the_follower(tmp_path: Path, mode: FlushMode) -> None:
    """From the first message on, also in a log that is empty."""
    async with store_at(tmp_path / "a", flush_mode=mode) as ours, Leading(ours, watched=False) as leading:
        ours.acks.wait_for_replicas = True
        with pytest.raises(NotCopied, match="SLAVE_NOT_AVAILABLE"):
            await ours.put("T", 0, b"alone")
        async with store_at(tmp_path / "b", flush_mode=mode) as theirs:
            async with Following(theirs, leading.address):
                await until(lambda: ours.replicas.in_sync(ours.replicas.end) == 2, lambda: "not in sync")
                for number in range(20):
                    physical, _, size = await asyncio.wait_for(ours.put("T", 0, b"%d" % number), 10)
                    assert theirs.progress.committed >= physical + size
                    if mode is FlushMode.SYNC:
                        assert theirs.progress.flushed >= physical + size
            await until(lambda: not list(ours.replicas), lambda: "still there")
            with pytest.raises(NotCopied, match="SLAVE_NOT_AVAILABLE"):
                await ours.put("T", 0, b"alone again")


async def test_the_first_message_of_all_is_acknowledged(tmp_path: Path) -> None:
    async with (
        store_at(tmp_path / "a") as ours,
        store_at(tmp_path / "b") as theirs,
        Leading(ours, watched=False) as leading,
    ):
        ours.acks.wait_for_replicas = True
        async with Following(theirs, leading.address):
            await until(lambda: ours.replicas.in_sync(0) == 2, lambda: "not in sync")
            await asyncio.wait_for(ours.put("T", 0, b"first"), 10)
