from __future__ import annotations

import logging
import os
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from kerolox.protocol.compression import compress
from kerolox.protocol.flags import COMPRESSED, COMPRESSION_LZ4, COMPRESSION_ZLIB
from kerolox.protocol.message import StoredMessage
from kerolox.spark.columns import arrow_schema
from kerolox.spark.store import files as store_files
from kerolox.spark.store import reading as store_reading
from kerolox.spark.store.options import parse, read_choice
from kerolox.spark.store.plan import plan
from kerolox.spark.store.reading import REPORT, read_split
from kerolox.store.errors import CorruptRecord, DiskError
from kerolox.store.queue.entry import HOLE_TAGS, SIMPLE
from tests.spark.store_maker import BORN_MS, StoreMaker, fill, overwrite


def table(path: str, columns: tuple[str, ...] = ("physical_offset", "body"), **options: str) -> pa.Table:
    """What Spark would get, without Spark."""
    values = parse({"path": path} | {key.lower(): value for key, value in options.items()})
    choice = read_choice(values)
    schema = REPORT if choice.report else arrow_schema(columns)
    batches = [batch for split in plan(values) for batch in read_split(split, choice, schema)]
    return pa.Table.from_batches(batches, schema)


def rows(path: str, **options: str) -> list[tuple[int, bytes]]:
    found = table(path, **options).to_pydict()
    return list(zip(found["physical_offset"], found["body"], strict=True))


def expected(messages: list[StoredMessage]) -> list[tuple[int, bytes]]:
    return [(message.physical_offset, message.plain_body()) for message in messages]


def report(path: str, **options: str) -> list[dict[str, Any]]:
    return table(path, report="corrupt", **options).to_pylist()


@pytest.fixture
def maker(tmp_path: Path) -> StoreMaker:
    return StoreMaker(tmp_path / "broker-a")


BOTH = pytest.mark.parametrize("way", ["queues", "log"])


@BOTH
@pytest.mark.parametrize("pieces", ["1", "7"])
def test_every_message_once_in_the_order_of_the_log(maker: StoreMaker, way: str, pieces: str) -> None:
    path = fill(maker, 2000, ("orders", "refunds"), queues=3).write()
    assert len(maker.log) > 5 * maker.file_bytes
    assert rows(path, **{"from": way}, minPartitions=pieces) == expected(maker.messages)


@BOTH
def test_records_of_all_kinds(maker: StoreMaker, way: str) -> None:
    rng = random.Random(7)
    for number in range(600):
        body, sys_flag = rng.randbytes(rng.choice((0, 5, 300))), 0
        if number % 5 == 0:
            kind = (COMPRESSION_ZLIB, COMPRESSION_LZ4)[number % 2]
            body, sys_flag = compress(body * 9, kind), COMPRESSED | kind
        topic = "long" * 40 if number % 7 == 0 else "orders"
        maker.add(topic, body, number % 3, ipv6=number % 11 == 0, sys_flag=sys_flag, properties={"a": "b"})
    path = maker.write()
    assert rows(path, **{"from": way}, minPartitions="4", verifyCrc="true") == expected(maker.messages)


def test_all_columns(maker: StoreMaker) -> None:
    path = fill(maker, 3).write()
    found = table(path, tuple(arrow_schema().names)).to_pylist()
    assert [row["msg_id"] for row in found] == [f"{number:032X}" for number in range(3)]
    assert [(row["topic"], row["broker"], row["queue_id"], row["queue_offset"]) for row in found] == [
        ("orders", "broker-a", 0, 0), ("orders", "broker-a", 1, 0), ("orders", "broker-a", 0, 1),
    ]  # fmt: skip
    assert dict(found[1]["properties"]) == {"KEYS": "k1", "TAGS": "b", "UNIQ_KEY": f"{1:032X}"}


@BOTH
def test_large_records_among_small_ones(maker: StoreMaker, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_reading, "BLOCK_BYTES", 2048)
    for number in range(100):
        maker.add("orders", bytes([number]) * (5000 if number % 9 == 4 else 40), number % 2)
    assert rows(maker.write(), **{"from": way}) == expected(maker.messages)


@BOTH
def test_few_rows_per_batch(maker: StoreMaker, way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store_reading, "ROWS", 10)
    path = fill(maker, 95).write()
    found = table(path, **{"from": way})
    assert found.num_rows == 95
    assert max(len(chunk) for chunk in found.column(0).chunks) <= 10


