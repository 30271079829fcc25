"""Records by places that peers name: only those that the store's own queue entries prove."""

from __future__ import annotations

import asyncio
import errno
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.store.dispatch.kit import Rig, props, rig_at

from kerolox.errors import Overloaded
from kerolox.protocol.hosts import host_bytes
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.record import decode_record, encode_message
from kerolox.protocol.reserved import HALF_TOPIC, SCHEDULE_TOPIC
from kerolox.store.errors import DiskError, disk_error
from kerolox.store.message_store import MessageStore
from kerolox.store.queue.named_records import WALKS_MAX, NoRecordThere

HEAD_BYTES = 88


@pytest.fixture
async def rig(tmp_path: Path) -> AsyncIterator[Rig]:
    async with rig_at(tmp_path) as rig:
        yield rig


async def forge(store: MessageStore, topic: str, queue_offset: int) -> int:
    """Store a message whose body is a record that says it lies where it does; returns that place."""
    at = store.log.max_offset + HEAD_BYTES
    body = encode_message(StoredMessage(topic, b"x", 0, queue_offset, at))
    place = await store.put("A", 0, body)
    assert place[0] + HEAD_BYTES == at
    return at


@pytest.mark.parametrize(
    ("topic", "host"),
    [
        ("T", host_bytes("10.0.0.1:1")),
        ("T", host_bytes("[::1]:1")),
        ("%RETRY%" + "g" * 200, host_bytes("10.0.0.1:1")),  # the length of its name takes two bytes
        (HALF_TOPIC, bytes(8)),
        (SCHEDULE_TOPIC, bytes(8)),
    ],
)
async def test_records_that_queues_have(rig: Rig, topic: str, host: bytes) -> None:
    store = await rig.open()
    flags = 0x10 if len(host) > 8 else 0
    for number in range(9):
        properties = props(DELAY="3") if topic == SCHEDULE_TOPIC else b""
        place = await store.put(topic, 0, b"%d" % number, properties, sys_flag=flags, born_host=host)
        assert store.named.hot(place[0]) == await store.named.record(place[0])
        assert decode_record(await store.named.record(place[0])).body == b"%d" % number
        for beside in (place[0] + 1, place[0] + HEAD_BYTES):
            assert store.named.hot(beside) is None
            with pytest.raises(NoRecordThere):
                await store.named.record(beside)


@pytest.mark.parametrize("offset", [-1, -(1 << 63), 1 << 40, (1 << 63) - 1])
async def test_places_outside_of_the_log(rig: Rig, offset: int) -> None:
    store = await rig.open()
    await store.put("T", 0, b"x")
    assert store.named.hot(offset) is None
    for read in (store.named.record, store.named.framed_record):
        with pytest.raises(NoRecordThere):
            await read(offset)


async def test_a_record_in_a_body_is_none(rig: Rig) -> None:
    store = await rig.open()
    await store.put("T", 0, b"0")
    for topic, queue_offset in (("T", 0), ("T", 1), ("A", 1), ("A", 2), ("missing", 0)):
        at = await forge(store, topic, queue_offset)
        await store.put("T", 0, b"more")
        assert decode_record(store.log.record_at(at)).body == b"x"  # what the bytes alone say
        assert store.named.hot(at) is None
        for read in (store.named.record, store.named.framed_record):
            with pytest.raises(NoRecordThere):
                await read(at)


async def test_a_claimed_size_reads_nothing_by_itself(rig: Rig) -> None:
    """A forged head may claim all that follows: the broker must not read that to find out."""
    store = await rig.open()
    at = store.log.max_offset + HEAD_BYTES
    body = bytearray(encode_message(StoredMessage("T", b"x", 0, 0, at)))
    body[84:88] = (1500).to_bytes(4, "big")
    body[:4] = (1500 + 93).to_bytes(4, "big")
    await store.put("A", 0, bytes(body))
    for _ in range(8):
        await store.put("A", 0, bytes(200))
    sizes: list[int] = []
    read = store.log.read

    def watched(offset: int, size: int) -> bytes:
        sizes.append(size)
        return read(offset, size)

    store.log.read = watched  # type: ignore[method-assign]
    with pytest.raises(NoRecordThere):
        await store.named.record(at)
    assert sum(sizes) < 1000


async def test_what_is_not_yet_dispatched_counts(rig: Rig) -> None:
    store = await rig.open()
    store.dispatcher.hold()
    first = await store.put("T", 0, b"0")
    place = await store.put("T", 0, b"1")
    forged = await forge(store, "T", 2)
    assert store.queues.find("T", 0) is None
    for each in (first, place):
        assert store.named.hot(each[0]) == await store.named.record(each[0])
    for read in (store.named.record, store.named.framed_record):
        with pytest.raises(NoRecordThere):
            await read(forged)
    store.dispatcher.release()
    store.dispatcher.run()
    assert decode_record(await store.named.record(place[0])).body == b"1"


async def test_records_of_a_deleted_topic_are_found_by_the_frames_of_their_file(rig: Rig) -> None:
    store = await rig.open()
    places = []
    for number in range(60):
        places.append((await store.put("T", 0, b"%d" % number + bytes(200)))[0])
        forged = await forge(store, "T", number)
    assert await store.delete_topic("T")
    assert len(store.segments.all) > 3
    for place in places:
        with pytest.raises(NoRecordThere):
            await store.named.record(place)
        assert decode_record(await store.named.framed_record(place)).physical_offset == place
    with pytest.raises(NoRecordThere):
        await store.named.framed_record(forged)


async def test_walks_are_bounded(rig: Rig) -> None:
    store = await rig.open()
    place = (await store.put("T", 0, b"x"))[0]
    found = await asyncio.gather(
        *(store.named.framed_record(place) for _ in range(WALKS_MAX + 3)), return_exceptions=True
    )
    assert [type(one) for one in found] == [bytes] * WALKS_MAX + [Overloaded] * 3
    assert await store.named.framed_record(place)


async def test_a_read_that_fails_does_not_say_that_nothing_is_there(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = await rig.open()
    place = (await store.put("T", 0, b"x"))[0]

    def fails(offset: int, size: int) -> bytes:
        raise disk_error(OSError(errno.EIO, "Input/output error"), "read", "the log", offset)

    monkeypatch.setattr(store.segments, "read", fails)
    with pytest.raises(DiskError, match="Input/output error"):
        await store.named.record(place)
