"""What an election waits for is saved while a slow disk holds up the flush of the queues."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kerolox.broker.controlled.known_sets import KnownSets
from kerolox.broker.controlled.mastership import Mastership
from kerolox.protocol.ha_epochs import Epoch
from kerolox.replication.dledger.term_file import Promise
from kerolox.replication.epoch_history import EpochHistory
from kerolox.store.disk.epoch_file import EpochFile
from kerolox.store.disk.files import Files
from kerolox.store.message_store import MessageStore
from kerolox.testing.broker import running_broker
from tests.broker.test_dledger_alone import alone
from tests.store.dispatch.kit import rig_at

LIMIT_S = 10.0


@contextmanager
def slow_flush(store: MessageStore) -> Iterator[None]:
    over = threading.Event()
    store.keeper.submit(over.wait)
    try:
        yield
    finally:
        over.set()


async def test_an_epoch(tmp_path: Path) -> None:
    async with rig_at(tmp_path, controlled=True) as rig:
        store = await rig.open()
        history = EpochHistory(store)
        with slow_flush(store):
            async with asyncio.timeout(LIMIT_S):
                await history.begin(3, 0)
        assert history.entries == (Epoch(3, 0),)


async def test_an_in_sync_set(tmp_path: Path) -> None:
    async with rig_at(tmp_path, controlled=True) as rig:
        store = await rig.open()
        known = KnownSets(store, tmp_path / "identity")
        with slow_flush(store):
            async with asyncio.timeout(LIMIT_S):
                await known.load("c", "b", 1)
                await known.keep(Mastership(epoch=3, id=1, in_sync=frozenset({1, 2}), in_sync_epoch=5))
        again = KnownSets(store, tmp_path / "identity")
        await again.load("c", "b", 1)
        assert again.newest.in_sync == {1, 2}


async def test_a_vote(tmp_path: Path) -> None:
    async with running_broker(directory=tmp_path, **alone()) as running:
        room = running.broker.dledger
        assert room is not None
        assert room.group is not None
        promise = Promise(room.group.member.term + 7, "n0")
        with slow_flush(running.broker.store):
            async with asyncio.timeout(LIMIT_S):
                await room.group.elections._save(promise)
            text = (tmp_path / "store/dledger-n0/currterm").read_text()
            assert f"currTerm={promise.term}" in text


def test_epochs_change_one_after_the_other(tmp_path: Path) -> None:
    """A role begins while the keeper deletes old files: neither change is lost."""
    for _ in range(20):
        file = EpochFile(Files(), tmp_path / "epochs")
        file.take(tuple(Epoch(number, number * 10) for number in range(1, 20)))
        threads = [
            threading.Thread(target=file.drop_before, args=(100,)),
            threading.Thread(target=file.begin, args=(20, 200, 0)),
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        again = EpochFile(Files(), tmp_path / "epochs")
        again.load()
        assert again.entries == file.entries
        assert (again.entries[0].number, again.entries[-1].number) == (9, 20)
