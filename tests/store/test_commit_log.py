from __future__ import annotations

import errno
import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.store.dispatch.kit import options_for, props

from kerolox.errors import InvalidRequest
from kerolox.protocol import properties as names
from kerolox.protocol.hosts import host_bytes
from kerolox.protocol.record import (
    MAGIC_V1,
    MAGIC_V2,
    decode_record,
    decode_records,
    encode_blank,
    record_crc_ok,
)
from kerolox.protocol.record_scan import PHYSICAL_OFFSET, QUEUE_OFFSET, SIZE, TOPIC, Entry
from kerolox.store.disk.files import Files
from kerolox.store.disk.segments import Segments
from kerolox.store.errors import (
    CorruptRecord,
    DiskError,
    DiskFull,
    OffsetOutOfRange,
    OtherFileSize,
    StoreError,
)
from kerolox.store.failures import Kind, Operation
from kerolox.store.log.commit_log import AppendRefused, CommitLog, PropertiesTooLong
from kerolox.store.log.progress import Progress
from kerolox.store.log.readable_log import store_timestamp_of
from kerolox.store.standing_failures import StandingFailures
from kerolox.store.state import NotWritable, Obstacle, StoreState
from kerolox.testing.clock import ManualClock
from kerolox.testing.faults import FaultyFiles

HOST = host_bytes("127.0.0.1:10911")
HOST_6 = host_bytes("[2001:db8::7]:10911")
SIZE_BYTES = 4096
FAR = (5 << 40) // SIZE_BYTES * SIZE_BYTES
SENT = {"born_timestamp": 1, "born_host": HOST}


class Bench:
    """A commit log alone, with what it needs."""

    def __init__(self, path: Path, disk: Files, worker: ThreadPoolExecutor, **changes: object) -> None:
        start = changes.pop("start", 0)
        store_host = changes.pop("store_host", HOST)
        assert isinstance(start, int)
        assert isinstance(store_host, bytes)
        self.options = options_for(path, **changes)
        self.queue_end = 0  # next offset of each queue
        self.state = StoreState()
        self.clock = ManualClock()
        self.failing = StandingFailures(self.state, self.clock)
        self.segments = Segments(
            disk, path / "commitlog", self.options.commit_log_file_bytes, transient=self.options.transient
        )
        self.progress = Progress(self.segments, wait_for_flush=False)
        self.segments.start_at(start)
        self.log = CommitLog(
            self.segments,
            self.options,
            self.progress,
            self.failing,
            clock=self.clock,
            store_host=store_host,
            executor=worker,
            next_offset_of=lambda topic, queue_id: self.queue_end,
        )
        self.progress.reset()
        self.log.begin()

    def append(self, body: bytes, properties: bytes = b"", topic: str = "T", queue_id: int = 0) -> tuple:
        return self.log.append(self.log.cursor(topic, queue_id), body, properties, **SENT)  # type: ignore[arg-type]

    def next_offset(self, topic: str = "T", queue_id: int = 0) -> int:
        return self.log.cursor(topic, queue_id).next_offset

    def raw(self) -> bytes:
        """All bytes of the log, file after file."""
        self.segments.commit()
        return b"".join(
            self.segments.read(s.start, min(s.size, self.segments.committed - s.start))
            for s in self.segments.all
            if s.start < self.segments.committed
        )


MakeBench = Callable[..., Bench]


@pytest.fixture
def disk() -> FaultyFiles:
    return FaultyFiles()


@pytest.fixture
def bench(tmp_path: Path, disk: FaultyFiles) -> Iterator[MakeBench]:
    made: list[Bench] = []
    with ThreadPoolExecutor(1) as worker:

        def make(**changes: object) -> Bench:
            name = changes.pop("name", f"{len(made)}")
            one = Bench(tmp_path / str(name), disk, worker, **changes)
            made.append(one)
            return one

        yield make
        disk.release_syncs()
        for one in made:
            try:
                one.segments.close()
            except StoreError:
                pass


# --- one message ------------------------------------------------------------------------------------


