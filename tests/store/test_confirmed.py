"""Under a controller readers see what is confirmed, after a start as well; queues count behind the rest."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.store.dispatch.kit import ASYNC, SYNC, Rig, bodies, props, rig_at

from kerolox.protocol.epoch_file import EPOCH_FILE
from kerolox.protocol.ha_epochs import Epoch
from kerolox.store.errors import StoreError
from kerolox.store.log.acks import NotCopied
from kerolox.store.log.safe import Safe
from kerolox.store.message_store import MessageStore
from kerolox.store.offline.layout import find_layout
from kerolox.store.offline.verify import verify


async def put(store: MessageStore, first: int, count: int) -> None:
    """Messages by number, written and not waited for."""
    for number in range(first, first + count):
        store.log.append(
            store.log.cursor("T", number % 2), b"%d" % number, props(KEYS=f"k{number}"),
            born_timestamp=1, born_host=bytes(8),
        )  # fmt: skip
        store.log.write()
    await store.flusher.flush_all()


async def seen(store: MessageStore) -> set[int]:
    return {int(body) for queue_id in (0, 1) for body in await bodies(store, "T", queue_id)}


async def half_confirmed(rig: Rig) -> tuple[MessageStore, int]:
    """Ten messages that were confirmed, and seven more that the others of the set do not have."""
    store = await rig.open()
    assert (store.progress.confirmed, store.progress.replicated) == (0, 0)
    store.copies.reach(None, 1)
    await put(store, 0, 10)
    end = store.log.max_offset
    store.copies.reach(end, 2)
    await put(store, 10, 7)
    assert await seen(store) == set(range(10))
    return store, end


@pytest.mark.parametrize("mode", [SYNC, ASYNC])
@pytest.mark.parametrize("ending", ["close", "kill", "power", "other"])
async def test_a_start_shows_what_was_confirmed(tmp_path: Path, ending: str, mode: object) -> None:
    async with rig_at(tmp_path, controlled=True, flush_mode=mode) as rig:
        store, end = await half_confirmed(rig)
        await store.housekeeper.flush()
        if ending == "kill":
            await rig.kill(store)
        elif ending == "power":
            await rig.lose_power(store, 3, names=True)
        else:
            await store.close()
        if ending == "other":  # as another broker leaves it, without our notes
            for name in ("kerolox.marks", "kerolox.sums"):
                (rig.path / name).unlink()
        for _ in range(2):  # and again: a start confirms nothing
            store = await rig.open()
            assert store.progress.confirmed == store.dispatcher.dispatched == end
            assert store.notes.checkpoint.confirmed_offset == end
            assert await seen(store) == set(range(10))
            assert await store.find_by_key("T", "k9")
            assert not await store.find_by_key("T", "k10")
            assert store.log.cursor("T", 0).next_offset == 9
            await rig.kill(store)
            assert verify(find_layout(str(rig.path), rig.options), clock=rig.clock).clean
        store = await rig.open()
        await put(store, 17, 3)
        assert await seen(store) == set(range(10))
        store.copies.reach(None, 1)  # elected: alone in its set
        assert await seen(store) == set(range(20)), "with one offset each, and no hole between"
        assert await store.find_by_key("T", "k10")
        await store.close()
        assert verify(find_layout(str(rig.path), rig.options), clock=rig.clock).clean


async def test_a_log_without_a_controller_stays_as_it_was_seen(tmp_path: Path) -> None:
    async with rig_at(tmp_path) as rig:
        store = await rig.open()
        await put(store, 0, 10)
        await store.close()
        rig.controlled = True
        store = await rig.open()
        assert await seen(store) == set(range(10))
        assert store.progress.confirmed == store.log.max_offset
        store.log.append(
            store.log.cursor("T", 0), b"10", props(KEYS="x"), born_timestamp=1, born_host=bytes(8)
        )
        store.log.write()
        assert await seen(store) == set(range(10)), "nobody was elected"


async def test_epochs_are_those_of_the_log(tmp_path: Path) -> None:
    async with rig_at(tmp_path, controlled=True) as rig:
        store, end = await half_confirmed(rig)
        store.notes.epochs.take(
            (Epoch(1, 0), Epoch(2, end), Epoch(3, store.log.max_offset), Epoch(9, 1 << 30))
        )
        await rig.kill(store)
        store = await rig.open()
        assert [epoch.number for epoch in store.notes.epochs.entries] == [1, 2, 3]
        await rig.kill(store)
        (tmp_path / EPOCH_FILE).write_text("nonsense")
        with pytest.raises(StoreError, match="cannot read the epochs of the log"):
            await rig.open()


async def test_old_files_take_their_epochs_with_them(tmp_path: Path) -> None:
    async with rig_at(tmp_path, controlled=True, delete_pause_ms=0) as rig:
        store = await rig.open()
        store.copies.reach(None, 1)
        starts = []
        for number in range(1, 6):
            starts.append(store.log.max_offset)
            store.notes.epochs.begin(number, store.log.max_offset, 0)
            await put(store, number * 20, 20)
        await store.expiry.delete_before(2 * 4096)
        low = store.log.min_offset
        assert low > starts[1]
        kept = [epoch.number for epoch in store.notes.epochs.entries]
        assert kept == [n for n in range(1, 6) if n == 5 or starts[n] >= low]


# --- when a message is acknowledged -----------------------------------------------------------------------


@pytest.mark.parametrize("mode", [SYNC, ASYNC])
async def test_all_of_the_set_have_what_is_acknowledged(tmp_path: Path, mode: object) -> None:
    async with rig_at(tmp_path, controlled=True, flush_mode=mode) as rig:
        store, _ = await half_confirmed(rig)
        told: list[Safe] = []
        assert store.acks.wait
        end = store.log.max_offset
        store.acks.when_safe(end, told.append)
        await store.flusher.flush_all()
        store.copies.reach(end - 1, 2)
        assert not told
        store.copies.reach(end, 2)
        assert told == [Safe.YES]
        assert await seen(store) == set(range(17))
        # Too long.
        await put(store, 17, 1)
        store.acks.when_safe(store.log.max_offset, told.append)
        await rig.clock.advance(store.options.replica_timeout_ms / 1000)
        assert told == [Safe.YES, Safe.REPLICA_TIMEOUT]
        # Nobody else is left in the set.
        store.acks.when_safe(store.log.max_offset, told.append)
        store.copies.reach(None, 1)
        assert told[2:] == [Safe.YES]
        assert store.acks.wait == (mode is SYNC)
        # Another one leads.
        store.copies.reach(store.log.max_offset, 2)
        await put(store, 18, 1)
        store.acks.when_safe(store.log.max_offset, told.append)
        store.copies.lose()
        assert told[3:] == [Safe.NO_REPLICA]
        with pytest.raises(NotCopied, match="SLAVE_NOT_AVAILABLE"):
            await store.put("T", 0, b"19")
        assert await seen(store) == set(range(18))


async def test_too_few_in_the_set(tmp_path: Path) -> None:
    async with rig_at(tmp_path, controlled=True, replicas_min=2) as rig:
        store = await rig.open()
        store.copies.reach(None, 1)
        assert store.acks.lacks_replicas == "1 of at least 2 (minInSyncReplicas) are in the in-sync set"
        store.copies.reach(0, 2)
        assert store.acks.lacks_replicas is None


async def test_without_all_ack_so_many_are_enough(tmp_path: Path) -> None:
    """Readers still see what the set has."""
    async with rig_at(tmp_path, controlled=True, replicas_needed=2) as rig:
        store, _ = await half_confirmed(rig)
        store.copies.all_ack = False
        store.acks.wait_for_replicas = True
        store.replicas.joined("a")
        store.replicas.acked("a", 0)
        told: list[Safe] = []
        store.acks.when_safe(store.log.max_offset, told.append)
        assert not told
        store.replicas.acked("a", store.log.max_offset)
        assert told == [Safe.YES]
        assert await seen(store) == set(range(10))


async def test_the_blank_end_of_a_file_is_not_confirmed(tmp_path: Path) -> None:
    """A leader died when it had closed a file and not begun the next: no other has that end."""
    async with rig_at(tmp_path, controlled=True) as rig:
        store = await rig.open()
        store.copies.reach(None, 1)
        await put(store, 0, 10)
        end = store.log.max_offset
        store.copies.reach(end, 2)
        rest = store.segments.size - end
        store.log.append_raw(rest.to_bytes(4, "big") + b"\xcb\xd4\x31\x94" + bytes(rest - 8))
        await store.flusher.flush_all()
        await store.housekeeper.flush()
        for _ in range(2):
            await rig.kill(store)
            store = await rig.open()
            assert store.log.max_offset == store.segments.size
            assert store.progress.confirmed == store.dispatcher.dispatched == end
            assert await seen(store) == set(range(10))
        store.copies.reach(None, 1)  # it leads, and all it has is confirmed
        assert store.progress.confirmed == store.log.max_offset
        await put(store, 10, 2)
        assert await seen(store) == set(range(12))
        await store.close()