def test_messages_far_apart_are_read_one_by_one(maker: StoreMaker) -> None:
    for number in range(200):
        maker.add("rare" if number % 20 == 0 else "common", os.urandom(3000))
    path = maker.write()
    rare = [message for message in maker.messages if message.topic == "rare"]
    assert rows(path, topic="rare") == expected(rare)
    assert rows(path, **{"from": "log"}, topic="rare") == expected(rare)


def test_topics_and_queues(maker: StoreMaker) -> None:
    path = fill(maker, 120, ("orders", "refunds", "SCHEDULE_TOPIC_XXXX", "%RETRY%g"), queues=3).write()

    def having(*topics: str, queue_ids: tuple[int, ...] = (0, 1, 2)) -> list[tuple[int, bytes]]:
        return expected([m for m in maker.messages if m.topic in topics and m.queue_id in queue_ids])

    assert rows(path) == having("orders", "refunds", "%RETRY%g")  # not the brokers' own
    assert rows(path, topic="refunds,SCHEDULE_TOPIC_XXXX") == having("refunds", "SCHEDULE_TOPIC_XXXX")
    assert rows(path, topicPattern="o.*|.*XX") == having("orders", "SCHEDULE_TOPIC_XXXX")
    assert rows(path, topic="orders", queueIds="0,2") == having("orders", queue_ids=(0, 2))
    assert rows(path, **{"from": "log"}) == expected(maker.messages)
    assert rows(path, **{"from": "log"}, topicPattern=".r.*") == having("orders")


def test_offsets_per_queue(maker: StoreMaker) -> None:
    path = fill(maker, 100, queues=2).write()
    found = table(
        path, ("queue_id", "queue_offset"), topic="orders",
        startingOffsets='{"orders": {"broker-a": {"0": 40, "1": -1}}}',
    ).to_pydict()  # fmt: skip
    assert (set(found["queue_id"]), found["queue_offset"]) == ({0}, list(range(40, 50)))
    found = table(
        path, ("queue_id", "queue_offset"),
        startingOffsets='{"orders": {"broker-a": {"0": 7}}}',
        endingOffsets='{"orders": {"broker-a": {"0": 9, "1": -2}}}',
    ).to_pydict()  # fmt: skip
    assert (found["queue_id"], found["queue_offset"]) == ([0, 0], [7, 8])


@BOTH
@pytest.mark.parametrize("pieces", ["1", "9"])
def test_times(maker: StoreMaker, way: str, pieces: str) -> None:
    path = fill(maker, 1000, queues=4).write()
    found = rows(
        path, **{"from": way}, minPartitions=pieces,
        startingTimestamp=str(BORN_MS + 300), endingTimestamp=str(BORN_MS + 650),
    )  # fmt: skip
    assert found == expected(maker.messages[300:650])


def test_damage_does_not_mislead_the_search_for_a_time(maker: StoreMaker) -> None:
    path = fill(maker, 1000, queues=1).write()
    for number in (498, 499, 500, 502, 749, 750):  # where the search looks first, and beside
        maker.damage(maker.messages[number].physical_offset, b"\xff" * 60)
    lost = {498, 499, 500, 502, 749, 750}
    for after, before in ((100, 300), (499, 503), (505, 900), (0, 1000)):
        found = rows(
            path, onCorrupt="skip",
            startingTimestamp=str(BORN_MS + after), endingTimestamp=str(BORN_MS + before),
        )  # fmt: skip
        wanted = [message for number, message in enumerate(maker.messages[:before]) if number >= after]
        assert found == expected([message for message in wanted if maker.messages.index(message) not in lost])


def test_deleted_log_files_and_blank_entries(maker: StoreMaker) -> None:
    """The log begins later than the queue, whose first entries are blank."""
    fill(maker, 1500, queues=1)
    entries = maker.queues["orders", 0]
    entries[: 5 * SIMPLE.size] = SIMPLE.pack(0, 0x7FFF_FFFF, 0) * 5
    path = maker.write(first_file=2)
    left = [message for message in maker.messages if message.physical_offset >= 2 * maker.file_bytes]
    assert 0 < len(left) < 1500
    assert rows(path) == expected(left)
    assert rows(path, **{"from": "log"}) == expected(left)
    assert report(path) == []


def test_entries_of_lost_messages_give_no_rows(maker: StoreMaker) -> None:
    fill(maker, 10, queues=1)
    entries = maker.queues["orders", 0]
    following = maker.messages[5]
    entries[4 * SIMPLE.size : 5 * SIMPLE.size] = SIMPLE.pack(
        following.physical_offset, following.size, HOLE_TAGS
    )
    # in the queues of delayed messages the mark is the next one's time
    entries[7 * SIMPLE.size : 8 * SIMPLE.size] = entries[8 * SIMPLE.size : 9 * SIMPLE.size]
    path = maker.write()
    left = [message for number, message in enumerate(maker.messages) if number not in (4, 7)]
    assert rows(path) == expected(left)