def test_the_record_of_rocketmqs_own_test(bench: MakeBench) -> None:
    """DefaultMessageStoreTest's message: 129 bytes with this CRC."""
    one = bench(store_host=host_bytes("10.0.6.82:8123"))
    born = host_bytes("127.0.0.1:0")
    place = one.log.append(
        one.log.cursor("FooBar", 0), b"Once, there was a chance for me!", born_timestamp=7, born_host=born
    )
    assert place == (0, 0, 129)
    one.log.write()
    record = one.log.record_at(0)
    assert record == struct.pack(
        ">iIiiiqqiq4siq4siiqi32sb6sh",
        129, MAGIC_V1, 151131488, 0, 0, 0, 0, 0, 7, b"\x7f\0\0\1", 0, one.clock.wall_ms(),
        b"\x0a\0\x06\x52", 8123, 0, 0, 32, b"Once, there was a chance for me!", 6, b"FooBar", 0,
    )  # fmt: skip
    assert one.log.read(0, 129) == one.log.read_hot(0, 129) == record
    assert one.log.store_timestamp_at(0) == one.clock.wall_ms()
    assert [e[:4] + e[5:] for e in one.log.undispatched] == [
        (129, 0, 0, 0, 0, one.clock.wall_ms(), b"FooBar", b"")
    ]


