"""The checker finds what it is there to find: each history and each log here is wrong in one way."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import pytest

from kerolox.store.message_store import MessageStore
from tests.replication.kit import put, raw, store_at

from . import checker
from .history import OK, Send, host_of, place_of
from .logs import BadLog, Entry, Log, Record, read_log, read_queue, records_of

T = "orders"
FIRST = Record(T, 0, 0, 0, 100, b"one")
SECOND = Record(T, 0, 1, 100, 100, b"two")
OTHER_QUEUE = Record(T, 1, 0, 200, 100, b"three")
RECORDS = [FIRST, SECOND, OTHER_QUEUE, Record("else", 0, 0, 300, 50, b"not ours")]
LATE = "FLUSH_SLAVE_TIMEOUT"


def sent(record: Record, status: str = OK, began_s: float = 10.0) -> Send:
    return Send("ours", record.body, began_s, began_s + 1, status, record.queue, record.offset, record.place)


GOOD = [sent(FIRST), sent(SECOND), sent(OTHER_QUEUE)]


def test_a_good_history_is_good() -> None:
    assert not checker.missing(GOOD, RECORDS, T)
    assert not checker.acknowledged_twice(GOOD)
    assert not checker.invented(GOOD, RECORDS, T)
    assert not checker.gaps(RECORDS, T)


def test_an_acknowledged_message_that_is_missing() -> None:
    (wrong,) = checker.missing(GOOD, [FIRST, OTHER_QUEUE], T)
    assert wrong == "SEND_OK of ours b'two', queue 0 offset 1, is missing"


def test_another_message_at_its_place() -> None:
    (wrong,) = checker.missing(GOOD, [FIRST, SECOND._replace(body=b"2"), OTHER_QUEUE], T)
    assert "is another message: b'2'" in wrong


def test_a_message_at_another_place_of_the_log() -> None:
    (wrong,) = checker.missing(GOOD, [FIRST, SECOND._replace(place=150), OTHER_QUEUE], T)
    assert "lies at 150, and 100 was told" in wrong


def test_the_same_queue_of_another_topic_does_not_count() -> None:
    assert len(checker.missing(GOOD, [one._replace(topic="else") for one in RECORDS], T)) == 3


def test_many_wrongs_are_counted() -> None:
    many = [sent(FIRST._replace(offset=number)) for number in range(20)]
    wrong = checker.missing(many, [], T)
    assert len(wrong) == 6
    assert wrong[-1] == "and 15 more like it"


def test_two_acknowledged_at_one_place() -> None:
    (wrong,) = checker.acknowledged_twice([sent(FIRST), sent(FIRST._replace(body=b"uno"))])
    assert "has the place of" in wrong
    assert not checker.acknowledged_twice([sent(FIRST), sent(FIRST._replace(body=b"uno"), LATE)])


def test_a_message_nobody_sent() -> None:
    (wrong,) = checker.invented([sent(FIRST), sent(SECOND)], RECORDS, T)
    assert wrong == "nobody sent b'three', at 200"


def test_offsets_that_are_missing_or_twice() -> None:
    assert checker.gaps([SECOND], T) == ["queue 0 goes on with 1 after -1"]
    assert checker.gaps([FIRST, SECOND, SECOND], T) == ["queue 0 goes on with 1 after 1"]


def test_queues_that_lead_elsewhere() -> None:
    good = {0: {0: Entry(0, 100), 1: Entry(100, 100)}, 1: {0: Entry(200, 100)}}
    assert not checker.queues_not_equal(RECORDS, T, good, "leader")
    missing = {**good, 1: {}}
    (wrong,) = checker.queues_not_equal(RECORDS, T, missing, "follower")
    assert wrong == "offset 0 of queue 1 at the follower leads to None, not 200"
    other = {**good, 0: {0: Entry(0, 100), 1: Entry(100, 99)}}
    assert len(checker.queues_not_equal(RECORDS, T, other, "leader")) == 1


def test_logs_that_differ() -> None:
    one = Log(100, b"abcdef")
    assert not checker.not_equal(one, one)
    assert not checker.not_equal(one, Log(102, b"cdef"))  # which has begun later
    assert checker.not_equal(one, Log(100, b"abcde")) == ["one log ends at 106 and the other at 105"]
    assert checker.not_equal(one, Log(100, b"abXdef")) == ["the logs differ at 102, silently"]
    assert checker.not_equal(one, Log(102, b"cdeX")) == ["the logs differ at 105, silently"]


# --- files ------------------------------------------------------------------------------------------------


async def test_files_of_a_real_store_are_read(tmp_path: Path) -> None:
    async with store_at(tmp_path) as store:
        put(store, 300)  # over several files of 64 KiB, each with a blank end
        end = store.log.max_offset
        written = raw(store)
        queues = [_entries(store, queue) for queue in range(3)]
        await store.flusher.flush_all()
    log = read_log(tmp_path, end)
    assert log == Log(0, written)
    records = records_of(log)
    assert [(one.topic, one.queue, one.offset) for one in records] == [
        ("T", number % 3, number // 3) for number in range(300)
    ]
    for queue in range(3):
        entries = read_queue(tmp_path, "T", queue, 100)
        assert list(entries.values()) == queues[queue]
        assert [(one.place, one.size) for one in records if one.queue == queue] == queues[queue]


def _entries(store: MessageStore, queue: int) -> list[tuple[int, int]]:
    found = store.queues.find("T", queue)
    assert found is not None
    entries = [found.entry(offset) for offset in range(found.next_offset)]
    return [entry[:2] for entry in entries if entry is not None]


async def test_bytes_that_are_no_log_are_refused(tmp_path: Path) -> None:
    async with store_at(tmp_path) as store:
        put(store, 3)
        data = raw(store)
    size = len(data) // 3
    body = data.index(b"1" * 75)
    for broken, why in (
        (data[:-1], "and the log ends at"),
        (data + b"\0" * 20, "a record of 0 bytes"),
        (data[:4] + b"\0\0\0\0" + data[8:], "no record at 0"),
        (data[:body] + b"7" + data[body + 1 :], f"the body of the record at {size}"),
        (data[:size] + data[:size] + data[2 * size :], f"the record at {size} says it lies at 0"),
    ):
        with pytest.raises(BadLog, match=why):
            records_of(Log(0, broken))
    with pytest.raises(BadLog, match=f"the log at {1 << 20}"):
        read_log(tmp_path, 1 << 20)


def test_a_version_2_record_is_read() -> None:
    body, topic = b"hello", b"t" * 200
    rest = struct.pack(">i", len(body)) + body + struct.pack(">H", len(topic)) + topic + struct.pack(">H", 0)
    # When and where it was born and stored, and two counters.
    middle = bytes(8 + 8 + 8) + bytes([10, 0, 0, 1]) + (10911).to_bytes(4) + bytes(4 + 8)
    size = 4 * 5 + 8 * 2 + 4 + len(middle) + len(rest)
    head = struct.pack(">IIIiiqqi", size, 0xDAA320AB, zlib.crc32(body) & 0x7FFFFFFF, 2, 0, 7, 0, 0)
    (record,) = records_of(Log(0, head + middle + rest))
    assert record == Record("t" * 200, 2, 7, 0, size, b"hello", "10.0.0.1:10911")


def test_the_id_of_a_message_says_where_it_lies_and_who_stored_it() -> None:
    id = "0A4D0002" + "00002A9F" + "00000000000001F4"
    assert (host_of(id), place_of(id)) == ("10.77.0.2:10911", 500)
