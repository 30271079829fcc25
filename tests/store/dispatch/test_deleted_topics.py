"""A topic whose deletion was acknowledged stays deleted, however its broker ends."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.store.dispatch.kit import Rig, messages, props, read_all, rig_at

from kerolox.store.message_store import MessageStore
from kerolox.store.offline.layout import find_layout
from kerolox.store.offline.verify import verify
from kerolox.store.queue.deleted_topics import DeletedTopics
from kerolox.store.rebuild import rebuild

ENDINGS = ["kill", "power", "power with names", "stop"]


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig_at(tmp_path) as ours:
        yield ours


async def end(rig: Rig, store: MessageStore, how: str) -> MessageStore:
    """End the store and open the directory again."""
    if how == "kill":
        await rig.kill(store)
    elif how == "stop":
        await store.close()
    else:
        await rig.lose_power(store, names=how != "power")
    return await rig.open()


async def put(store: MessageStore, topic: str, count: int, word: str = "") -> None:
    for number in range(count):
        await store.put(topic, number % 2, f"{word}{number}".encode(), props(KEYS=f"k{number}"))


async def bodies(store: MessageStore, topic: str) -> list[bytes]:
    return [message.body for queue_id in range(2) for message in await read_all(store, topic, queue_id)]


@pytest.mark.parametrize("how", ENDINGS)
async def test_a_deleted_topic_whose_messages_end_the_log_stays_deleted(rig: Rig, how: str) -> None:
    store = await rig.open()
    await put(store, "Kept", 10)
    await put(store, "Gone", 40)
    assert await store.delete_topic("Gone")
    store = await end(rig, store, how)
    assert "Gone" not in store.queues.by_topic
    assert not (rig.path / "consumequeue" / "Gone").exists()
    assert len(await bodies(store, "Kept")) == 10
    await store.close()
    report = verify(find_layout(rig.path, rig.options), clock=rig.clock)
    assert report.findings == []


@pytest.mark.parametrize("how", ENDINGS)
async def test_a_topic_made_again_gets_only_its_new_messages(rig: Rig, how: str) -> None:
    store = await rig.open()
    await put(store, "Kept", 10)
    await put(store, "T", 40, "old ")
    await store.delete_topic("T")
    await put(store, "T", 6, "new ")
    await store.flusher.flush_all()
    expected = await bodies(store, "T")
    assert len(expected) == 6
    store = await end(rig, store, how)
    assert await bodies(store, "T") == expected
    assert (await store.put("T", 0, b"next"))[1] == 3
    await store.close()
    assert verify(find_layout(rig.path, rig.options), clock=rig.clock).findings == []


async def test_queues_made_again_from_the_whole_log_have_no_deleted_messages(rig: Rig) -> None:
    store = await rig.open()
    await put(store, "Kept", 10)
    await put(store, "Gone", 10)
    await put(store, "T", 10, "old ")
    await store.delete_topic("Gone")
    await store.delete_topic("T")
    await put(store, "T", 6, "new ")
    expected = await bodies(store, "T")
    await store.close()
    shutil.rmtree(rig.path / "consumequeue")
    store = await rig.open()
    assert sorted(store.queues.by_topic) == ["Kept", "T"]
    assert await bodies(store, "T") == expected
    assert await store.find_by_key("Gone", "k3") != []  # the index has what the log has
    await store.close()
    shutil.rmtree(rig.path / "consumequeue" / "T")
    rebuild(find_layout(rig.path, rig.options), clock=rig.clock)
    store = await rig.open()
    assert sorted(store.queues.by_topic) == ["Kept", "T"]
    assert await bodies(store, "T") == expected


async def test_a_deletion_that_was_broken_off_is_finished(rig: Rig) -> None:
    """The note is written, the queues are still there."""
    store = await rig.open()
    await put(store, "Kept", 4)
    await put(store, "Gone", 10)
    await store.flusher.flush_all()
    await store.housekeeper.flush()
    store.notes.deleted.note("Gone", store.log.max_offset, 0)
    store = await end(rig, store, "kill")
    assert sorted(store.queues.by_topic) == ["Kept"]
    await put(store, "Gone", 2, "new ")
    assert await bodies(store, "Gone") == [b"new 0", b"new 1"]


async def test_messages_behind_a_cut_are_new(rig: Rig) -> None:
    """Power took the end of the log, from before the deletion: what is stored there now is not deleted."""
    store = await rig.open()
    await put(store, "T", 4, "old ")
    await store.close()
    end_of_log = (await rig.open()).log.max_offset
    await rig.stores[-1].close()
    notes = DeletedTopics(rig.disk, rig.path)
    notes.note("T", end_of_log + 100_000, 0)
    store = await rig.open()
    await put(store, "T", 4, "new ")
    store = await end(rig, store, "kill")
    assert await bodies(store, "T") == [b"new 0", b"new 2", b"new 1", b"new 3"]


async def test_a_new_log_has_no_deleted_messages(rig: Rig) -> None:
    """Somebody removed the log and all notes but this one: its offset belongs to the old log."""
    DeletedTopics(rig.disk, rig.path).note("T", 100_000, 0)
    store = await rig.open()
    await put(store, "T", 4, "new ")
    expected = [b"new 0", b"new 2", b"new 1", b"new 3"]
    assert await bodies(store, "T") == expected
    store = await end(rig, store, "kill")
    assert await bodies(store, "T") == expected


async def test_notes_go_with_the_messages(rig: Rig) -> None:
    store = await rig.open()
    for number in range(3):
        await put(store, f"Gone{number}", 4)
        await store.delete_topic(f"Gone{number}")
    assert len(store.notes.deleted.before) == 3
    store.notes.deleted.note("Last", store.log.max_offset, store.log.max_offset - 1)
    assert set(store.notes.deleted.before) == {"Gone2", "Last"}  # the others' messages have left the log


async def test_a_note_that_does_not_read_is_said_so(rig: Rig, caplog: pytest.LogCaptureFixture) -> None:
    store = await rig.open()
    await put(store, "Gone", 4)
    await store.delete_topic("Gone")
    await store.close()
    (rig.path / "kerolox.deleted").write_bytes(b'{"Gone": 1}\n0000000001\n')
    await rig.open()
    assert "deleted_topics_unknown" in caplog.text


async def test_light_queues_of_a_deleted_topic_are_verified(rig: Rig) -> None:
    store = await rig.open(light_queues=True, fill_light_queues=True)
    for number in range(6):
        await store.put("Gone", 0, b"%d" % number, props(INNER_MULTI_DISPATCH="%LMQ%a"))
    assert await store.delete_topic("Gone")
    await store.put("Kept", 0, b"6", props(INNER_MULTI_DISPATCH="%LMQ%a"))
    assert [m.body for m in messages(await store.queues.read("%LMQ%a", 0, 0))] == [
        b"%d" % n for n in range(7)
    ]
    await store.close()
    report = verify(find_layout(rig.path, rig.options), clock=rig.clock)
    assert report.findings == []