def test_the_worked_example_of_the_format(bench: MakeBench) -> None:
    one = bench(start=0)
    one.log.cursor("TopicTest", 2).next_offset = 5
    for _ in range(1024 // 128):  # so that it comes to lie at 1024
        assert one.append(b"x" * (128 - 91 - 1))[2] == 128
    one.clock.step_wall(1700000000123 - one.clock.wall_ms())
    one.log.write()
    place = one.log.append(
        one.log.cursor("TopicTest", 2),
        b"Hello RocketMQ",
        props(KEYS="k1", TAGS="TagA", UNIQ_KEY="7F000001000000000000000000000000"),
        born_timestamp=1700000000000,
        born_host=host_bytes("10.0.0.1:54321"),
    )
    assert place == (1024, 5, 174)
    one.log.write()
    assert one.log.record_at(1024).hex() == (
        "000000aedaa320a769c865ed000000020000000000000000000000050000000000000400000000000000018bcfe56800"
        "0a0000010000d4310000018bcfe5687b7f00000100002a9f0000000000000000000000000000000e48656c6c6f20526f"
        "636b65744d5109546f70696354657374003c4b455953016b310254414753015461674102554e49515f4b455901374630"
        "303030303130303030303030303030303030303030303030303030303002"
    )


@pytest.mark.parametrize("born", [HOST, HOST_6])
@pytest.mark.parametrize("store", [HOST, HOST_6])
@pytest.mark.parametrize("topic", ["T" * 127, "%RETRY%" + "g" * 248])
def test_hosts_and_versions(bench: MakeBench, born: bytes, store: bytes, topic: str) -> None:
    one = bench(store_host=store)
    physical, _, size = one.log.append(one.log.cursor(topic, 3), b"body", born_timestamp=9, born_host=born)
    one.log.write()
    message = decode_record(one.log.record_at(physical))
    assert size == 91 + 4 + len(topic) + (len(topic) > 127) + 12 * ((born == HOST_6) + (store == HOST_6))
    assert (message.topic, message.queue_id, message.body, message.size) == (topic, 3, b"body", size)
    assert (message.born_host, message.store_host) == (born, store)
    magic = int.from_bytes(one.log.record_at(physical)[4:8], "big")
    assert magic == (MAGIC_V2 if len(topic) > 127 else MAGIC_V1)
    assert one.log.store_timestamp_at(physical) == one.clock.wall_ms()


def test_a_log_that_begins_at_five_tebibytes(bench: MakeBench) -> None:
    one = bench(start=FAR)
    places = [one.append(b"x" * 900) for _ in range(10)]
    one.log.write()
    assert [place[0] for place in places[:5]] == [FAR + i * 992 for i in range(4)] + [FAR + SIZE_BYTES]
    assert [place[1] for place in places] == list(range(10))
    for physical, _, size in places:
        assert decode_record(one.log.record_at(physical)).physical_offset == physical
        assert len(one.log.record_at(physical)) == size
    assert one.log.min_offset == FAR
    entries = [e for found, _ in one.log.entries_from(FAR, one.log.max_offset) for e in found]
    assert [e[PHYSICAL_OFFSET] for e in entries] == [place[0] for place in places]


def test_record_crc_covers_everything(bench: MakeBench) -> None:
    one = bench(record_crc=True)
    for properties in (b"", b"A\x011\x02", b"A\x011", b"__CRC32#\x010000000000\x02A\x011\x02"):
        physical, _, _ = one.append(b"body", properties)
        one.log.write()
        record = one.log.record_at(physical)
        assert record_crc_ok(record)
        assert names.unpack(decode_record(record).packed_properties).get("A", "") == (
            "1" if properties else ""
        )
        for at in range(len(record) - 20):
            assert not record_crc_ok(record[:at] + bytes([record[at] ^ 1]) + record[at + 1 :])


def test_store_times_of_a_pass_are_one_and_never_fall(bench: MakeBench) -> None:
    one = bench()
    first = one.append(b"1")
    one.clock.step_wall(1)
    second = one.append(b"2")
    one.log.write()
    one.clock.step_wall(-10_000)
    third = one.append(b"3")
    one.log.write()
    times = [one.log.store_timestamp_at(place[0]) for place in (first, second, third)]
    assert times == [1_700_000_000_000] * 3
    assert one.log.last_store_timestamp == 1_700_000_000_000


# --- files ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("left", [0, 1, 7, 8, 9, 90])
def test_the_blank_record_needs_eight_bytes(bench: MakeBench, left: int) -> None:
    """A file is left when the record and a blank one do not both fit."""
    one = bench()
    size = SIZE_BYTES - 8 - left
    assert one.append(b"x" * (size - 92)) == (0, 0, size)
    physical, _, _ = one.append(b"")
    one.log.write()
    assert physical == SIZE_BYTES
    assert one.segments.read(size, 8) == encode_blank(8 + left)
    assert one.segments.read(size + 8, left) == bytes(left)


def test_what_just_fits_stays_in_the_file(bench: MakeBench) -> None:
    one = bench()
    assert one.append(b"x" * (1000 - 92))[0] == 0
    assert one.append(b"x" * (SIZE_BYTES - 1000 - 8 - 92)) == (1000, 1, SIZE_BYTES - 1000 - 8)
    assert one.append(b"")[0] == SIZE_BYTES
    one.log.write()
    assert one.segments.read(SIZE_BYTES - 8, 8) == encode_blank(8)
    assert [e[PHYSICAL_OFFSET] for e in one.log.undispatched] == [0, 1000, SIZE_BYTES]
    assert one.progress.appended == one.progress.confirmed == SIZE_BYTES + 92


def test_the_next_file_is_made_ahead(bench: MakeBench) -> None:
    one = bench()
    one.append(b"x" * 3000)
    one.append(b"x" * 3000)
    one.log.write()
    future = one.segments.prepare_next(one.log._executor)
    assert future is None  # under way since the roll
    assert [segment.start for segment in one.segments.all] == [0, SIZE_BYTES]


# --- batches ----------------------------------------------------------------------------------------


def test_a_batch_has_consecutive_offsets_and_both_properties(bench: MakeBench) -> None:
    one = bench()
    one.append(b"before")
    places = one.log.append_batch(
        one.log.cursor("T", 0),
        [(1, b"a", b"K\x011"), (2, b"b", b"K\x012\x02"), (3, b"", b"")],
        b"CLUSTER\x01c\x02",
        **SENT,  # type: ignore[arg-type]
    )
    one.log.write()
    assert [queue_offset for _, queue_offset, _ in places] == [1, 2, 3]
    found = decode_records(one.segments.read(places[0][0], one.log.max_offset - places[0][0]))
    assert [(m.flag, m.body, m.packed_properties) for m in found] == [
        (1, b"a", b"K\x011\x02CLUSTER\x01c\x02"),
        (2, b"b", b"K\x012\x02CLUSTER\x01c\x02"),
        (3, b"", b"CLUSTER\x01c\x02"),
    ]
    assert [m.physical_offset for m in found] == [place[0] for place in places]


@pytest.mark.parametrize("record_crc", [False, True])
@pytest.mark.parametrize("tail", [b"", b"\x02"])
def test_a_batch_never_lies_in_two_files(bench: MakeBench, record_crc: bool, tail: bytes) -> None:
    """Whatever is added to its properties: the sizes are those of the finished records."""
    items = [(0, b"b" * 50, b"KEYS\x01k" + tail)] * 4
    sealed = 20 + (tail == b"") if record_crc else 0
    total = 4 * (92 + 50 + 6 + len(tail) + sealed)
    for filled in range(SIZE_BYTES - total - 12, SIZE_BYTES - total + 5):
        one = bench(record_crc=record_crc)
        one.append(b"x" * (filled - 92 - 20 * record_crc))
        places = one.log.append_batch(one.log.cursor("T", 1), items, **SENT)  # type: ignore[arg-type]
        one.log.write()
        assert sum(place[2] for place in places) == total
        assert places[0][0] == (filled if filled + total + 8 <= SIZE_BYTES else SIZE_BYTES)
        assert places[-1][0] + places[-1][2] == places[0][0] + total


def test_a_batch_is_all_or_nothing(bench: MakeBench) -> None:
    one = bench()
    one.append(b"before")
    one.log.write()
    cursor = one.log.cursor("T", 0)
    with pytest.raises(InvalidRequest):
        one.log.append_batch(cursor, [(0, b"a", b""), (1 << 40, b"b", b"")], **SENT)  # type: ignore[arg-type]
    with pytest.raises(PropertiesTooLong):
        one.log.append_batch(cursor, [(0, b"a", b""), (0, b"b", b"p" * 32768)], **SENT)  # type: ignore[arg-type]
    assert cursor.next_offset == 1
    end = one.log.max_offset
    assert one.append(b"after")[:2] == (end, 1)
    one.log.write()
    assert [m.body for m in decode_records(one.raw())] == [b"before", b"after"]


def test_a_batch_beyond_the_limits(bench: MakeBench) -> None:
    one = bench()
    cursor = one.log.cursor("T", 0)
    with pytest.raises(AppendRefused, match="does not fit into a log file of 4096 bytes"):
        one.log.append_batch(cursor, [(0, b"x" * 2000, b"")] * 2, **SENT)  # type: ignore[arg-type]
    assert (one.progress.appended, one.next_offset()) == (0, 0)


# --- limits -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("topic", "queue_id", "why"),
    [
        ("", 0, "topic name has 0 bytes, the limit is 127"),
        ("t" * 128, 0, "topic name has 128 bytes, the limit is 127"),
        ("%RETRY%" + "t" * 249, 0, "topic name has 256 bytes, the limit is 255"),
        ("ä" * 64, 0, "topic name has 128 bytes"),
        ("a/b", 0, "cannot be the name of a directory"),
        ("..", 0, "cannot be the name of a directory"),
        ("a\0", 0, "cannot be the name of a directory"),
        ("a\\b", 0, "cannot be the name of a directory"),
        ("T", -1, "cannot be the name of a directory"),
    ],
)
def test_topics_that_cannot_be(bench: MakeBench, topic: str, queue_id: int, why: str) -> None:
    with pytest.raises(AppendRefused, match=why) as refused:
        bench().log.cursor(topic, queue_id)
    assert (refused.value.code, refused.value.status) == (13, "MESSAGE_ILLEGAL")


