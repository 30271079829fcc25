"""What a store notes as safe is never more than what is: another broker believes the checkpoint."""

from __future__ import annotations

from pathlib import Path

from kerolox.store.disk.checkpoint import Checkpoint
from kerolox.store.disk.files import Files
from kerolox.store.message_store import MessageStore
from kerolox.testing.faults import FaultyFiles

from .messages import options


async def test_the_checkpoint_does_not_pass_what_is_dispatched(tmp_path: Path) -> None:
    async with MessageStore(options(str(tmp_path), "async")) as store:
        await store.put("a", 0, b"seen")
        dispatched_ms = store.log.last_store_timestamp
        store.progress.replicated = store.progress.appended  # replicas stay behind from here on
        await store.clock.sleep(0.005)
        await store.put("a", 0, b"not yet")
        assert store.log.last_store_timestamp > dispatched_ms
        await store.flusher.flush_all()
        await store.housekeeper.flush()
        noted = Checkpoint(Files(), store.path("checkpoint"))
        noted.load()
        assert noted.commit_log_ms > dispatched_ms
        assert noted.queues_ms == dispatched_ms
        store.progress.replicated = None
        store.progress.advance()


async def test_keys_that_could_not_be_entered_come_again(tmp_path: Path) -> None:
    disk = FaultyFiles()
    store = MessageStore(options(str(tmp_path), "async"), files=disk)
    await store.open()
    await store.put("a", 0, b"body", b"KEYS\x01k\x02")
    await store.flusher.flush_all()
    disk.fill()
    await store.close()  # there is no room for an index file
    assert (tmp_path / "abort").exists()
    disk.make_room()
    async with MessageStore(options(str(tmp_path), "async"), files=disk) as again:
        assert len(await again.find_by_key("a", "k")) == 1
