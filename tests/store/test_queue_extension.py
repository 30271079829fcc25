"""Queues with an extension: its bytes, and that it always fits its queue."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.store.dispatch.kit import Rig, messages, props, rig_at

from kerolox.protocol.java import java_hash
from kerolox.protocol.reserved import SCHEDULE_TOPIC
from kerolox.store.disk.files import Files
from kerolox.store.message_store import MessageStore
from kerolox.store.queue.consume_queues import ConsumeQueues, flush
from kerolox.store.queue.entry import SIMPLE
from kerolox.store.queue.extended_queue import ExtendedQueue
from kerolox.store.queue.extension import UNIT_BYTES_MAX, Unit
from kerolox.store.queue.reading import QueueRead
from kerolox.testing.faults import FaultyFiles

BITS = bytes(range(14))
ADDRESS_0 = -(2**63)


def open_queues(
    path: Path,
    files: Files | None = None,
    *,
    crashed: bool = False,
    extended: bool = True,
    file_bytes: int = 100,
) -> ConsumeQueues:
    queues = ConsumeQueues(
        files or Files(),
        path / "consumequeue",
        file_bytes=8 * 20,
        extension_directory=path / "consumequeue_ext",
        extension_file_bytes=file_bytes,
        extended=extended,
    )
    queues.load()
    queues.recover(crashed=crashed)
    return queues


def append(queues: ConsumeQueues, count: int, topic: str = "T", bits: bytes = BITS) -> ExtendedQueue:
    queue = queues.queue(topic, 0)
    assert isinstance(queue, ExtendedQueue)
    for _ in range(count):
        number = queue.next_offset
        queues.noted.stored_ms, queues.noted.bits = 1000 + number, bits
        queue.append(number * 100, 100, number, number)
    return queue


def units(queue: ExtendedQueue) -> list[Unit | None]:
    entries = queue.entries(queue.min_offset, queue.next_offset, may_wait=True)
    codes = [code for _, _, code in entries or ()]
    found = queue.units(codes, may_wait=True)
    return [found.get(code) for code in codes]


def expected(count: int, bits: bytes = BITS) -> list[Unit | None]:
    return [Unit(number, 1000 + number, bits) for number in range(count)]


def files_of(path: Path) -> list[str]:
    return sorted(os.listdir(path / "consumequeue_ext" / "T" / "0"))


def test_the_bytes_are_rocketmqs(tmp_path: Path) -> None:
    queues = open_queues(tmp_path)
    queue = append(queues, 3)
    # Three units of 34 bytes do not fit into a file of 100 that keeps four for its end.
    assert [code - ADDRESS_0 for _, _, code in SIMPLE.each(queue.read(0, 3))] == [0, 34, 100]
    flush(queues.write())
    assert files_of(tmp_path) == ["00000000000000000000", "00000000000000000100"]
    first = (tmp_path / "consumequeue_ext/T/0/00000000000000000000").read_bytes()
    assert first[:34].hex() == "0022" + "0000000000000000" + "00000000000003e8" + "000e" + BITS.hex()
    assert first[34:68].hex() == "0022" + "0000000000000001" + "00000000000003e9" + "000e" + BITS.hex()
    assert first[68:] == b"\xff\xff" + bytes(30)
    queues.close()


def test_units_are_found_before_and_after_they_are_written(tmp_path: Path) -> None:
    queues = open_queues(tmp_path)
    queue = append(queues, 30)
    assert units(queue) == expected(30)
    flush(queues.write())
    assert units(queue) == expected(30)
    append(queues, 5)
    assert units(queue) == expected(35)
    flush(queues.write())
    queues.close()
    again = append(open_queues(tmp_path), 5)
    assert units(again) == expected(40)


def test_units_of_many_sizes(tmp_path: Path) -> None:
    queues = open_queues(tmp_path, file_bytes=UNIT_BYTES_MAX + 100)
    for size in (0, 14, 300, UNIT_BYTES_MAX - 20, 1):
        append(queues, 1, bits=bytes([7]) * size)
    queue = append(queues, 1, bits=bytes(UNIT_BYTES_MAX - 19))
    flush(queues.write())
    found = units(queue)
    assert [None if unit is None else len(unit.bits) for unit in found] == [0, 14, 300, 32747, 1, None]
    entry = queue.entry(5)
    assert entry is not None
    assert entry[2] == 5  # too large for a unit: the plain hash


def test_entries_that_are_there_already_get_no_second_unit(tmp_path: Path) -> None:
    queues = open_queues(tmp_path)
    queue = append(queues, 3)
    end = queue.extension.end
    assert not queue.append(100, 100, 1, 1)
    assert queue.extension.end == end
    assert queue.extend(SIMPLE.pack(200, 100, 2) + SIMPLE.pack(300, 100, 3), 2) == 1
    assert [unit.tags_code for unit in units(queue) if unit] == [0, 1, 2, 3]


def test_without_the_option_units_are_still_read(tmp_path: Path) -> None:
    queues = open_queues(tmp_path)
    append(queues, 6)
    flush(queues.write())
    queues.close()
    off = open_queues(tmp_path, extended=False)
    queue = append(off, 4)
    assert units(queue) == [*expected(6), None, None, None, None]
    flush(off.write())
    off.close()
    again = append(open_queues(tmp_path), 2)
    assert [unit and unit.tags_code for unit in units(again)] == [*range(6), None, None, None, None, 10, 11]


def test_power_loss_takes_entries_whose_units_are_gone(tmp_path: Path) -> None:
    disk = FaultyFiles()
    queues = open_queues(tmp_path, disk)
    queue = append(queues, 6)
    flush(queues.write())
    append(queues, 6)
    queues.write()
    flush([queue._segments])  # the entries, not their units
    disk.power_loss()
    again = open_queues(tmp_path, disk, crashed=True)
    survivor = again.find("T", 0)
    assert isinstance(survivor, ExtendedQueue)
    count = survivor.next_offset
    assert 6 <= count < 12
    assert units(survivor) == expected(count)
    assert survivor.max_physical == count * 100
    append(again, 3)
    assert units(survivor) == expected(count + 3)


def test_a_lost_extension_is_not_taken_for_another(tmp_path: Path) -> None:
    queues = open_queues(tmp_path)
    append(queues, 6)
    flush(queues.write())
    queues.close()
    for name in files_of(tmp_path):
        (tmp_path / "consumequeue_ext/T/0" / name).unlink()
    again = append(open_queues(tmp_path), 2)
    assert units(again) == [None] * 6 + expected(8)[6:]
    assert files_of(tmp_path) == []
    again.write()
    assert files_of(tmp_path) == ["00000000000000000300"]


def test_it_goes_with_its_queue(tmp_path: Path) -> None:
    queues = open_queues(tmp_path)
    append(queues, 40)
    flush(queues.write())
    assert len(files_of(tmp_path)) == 20
    queues.delete_before(2000)  # the first twenty
    assert files_of(tmp_path)[0] == f"{1000:020d}"
    queues.truncate_to_physical(3000)
    queue = queues.find("T", 0)
    assert isinstance(queue, ExtendedQueue)
    append(queues, 5)
    assert units(queue)[-5:] == expected(35)[-5:]
    queues.delete_topic("T")
    assert not (tmp_path / "consumequeue_ext/T").exists()
    assert units(append(queues, 2)) == expected(2)


def test_delayed_messages_keep_their_time(tmp_path: Path) -> None:
    queues = open_queues(tmp_path)
    append(queues, 2)
    flush(queues.write())
    queues.close()
    # As RocketMQ leaves it: addresses in that topic too.
    for kind in ("consumequeue", "consumequeue_ext"):
        (tmp_path / kind / "T").rename(tmp_path / kind / SCHEDULE_TOPIC)
    queue = append(open_queues(tmp_path), 1, SCHEDULE_TOPIC)
    assert [code for _, _, code in SIMPLE.each(queue.read(0, 3))] == [0, 1, 2]
    assert [code for _, _, code in SIMPLE.each(queue.read_hot(0, 3) or b"")] == [0, 1, 2]


# --- as part of a store ----------------------------------------------------------------------------------


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig_at(tmp_path, queue_extension=True, queue_extension_file_bytes=1000) as rig:
        yield rig


def bodies(read: QueueRead) -> list[bytes]:
    return [message.body for message in messages(read)]


async def put(store: MessageStore, first: int, count: int) -> None:
    for number in range(first, first + count):
        await store.put("T", 0, b"%d" % number, props(TAGS="ab"[number % 2]))


async def test_tags_and_bits_filter_what_is_read(rig: Rig) -> None:
    rig.bits_of = lambda topic, properties: b"\x01" if b"\x01a\x02" in properties else b"\x02"
    store = await rig.open()
    await put(store, 0, 20)
    even = [b"%d" % number for number in range(0, 20, 2)]
    wanted = java_hash("a")
    assert bodies(await store.queues.read("T", 0, 0, queue_filter=lambda code: code == wanted)) == even
    assert bodies(await store.queues.read("T", 0, 0, unit_filter=lambda unit: unit.bits == b"\x01")) == even
    assert len(bodies(await store.queues.read("T", 0, 0))) == 20
    await store.close()
    again = await rig.open()
    assert bodies(await again.queues.read("T", 0, 0, unit_filter=lambda unit: unit.bits == b"\x01")) == even


@pytest.mark.parametrize("how", ["kill", "lose_power"])
async def test_after_a_crash_units_and_entries_fit(rig: Rig, how: str) -> None:
    store = await rig.open()
    await put(store, 0, 30)
    await store.housekeeper.flush()
    await put(store, 30, 30)
    await store.flusher.flush_all()
    await getattr(rig, how)(store)
    again = await rig.open()
    await put(again, 60, 10)
    odd = [b"%d" % number for number in range(1, 70, 2)]
    wanted = java_hash("b")
    found = await again.queues.read("T", 0, 0, 64, queue_filter=lambda code: code == wanted)
    more = await again.queues.read("T", 0, found.next_offset, 64, queue_filter=lambda code: code == wanted)
    assert bodies(found) + bodies(more) == odd