@pytest.mark.parametrize(
    ("body", "properties", "kind", "why"),
    [
        (1 << 20, 0, AppendRefused, "record of 1048668 bytes does not fit into a log file of 1048576 bytes"),
        (0, 32768, PropertiesTooLong, "properties have 32768 bytes, the limit is 32767"),
        (1 << 20, 32768, PropertiesTooLong, "properties have 32768 bytes"),
    ],
)
def test_the_log_refuses_only_what_cannot_fit(
    bench: MakeBench, body: int, properties: int, kind: type, why: str
) -> None:
    one = bench(body_bytes_max=1000, commit_log_file_bytes=1 << 20)
    with pytest.raises(kind, match=why) as refused:
        one.append(b"b" * body, b"p" * properties)
    assert refused.value.code == 13
    assert refused.value.status == ("PROPERTIES_SIZE_EXCEEDED" if properties else "MESSAGE_ILLEGAL")
    assert one.append(b"b" * 1001, b"p" * 32767)[1] == 0  # maxMessageSize is a rule about sending
    one.log.write()


def test_properties_with_a_crc_have_less_room(bench: MakeBench) -> None:
    one = bench(record_crc=True, commit_log_file_bytes=1 << 20)
    with pytest.raises(PropertiesTooLong):
        one.append(b"", b"A\x01" + b"p" * 32746)  # with a separator and the CRC one too many
    assert one.append(b"", b"A\x01" + b"p" * 32744)[2] == 92 + 32767