def test_what_repair_put_in_place_of_damage_is_no_message(maker: StoreMaker) -> None:
    fill(maker, 5)
    maker.add("kerolox_repaired", b"", sys_flag=0xC, queued=False)
    maker.add("kerolox_repaired", b"a topic of this name")
    path = maker.write()
    assert rows(path, **{"from": "log"}) == expected(maker.messages[:5] + maker.messages[6:])


# --- ends ----------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize("kept", [0, 3, 8, 60, 100, 150, 176])
def test_a_torn_last_record_is_not_there_yet(maker: StoreMaker, way: str, kept: int) -> None:
    fill(maker, 400)
    last = maker.add("orders", b"last" * 20, properties={"KEYS": "something of a length"})
    assert last.size > 176
    path = maker.write()
    maker.damage(last.physical_offset + kept, bytes(last.size - kept))
    assert rows(path, **{"from": way}) == expected(maker.messages[:-1])


@BOTH
def test_log_ahead_of_queues_and_queues_ahead_of_the_log(maker: StoreMaker, way: str) -> None:
    fill(maker, 300, queues=1)
    entries = bytes(maker.queues["orders", 0])
    maker.queues["orders", 0][250 * SIMPLE.size :] = b""
    path = maker.write()
    assert len(rows(path, **{"from": way})) == (250 if way == "queues" else 300)
    maker.queues["orders", 0][:] = entries + SIMPLE.pack(len(maker.log), 200, 0) * 3
    maker.write()
    assert rows(path, **{"from": way}) == expected(maker.messages)


def test_old_records_behind_the_end_do_not_count(maker: StoreMaker) -> None:
    """Apache's recovery leaves what it cut off; new records are written over it."""
    fill(maker, 50)
    before = bytes(maker.log)
    maker.forget_from(30)
    maker.add("orders", b"new" * 50, stored_ms=BORN_MS + 10_000)
    path = maker.write()
    maker.damage(len(maker.log), before[len(maker.log) :])
    assert rows(path, **{"from": "log"}) == expected(maker.messages)


@BOTH
def test_empty_stores(tmp_path: Path, way: str) -> None:
    (tmp_path / "commitlog").mkdir()
    assert rows(str(tmp_path), **{"from": way}) == []
    (tmp_path / "commitlog" / f"{0:020d}").write_bytes(bytes(4096))
    (tmp_path / "consumequeue" / "orders" / "0").mkdir(parents=True)
    (tmp_path / "consumequeue" / "orders" / "0" / f"{0:020d}").write_bytes(bytes(2000))
    assert rows(str(tmp_path), **{"from": way}) == []
    assert report(str(tmp_path), **{"from": way}) == []


@BOTH
def test_a_last_file_that_was_cut_off(maker: StoreMaker, way: str) -> None:
    path = fill(maker, 700).write()
    last = maker.messages[-3]
    os.truncate(
        maker.root / "commitlog" / f"{last.physical_offset // maker.file_bytes * maker.file_bytes:020d}",
        last.physical_offset % maker.file_bytes + 50,
    )
    assert rows(path, **{"from": way}) == expected(maker.messages[:-3])


# --- damage --------------------------------------------------------------------------------------


@BOTH
@pytest.mark.parametrize(
    ("at", "data", "reason"),
    [
        (0, b"\0\0\0\5", "5"),  # the size
        (0, b"\x7f\0\0\0", "bytes"),
        (4, b"\xff", "magic"),
        (28, b"\1", "names another offset"),
        (84, b"\0\0\x01\0", "CRC"),  # the length of the body
        (84, b"\xff", "length"),
    ],
)
@pytest.mark.parametrize("pieces", ["1", "5"])
def test_damage(
    maker: StoreMaker,
    way: str,
    at: int,
    data: bytes,
    reason: str,
    pieces: str,
    caplog: pytest.LogCaptureFixture,
) -> None:
    path = fill(maker, 600).write()
    victim = maker.messages[333]
    place = maker.damage(victim.physical_offset + at, data)
    file, offset = place[0], victim.physical_offset % maker.file_bytes
    options = {"from": way, "minPartitions": pieces}
    with pytest.raises(CorruptRecord) as caught:
        rows(path, **options)
    assert (caught.value.path, caught.value.offset) == (file, offset)
    assert f"{file} at byte {offset}" in str(caught.value)
    assert "onCorrupt = skip" in str(caught.value)
    with caplog.at_level(logging.WARNING):
        assert rows(path, **options, onCorrupt="skip") == expected(
            maker.messages[:333] + maker.messages[334:]
        )
    assert f"path={file} offset={offset}" in caplog.text
    (found,) = report(path, **options)
    assert (found["broker"], found["path"], found["offset"]) == ("broker-a", file, offset)
    assert found["bytes"] == victim.size
    assert reason in found["reason"]


