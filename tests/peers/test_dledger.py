"""DLedger groups of Apache's brokers with one of ours: it votes, follows and leads, and nothing is lost."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from kerolox.testing.nameserver import running_nameserver

from .conftest import Factory
from .dledger import LedgerGroupProcesses


async def test_one_of_ours_beside_two_of_apaches(
    java: Factory, tmp_path: Path, unique: Callable[[str], str]
) -> None:
    """Apache's leader is killed, and ours leads: what was acknowledged is there, on Apache's too."""
    topic = unique("topic")
    async with running_nameserver() as nameserver:
        group = LedgerGroupProcesses(java, nameserver, tmp_path, "RaftNode00", ["apache", "apache", "ours"])
        try:
            await group.start()
            first = await group.leader()
            if first == "n2":
                await group.hand_over("n0")
                first = "n0"
            await group.send(topic, 20, "under Apache's")
            await group.have(topic, 20)
            await asyncio.to_thread(group.brokers[first].kill)
            await group.hand_over("n2")
            await group.send(topic, 20, "under ours")
            await group.have(topic, 40)
            await group.start(first)
            await group.have(topic, 40)
        finally:
            group.finish()