def test_a_record_must_fit_into_a_file(bench: MakeBench) -> None:
    one = bench()
    one.append(b"first")
    with pytest.raises(
        AppendRefused, match="record of 4089 bytes does not fit into a log file of 4096 bytes"
    ):
        one.append(b"x" * (4089 - 92))
    assert one.append(b"x" * (4088 - 92))[:2] == (SIZE_BYTES, 1)
    one = bench(body_bytes_max=4000, commit_log_file_bytes=1 << 20)
    assert one.append(b"x" * 4000)[1] == 0


# --- light queues -------------------------------------------------------------------------------------


def light(*queues: str, **more: str) -> bytes:
    return props(INNER_MULTI_DISPATCH=",".join(queues), **more)


def offsets_of(one: Bench, physical: int) -> str:
    properties = decode_record(one.log.record_at(physical)).packed_properties
    return names.unpack(properties).get("INNER_MULTI_QUEUE_OFFSET", "none")


def test_light_queues_are_numbered(bench: MakeBench) -> None:
    one = bench(light_queues=True, fill_light_queues=True)
    first = one.append(b"1", light("%LMQ%a", "other", "%LMQ%b", WAIT="false"))
    second = one.append(b"2", light("%LMQ%b", "%LMQ%b"), queue_id=1)
    third = one.append(b"3", light("%LMQ%b", INNER_MULTI_QUEUE_OFFSET="99"))
    one.log.write()
    assert [offsets_of(one, place[0]) for place in (first, second, third)] == ["0,,0", "1,1", "2"]
    assert "WAIT" not in names.unpack(decode_record(one.log.record_at(0)).packed_properties)
    assert (one.next_offset("%LMQ%a"), one.next_offset("%LMQ%b")) == (1, 3)
    assert [place[1] for place in (first, second, third)] == [0, 0, 1]


@pytest.mark.parametrize("topic", ["%RETRY%g", "rmq_sys_x", "SCHEDULE_TOPIC_XXXX"])
def test_messages_that_wait_are_not_numbered(bench: MakeBench, topic: str) -> None:
    one = bench(light_queues=True, fill_light_queues=True)
    place = one.append(b"1", light("%LMQ%a"), topic=topic)
    one.log.write()
    assert offsets_of(one, place[0]) == "none"
    assert one.next_offset("%LMQ%a") == 0


def test_light_queues_without_the_option_or_in_a_batch(bench: MakeBench) -> None:
    one = bench()
    one.append(b"1", light("%LMQ%a"))
    two = bench(light_queues=True, fill_light_queues=True)
    two.log.append_batch(two.log.cursor("T", 0), [(0, b"1", light("%LMQ%a"))], **SENT)  # type: ignore[arg-type]
    for each in (one, two):
        each.log.write()
        assert offsets_of(each, 0) == "none"
        assert each.next_offset("%LMQ%a") == 0


def test_light_queue_offsets_are_given_back(bench: MakeBench, disk: FaultyFiles) -> None:
    one = bench(light_queues=True, fill_light_queues=True)
    one.append(b"1", light("%LMQ%a"))
    one.log.write()
    with pytest.raises(AppendRefused, match="205 bytes"):
        one.append(b"", light("%LMQ%" + "x" * 200))
    assert one.next_offset() == 1
    one.append(b"2", light("%LMQ%a", "%LMQ%b"))
    one.append(b"3", light("%LMQ%b"))
    disk.read_only = True
    with pytest.raises(DiskError):
        one.log.write()
    assert (one.next_offset(), one.next_offset("%LMQ%a"), one.next_offset("%LMQ%b")) == (1, 1, 0)


# --- transactions and inner batches ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sys_flag", "offsets"), [(0, [0, 1, 2]), (8, [0, 1, 2]), (4, [0, 0, 1]), (12, [0, 0, 1])]
)
def test_only_messages_of_queues_take_offsets(bench: MakeBench, sys_flag: int, offsets: list[int]) -> None:
    one = bench()
    cursor = one.log.cursor("T", 0)
    places = [one.append(b"")]
    places.append(one.log.append(cursor, b"", sys_flag=sys_flag, prepared_offset=77, **SENT))  # type: ignore[arg-type]
    places.append(one.append(b""))
    assert [place[1] for place in places] == offsets
    one.log.write()
    assert decode_record(one.log.record_at(places[1][0])).prepared_offset == 77


def test_an_inner_batch_takes_as_many_offsets_as_it_has_messages(bench: MakeBench) -> None:
    one = bench()
    cursor = one.log.cursor("T", 0)
    assert one.log.append(cursor, b"", count=3, **SENT)[1] == 0  # type: ignore[arg-type]
    assert one.append(b"")[1] == 3
    one.log.take_back()
    assert cursor.next_offset == 0


