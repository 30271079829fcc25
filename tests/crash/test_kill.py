"""A few kills of each mode; ``make crash`` does hundreds."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kerolox.store.message_store import MessageStore

from .killer import Killer
from .messages import MODES, options
from .nursery import Nursery
from .verify import Violation, check_log_and_queues


@pytest.mark.parametrize("seed", [1001, 1002])
@pytest.mark.parametrize("mode", MODES)
def test_nothing_acknowledged_is_lost_to_a_kill(
    nursery: Nursery, tmp_path: Path, mode: str, seed: int
) -> None:
    killer = Killer(nursery, tmp_path / "store", mode, seed)
    killer.run(6)
    while not killer.acked:  # all six came before the first acknowledgement
        killer.run(1)
    assert killer.tally.total >= 6
    assert killer.tally.verifications


def test_the_judge_notices_a_lost_message(nursery: Nursery, tmp_path: Path) -> None:
    killer = Killer(nursery, tmp_path / "store", "async", 7)
    while not killer.acked:
        killer.kill_one()
    killer.acked[12345] = (0, 0, 100)
    with pytest.raises(Violation, match="message 12345 was acknowledged"):
        killer.verify()


def test_the_judge_notices_a_changed_queue(nursery: Nursery, tmp_path: Path) -> None:
    killer = Killer(nursery, tmp_path / "store", "async", 8)
    while not killer.acked:
        killer.kill_one()
    killer.verify()

    async def look() -> None:
        async with MessageStore(options(str(tmp_path / "store"), "async")) as store:
            # Only now: a start would make the queue again.
            entry = next((tmp_path / "store" / "consumequeue").glob("*/*/00000000000000000000"))
            with entry.open("r+b") as file:
                file.seek(19)  # the last byte of the first entry's tag hash
                byte = file.read(1)
                file.seek(19)
                file.write(bytes([byte[0] ^ 1]))
            await check_log_and_queues(store)

    with pytest.raises(Violation, match="differs from the log"):
        asyncio.run(look())