@BOTH
def test_a_flipped_bit_in_a_body_is_found_by_its_crc(maker: StoreMaker, way: str) -> None:
    path = fill(maker, 50).write()
    victim = maker.messages[20]
    maker.damage(victim.physical_offset + 100, b"!")
    assert len(rows(path, **{"from": way})) == 50
    with pytest.raises(CorruptRecord, match="CRC"):
        rows(path, **{"from": way}, verifyCrc="true")
    left = maker.messages[:20] + maker.messages[21:]
    assert rows(path, **{"from": way}, verifyCrc="true", onCorrupt="skip") == expected(left)
    (found,) = report(path, **{"from": way})
    assert (found["offset"], found["bytes"]) == (victim.physical_offset, victim.size)
    assert report(path, **{"from": way}, verifyCrc="false") == []


@BOTH
def test_a_body_that_does_not_decompress(maker: StoreMaker, way: str) -> None:
    fill(maker, 30)
    bad = maker.add("orders", b"this is not compressed", sys_flag=COMPRESSED | COMPRESSION_ZLIB)
    fill(maker, 30)
    path = maker.write()
    with pytest.raises(CorruptRecord, match=f"byte {bad.physical_offset % maker.file_bytes}"):
        rows(path, **{"from": way})
    left = [message for message in maker.messages if message is not bad]
    assert rows(path, **{"from": way}, onCorrupt="skip") == expected(left)
    assert table(path, ("queue_offset",), **{"from": way}).num_rows == 61  # bodies are not looked at