# --- failures -------------------------------------------------------------------------------------------


def test_a_failed_write_gives_offsets_back_and_fences(bench: MakeBench, disk: FaultyFiles) -> None:
    one = bench()
    one.append(b"kept")
    one.log.write()
    one.append(b"lost")
    one.append(b"lost", queue_id=1)
    disk.read_only = True
    with pytest.raises(DiskError):
        one.log.write()
    assert (one.next_offset(), one.next_offset(queue_id=1)) == (1, 0)
    assert one.state.fenced
    disk.read_only = False
    with pytest.raises(NotWritable, match=r"fenced: an append failed: cannot write .*Read-only file system"):
        one.append(b"refused")
    assert one.next_offset() == 1
    assert one.progress.appended == one.log.max_offset == 92 + 4
    assert [m.body for m in decode_records(one.raw())] == [b"kept"]
    assert len(one.log.undispatched) == 1


def test_what_was_stored_before_a_failed_roll_is_not_reported_as_lost(
    bench: MakeBench, disk: FaultyFiles
) -> None:
    """A small message behind the failed roll once made the write fail, for messages that were stored."""
    one = bench()
    one.append(b"stored")
    disk.fail(errno.EIO, Operation.CREATE)
    with pytest.raises(NotWritable):
        one.append(b"x" * 3900)
    with pytest.raises(NotWritable):
        one.append(b"small")
    one.log.write()
    assert [m.body for m in decode_records(one.raw())] == [b"stored"]


def test_a_fenced_log_writes_nothing_at_the_end_of_a_file(bench: MakeBench) -> None:
    one = bench()
    one.append(b"x" * 3000)
    one.log.write()
    before = one.raw()
    one.state.set(Obstacle.FENCED, "a test")
    with pytest.raises(NotWritable):
        one.append(b"x" * 3000)
    one.log.write()
    assert one.raw() == before
    assert [segment.start for segment in one.segments.all] == [0]


def test_a_write_that_fails_at_the_end_of_a_file_is_told_to_all(bench: MakeBench, disk: FaultyFiles) -> None:
    """Messages of one pass, a full file in the middle: those before it must not be acknowledged."""
    one = bench()
    one.append(b"1")
    disk.read_only = True
    with pytest.raises(DiskError):
        one.append(b"x" * 3990)
    disk.read_only = False
    one.state.obstacles.clear()
    one.append(b"3")
    with pytest.raises(DiskError):
        one.append(b"x" * 3990)
    with pytest.raises(DiskError):
        one.log.write()
    assert one.next_offset() == 0
    assert (one.progress.appended, len(one.log.undispatched)) == (0, 0)
    one.append(b"4")
    one.log.write()
    assert [m.body for m in decode_records(one.raw())] == [b"4"]


def test_a_full_disk_at_the_end_of_a_file_leaves_it_open(bench: MakeBench, disk: FaultyFiles) -> None:
    one = bench()
    assert one.append(b"x" * 3000)[:2] == (0, 0)
    disk.fill(0)
    with pytest.raises(NotWritable, match="disk full"):
        one.append(b"y" * 3000)
    one.log.write()
    assert not one.state.fenced
    with pytest.raises(NotWritable, match=r"disk full: .*No space left"):
        one.log.check_writable()
    assert one.next_offset() == 1  # what came before the full disk is stored
    assert one.log.max_offset == 3092  # without a blank record behind it
    one.failing.lift(Kind.LOG, "roll")
    assert one.append(b"small")[:2] == (3092, 1)  # still room for this
    one.log.write()
    disk.make_room()
    assert one.append(b"y" * 3000)[:2] == (SIZE_BYTES, 2)
    one.log.write()
    assert [e[PHYSICAL_OFFSET] for e in one.log.undispatched] == [0, 3092, SIZE_BYTES]


def test_a_preparation_that_failed_long_ago_is_no_reason_to_refuse(
    bench: MakeBench, disk: FaultyFiles
) -> None:
    one = bench()
    disk.fill(0)
    future = one.segments.prepare_next(one.log._executor)
    assert future is not None
    assert isinstance(future.exception(), DiskFull)
    disk.make_room()
    one.append(b"x" * 3000)
    assert one.append(b"y" * 3000)[:2] == (SIZE_BYTES, 1)
    one.log.write()
    assert one.state.writable


