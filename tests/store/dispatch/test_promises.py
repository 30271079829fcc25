"""What an acknowledgement is worth when the process is killed or the power fails."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path

import pytest
from tests.store.dispatch.kit import ASYNC, SYNC, Rig, bodies, props, read_all, rig_at

from kerolox.protocol.record import decode_record
from kerolox.store.message_store import MessageStore
from kerolox.store.options import FlushMode
from kerolox.store.queue.entry import SIMPLE

QUEUES = 3


def body_of(number: int) -> bytes:
    return b"[%d]" % number * (1 + number * 7 % 60)


async def put(store: MessageStore, number: int) -> None:
    await store.put("T", number % QUEUES, body_of(number), props(KEYS=f"k{number}", TAGS=f"t{number % 5}"))


async def agree(store: MessageStore) -> set[int]:
    """Log, queues and index tell the same, without a gap or half a message. The numbers they hold."""
    entries = [
        e for found, _ in store.log.entries_from(store.log.min_offset, store.log.max_offset) for e in found
    ]
    by_queue: dict[tuple[str, int], list[tuple[int, int]]] = {}
    for size, _, queue_id, queue_offset, physical, _, _, topic, _ in entries:
        places = by_queue.setdefault((topic.decode(), queue_id), [])
        assert queue_offset == len(places), "a gap in the log"
        places.append((physical, size))
    assert {(queue.topic, queue.queue_id) for queue in store.consume_queues if queue.max_offset} == set(
        by_queue
    )
    numbers: set[int] = set()
    for (topic, queue_id), places in by_queue.items():
        queue = store.queues.find(topic, queue_id)
        assert queue is not None
        found = SIMPLE.each(queue.read(0, 1 << 20))
        assert [(physical, size) for physical, size, _ in found] == places
        for message in await read_all(store, topic, queue_id):
            number = int(message.body[1 : message.body.index(b"]")])
            assert message.body == body_of(number), "half a message"
            numbers.add(number)
            records = await store.find_by_key("T", f"k{number}")
            assert [decode_record(record).body for record in records] == [message.body]
    return numbers


async def go_on(store: MessageStore, numbers: set[int]) -> None:
    """The store takes messages where it stopped."""
    first = 1000
    for number in range(first, first + 2 * QUEUES):
        await put(store, number)
    await store.flusher.flush_all()
    assert await agree(store) == numbers | set(range(first, first + 2 * QUEUES))


async def a_life(rig: Rig, mode: FlushMode, seed: int) -> tuple[MessageStore, int, int]:
    """Messages, some acknowledged, flush rounds here and there. The store, how many were acknowledged,
    and how many of them were flushed."""
    chance = random.Random(seed)
    store = await rig.open(flush_mode=mode)
    acknowledged = flushed = 0
    for number in range(chance.randint(5, 120)):
        if mode is SYNC and chance.random() < 0.3:
            # Sent, and the answer never came.
            asyncio.ensure_future(put(store, number)).add_done_callback(lambda done: done.exception())
            await asyncio.sleep(0)
        else:
            await put(store, number)
            acknowledged = number + 1
        if chance.random() < 0.1:
            await store.flusher.flush_all()
            flushed = number + 1
        if chance.random() < 0.1:
            await store.housekeeper.flush()
        if chance.random() < 0.1:
            await rig.clock.advance(chance.choice((0.001, 0.03, 0.6)))
    return store, acknowledged, acknowledged if mode is SYNC else flushed


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("mode", [SYNC, ASYNC])
async def test_a_killed_process_loses_nothing(tmp_path: Path, mode: FlushMode, seed: int) -> None:
    """What was handed to the operating system is there, flushed or not."""
    async with rig_at(tmp_path) as rig:
        store, acknowledged, _ = await a_life(rig, mode, seed)
        written = store.progress.appended
        await rig.kill(store)
        store = await rig.open(flush_mode=mode)
        assert store.recovered is not None
        assert store.recovered.end in (written, written - written % 4096)
        numbers = await agree(store)
        assert numbers >= set(range(acknowledged))
        await go_on(store, numbers)


@pytest.mark.parametrize("seed", range(16))
@pytest.mark.parametrize("mode", [SYNC, ASYNC])
async def test_power_loss_takes_only_what_was_not_flushed(tmp_path: Path, mode: FlushMode, seed: int) -> None:
    """With SYNC_FLUSH nothing that was acknowledged; with ASYNC_FLUSH the end, and nothing before it."""
    async with rig_at(tmp_path) as rig:
        for life in range(2):
            store, _, safe = await a_life(rig, mode, seed * 10 + life)
            await rig.lose_power(store, None if seed == 0 else seed, names=seed % 2 == 0)
            store = await rig.open(flush_mode=mode)
            numbers = await agree(store)
            assert numbers >= set(range(safe)), "a message that was safe is lost"
            # The log is cut at one place: nothing is there that came after something lost.
            assert numbers == set(range(len(numbers)))
            await go_on(store, numbers)
            await store.close()
            shutil.rmtree(tmp_path)


@pytest.mark.parametrize("seed", range(8))
async def test_power_loss_right_after_a_recovery(tmp_path: Path, seed: int) -> None:
    """What recovery read again counts as safe only once it is flushed."""
    async with rig_at(tmp_path) as rig:
        store, _, safe = await a_life(rig, SYNC, seed)
        await rig.kill(store)
        store = await rig.open(flush_mode=SYNC)
        before = await agree(store)
        await rig.lose_power(store, seed, names=True)
        store = await rig.open(flush_mode=SYNC)
        assert await agree(store) == before >= set(range(safe))


async def test_power_loss_after_a_clean_stop_loses_nothing(tmp_path: Path) -> None:
    async with rig_at(tmp_path) as rig:
        store = await rig.open()
        for number in range(50):
            await put(store, number)
        await store.close()
        await rig.lose_power(store, names=True)
        store = await rig.open()
        assert store.recovered is not None
        assert (store.recovered.crashed, store.recovered.dispatched_from) == (False, store.recovered.end)
        assert await agree(store) == set(range(50))


async def test_a_flush_that_failed_is_not_believed_later(tmp_path: Path) -> None:
    """A later flush says "done", and what the failed one covered is gone: nothing of it was promised."""
    async with rig_at(tmp_path) as rig:
        store = await rig.open(flush_mode=SYNC)
        for number in range(10):
            await put(store, number)
        rig.disk.fail_syncs(1, path_contains="/commitlog/")
        answers = await asyncio.gather(
            *(put(store, number) for number in range(10, 14)), return_exceptions=True
        )
        assert all(isinstance(answer, Exception) for answer in answers)
        await store.close()
        assert (tmp_path / "abort").exists()
        await rig.lose_power(store)
        store = await rig.open(flush_mode=SYNC)
        assert await agree(store) == set(range(10))
        assert len(await bodies(store, "T", 0)) == 4