@BOTH
def test_a_missing_file(maker: StoreMaker, way: str) -> None:
    path = fill(maker, 1500).write()
    gone = maker.root / "commitlog" / f"{maker.file_bytes:020d}"
    gone.unlink()
    with pytest.raises(CorruptRecord, match=f"{maker.file_bytes:020d} at byte 0: .*missing"):
        rows(path, **{"from": way})
    left = [m for m in maker.messages if m.physical_offset // maker.file_bytes != 1]
    assert rows(path, **{"from": way}, onCorrupt="skip") == expected(left)
    (found,) = report(path, **{"from": way})
    assert (found["path"], found["offset"], found["reason"]) == (str(gone), 0, "the file is missing")
    assert maker.file_bytes - 300 < found["bytes"] <= maker.file_bytes


def test_damaged_queue_entries(maker: StoreMaker) -> None:
    path = fill(maker, 200, queues=1).write()
    queue = maker.root / "consumequeue" / "orders" / "0"
    overwrite(queue / f"{0:020d}", 20 * 20, bytes(20))
    overwrite(queue / f"{2000:020d}", 30 * 20, b"\x7f")
    overwrite(queue / f"{2000:020d}", 40 * 20 + 8, b"\0\0\2\1")
    with pytest.raises(
        CorruptRecord, match=f"{0:020d} at byte 400: the entry is missing: orders queue 0 offset 20"
    ):
        rows(path)
    left = [message for number, message in enumerate(maker.messages) if number not in (20, 130, 140)]
    assert rows(path, onCorrupt="skip") == expected(left)
    assert rows(path, onCorrupt="skip", minPartitions="5") == expected(left)
    found = report(path)
    assert [(row["path"], row["offset"], row["bytes"]) for row in found[:2]] == [
        (str(queue / f"{0:020d}"), 400, 20),
        (str(queue / f"{2000:020d}"), 600, 20),
    ]
    assert "its queue entry says another size" in found[2]["reason"]
    assert rows(path, **{"from": "log"}) == expected(maker.messages)


def test_a_missing_queue_file(maker: StoreMaker) -> None:
    path = fill(maker, 300, queues=1).write()
    gone = maker.root / "consumequeue" / "orders" / "0" / f"{2000:020d}"
    gone.unlink()
    assert rows(path, onCorrupt="skip") == expected(maker.messages[:100] + maker.messages[200:])
    (found,) = report(path)
    assert (found["path"], found["offset"], found["bytes"]) == (str(gone), 0, 2000)
    assert found["reason"] == "the entry is missing: orders queue 0 offset 100"


def test_much_damage_is_not_told_at_length(
    maker: StoreMaker, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store_reading, "WARNINGS_MAX", 3)
    path = fill(maker, 100).write()
    for message in maker.messages[1::10]:
        maker.damage(message.physical_offset + 4, b"\0")
    assert len(rows(path, onCorrupt="skip")) == 90
    assert caplog.text.count("corrupt_region_skipped") == 3
    assert "corrupt_regions_skipped more=7" in caplog.text


@BOTH
def test_random_damage_never_escapes(maker: StoreMaker, way: str) -> None:
    """Whatever the bytes: rows that are messages, and regions."""
    path = fill(maker, 800, ("orders", "refunds"), queues=3).write()
    rng = random.Random(1)
    known = set(expected(maker.messages))
    for _ in range(15):
        directory = maker.root / rng.choice(("commitlog", "consumequeue/orders/1"))
        file = rng.choice(sorted(directory.iterdir()))
        overwrite(file, rng.randrange(file.stat().st_size - 30), rng.randbytes(rng.randrange(1, 30)))
        found = rows(path, **{"from": way}, onCorrupt="skip", verifyCrc="true", minPartitions="3")
        assert set(found) <= known
        assert len(found) > 400
        report(path, **{"from": way})


@BOTH
def test_a_wrong_size_does_not_make_it_read_all(maker: StoreMaker, way: str) -> None:
    """Bodies full of what could be the head of a large record."""
    head = (maker.file_bytes // 2).to_bytes(4, "big") + b"\xda\xa3\x20\xa7"
    for number in range(40):
        maker.add("orders", head * 500, number % 2)
    path = maker.write()
    maker.damage(maker.messages[3].physical_offset, b"\xff\xff\xff\xff")
    left = maker.messages[:3] + maker.messages[4:]
    read: list[int] = []
    with pytest.MonkeyPatch.context() as patch:
        whole = store_files.LogFiles.read
        patch.setattr(
            store_files.LogFiles,
            "read",
            lambda log, place, size: (read.append(size), whole(log, place, size))[1],
        )
        assert rows(path, **{"from": way}, onCorrupt="skip") == expected(left)
    assert sum(size > 4096 and size < store_files.PIECE_BYTES for size in read) < 60


def test_files_of_any_bytes(tmp_path: Path) -> None:
    """Nothing but damage: no rows, and nothing escapes."""
    rng = random.Random(3)
    log = tmp_path / "commitlog" / f"{0:020d}"
    queue = tmp_path / "consumequeue" / "orders" / "0" / f"{0:020d}"
    log.parent.mkdir()
    queue.parent.mkdir(parents=True)
    for number in range(30):
        log.write_bytes(b"\xda\xa3\x20\xa7".join(rng.randbytes(rng.randrange(100)) for _ in range(40)))
        entries = [
            SIMPLE.pack(
                *(rng.getrandbits(63) >> rng.choice((0, 40, 55)), rng.getrandbits(rng.choice((8, 31))), 0)
            )
            for _ in range(20)
        ]
        queue.write_bytes(b"".join(entries) + rng.randbytes(number))
        for way in ("queues", "log"):
            assert rows(str(tmp_path), **{"from": way}, onCorrupt="skip", minPartitions="3") == []
            report(str(tmp_path), **{"from": way})


# --- files that cannot be read --------------------------------------------------------------------------


def unreadable(path: Path) -> Path:
    """Let a file fail to be opened (ELOOP, for root as well); returns where its content is."""
    kept = path.with_name("kept")
    path.rename(kept)
    path.symlink_to(path)
    return kept


@pytest.mark.parametrize("when", ["before the plan", "behind the plan"])
@pytest.mark.parametrize(
    ("way", "kind"), [("log", "commitlog"), ("queues", "commitlog"), ("queues", "consumequeue/orders/0")]
)
def test_messages_of_a_file_that_cannot_be_read_are_not_left_out(
    maker: StoreMaker, way: str, kind: str, when: str
) -> None:
    path = fill(maker, 2000).write()
    values = parse({"path": path, "from": way})
    planned = plan(values) if when == "behind the plan" else None
    names = sorted((Path(path) / kind).iterdir())
    file = names[len(names) // 2]
    kept = unreadable(file)
    choice, schema = read_choice(values), arrow_schema(("physical_offset", "body"))

    def read() -> None:
        for split in planned or plan(values):
            list(read_split(split, choice, schema))

    with pytest.raises(DiskError, match=file.name):
        read()
    kept.replace(file)
    assert rows(path, **{"from": way}) == expected(maker.messages)