def test_a_blank_record_that_cannot_be_written_fences(bench: MakeBench, disk: FaultyFiles) -> None:
    one = bench()
    one.append(b"x" * 3000)
    one.log.write()
    one.segments.ensure_next()
    disk.read_only = True
    with pytest.raises(DiskError):
        one.append(b"y" * 3000)
    assert one.state.fenced
    assert one.next_offset() == 1


# --- reading ------------------------------------------------------------------------------------------


def test_no_record_there(bench: MakeBench) -> None:
    one = bench(start=FAR)
    body = struct.pack(">ii", 100, 0) * 20
    physical, _, size = one.append(body)
    one.log.write()
    for offset in (-1, 0, physical + 1, physical + 88, physical + size, FAR + SIZE_BYTES, 1 << 62):
        with pytest.raises(CorruptRecord, match="no record"):
            one.log.record_at(offset)
        assert one.log.store_timestamp_at(offset) == -1
    with pytest.raises(OffsetOutOfRange):
        one.log.read(physical, size + 1)
    assert store_timestamp_of(b"") == store_timestamp_of(bytes(76)) == -1


def test_a_record_inside_a_body_is_none(bench: MakeBench) -> None:
    """The offset comes from a client: a body that looks like a record must not be given for one."""
    one = bench()
    one.append(b"inner")
    one.log.write()
    physical, _, _ = one.append(one.log.record_at(0))
    one.log.write()
    with pytest.raises(CorruptRecord, match="it names another offset"):
        one.log.record_at(physical + 88)


def test_entries_from_in_pieces_of_any_size(bench: MakeBench) -> None:
    one = bench()
    places = [one.append(b"x" * (i * 37 % 900)) for i in range(30)]
    one.log.write()
    for piece in (100, 977, 4096):
        found: list[Entry] = []
        for entries, _ in one.log.entries_from(places[3][0], one.log.max_offset, piece):
            found += entries
        assert [(e[PHYSICAL_OFFSET], e[QUEUE_OFFSET], e[SIZE]) for e in found] == places[3:]
    assert list(one.log.entries_from(places[3][0], places[3][0])) == []
    upto = [e for entries, _ in one.log.entries_from(0, places[3][0] + 5) for e in entries]
    assert [e[PHYSICAL_OFFSET] for e in upto] == [place[0] for place in places[:3]]


# --- raw bytes, for replicas ----------------------------------------------------------------------------


def a_master(bench: MakeBench, count: int = 25, start: int = 0) -> tuple[Bench, bytes]:
    one = bench(start=start)
    for i in range(count):
        one.append(b"%d" % i * (i * 13 % 400), queue_id=i % 3)
    one.log.write()
    return one, one.raw()


@pytest.mark.parametrize("piece", [1, 7, 100, 4095, 4096, 5000, 1 << 20])
@pytest.mark.parametrize("start", [0, FAR])
def test_a_replica_takes_pieces_of_any_size(bench: MakeBench, piece: int, start: int) -> None:
    master, data = a_master(bench, start=start)
    assert len(master.segments.all) >= 2
    replica = bench(start=start)
    replica.state.set(Obstacle.FOLLOWER, "another leads")  # it takes no messages, but bytes
    sent = 0
    for at in range(0, len(data), piece):
        sent += len(data[at : at + piece])
        replica.log.append_raw(data[at : at + piece])
        # A record is dispatched with its last byte, and not before.
        whole = [e for e in master.log.undispatched if e[PHYSICAL_OFFSET] + e[SIZE] <= start + sent]
        assert len(replica.log.undispatched) == len(whole)
        assert replica.log.whole_end <= start + sent == replica.progress.appended
    assert replica.raw() == data
    assert [e[2:] for e in replica.log.undispatched] == [e[2:] for e in master.log.undispatched]
    assert replica.log.whole_end == start + len(data) == replica.progress.confirmed
    assert replica.log.last_store_timestamp == master.log.last_store_timestamp


@given(st.lists(st.integers(1, 3000), min_size=1, max_size=30))
@settings(max_examples=30, deadline=None, derandomize=True)
def test_a_replica_takes_any_cuts(tmp_path_factory: pytest.TempPathFactory, cuts: list[int]) -> None:
    with ThreadPoolExecutor(1) as worker:
        path = tmp_path_factory.mktemp("replica")
        _, data = a_master(lambda start: Bench(path / "a", Files(), worker, start=start))
        replica = Bench(path / "b", Files(), worker)
        at = 0
        for cut in [*cuts, len(data)]:
            replica.log.append_raw(data[at : at + cut])
            at += cut
        assert replica.raw() == data
        assert [e[TOPIC] for e in replica.log.undispatched] == [b"T"] * 25
        replica.segments.close()


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda d: d[:4] + b"\0\0\0\0" + d[8:], "record magic"),
        (lambda d: bytes(len(d)), "zeros instead of a record"),
        (lambda d: b"\0\0\xff\xff" + d[4:], "but the file ends at 4096"),
        (
            lambda d: d[:28] + struct.pack(">q", 5) + d[36:],
            "at 0: the record says it lies at 5",
        ),
        (lambda d: d[:84] + b"\0\0\0\x01" + d[88:], "record size"),
    ],
)
def test_a_replica_refuses_what_is_no_log(
    bench: MakeBench, change: Callable[[bytes], bytes], why: str
) -> None:
    _, data = a_master(bench, 3)
    replica = bench()
    with pytest.raises(CorruptRecord, match=why):
        replica.log.append_raw(change(data))
    assert (replica.log.max_offset, len(replica.log.undispatched)) == (0, 0)
    replica.log.append_raw(data)  # and takes what is one
    assert len(replica.log.undispatched) == 3


@pytest.mark.parametrize("longer", [-8, 8, 4096])
def test_a_replica_tells_files_of_another_size_from_damage(bench: MakeBench, longer: int) -> None:
    _, data = a_master(bench, 3)
    replica = bench()
    replica.log.append_raw(data)
    told = f"received the end of a file at {4096 + longer}, but the file ends at 4096"
    with pytest.raises(OtherFileSize, match=told):
        replica.log.append_raw(encode_blank(4096 - len(data) + longer)[:8])
    assert replica.log.max_offset == len(data)
    left = 4096 - len(data)
    replica.log.append_raw(encode_blank(left).ljust(left, b"\0"))
    assert replica.log.whole_end == 4096


def test_half_a_blank_record_is_not_whole(bench: MakeBench) -> None:
    """A record behind its first bytes would never be found."""
    _, data = a_master(bench, 3)
    replica = bench()
    replica.log.append_raw(data)
    left = 4096 - len(data)
    blank = encode_blank(left).ljust(left, b"\0")
    for at in range(0, left, 300):
        assert replica.log.whole_end == len(data)
        replica.log.append_raw(blank[at : at + 300])
    assert replica.log.whole_end == replica.log.max_offset == 4096


def test_a_replica_that_becomes_the_master_and_back(bench: MakeBench) -> None:
    _, data = a_master(bench, 3)
    replica = bench()
    replica.log.append_raw(data)
    replica.log.forget_cursors()
    replica.queue_end = 1
    assert replica.append(b"own")[:2] == (len(data), 1)
    replica.log.write()
    end = replica.log.max_offset
    other = bench(start=0)
    other.log.append_raw(replica.raw())
    other.append(b"next")
    other.log.write()
    replica.log.append_raw(other.raw()[end:])
    assert replica.raw() == other.raw()
    assert len(replica.log.undispatched) == 5


def test_a_failed_raw_append_fences(bench: MakeBench, disk: FaultyFiles) -> None:
    _, data = a_master(bench, 3)
    replica = bench()
    replica.log.append_raw(data[:150])
    disk.read_only = True
    with pytest.raises(DiskError):
        replica.log.append_raw(data[150:])
    assert replica.state.fenced
    assert replica.progress.appended == 150
    disk.read_only = False
    with pytest.raises(NotWritable):
        replica.log.append_raw(data[150:])


# --- the transient buffer -------------------------------------------------------------------------------


def test_transient_appends_are_seen_when_committed(bench: MakeBench) -> None:
    one = bench(transient=True)
    place = one.append(b"body")
    one.log.write()
    assert (one.progress.appended, one.progress.committed, one.progress.confirmed) == (place[2], 0, 0)
    with pytest.raises(OffsetOutOfRange):
        one.log.read_hot(0, place[2])
    one.segments.commit()
    one.progress.advance()
    assert one.progress.confirmed == place[2]
    assert decode_record(one.log.record_at(0)).body == b"body"
