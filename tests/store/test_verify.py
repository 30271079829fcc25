"""What verify finds, and that it finds nothing where nothing is wrong."""

from __future__ import annotations

import os
import shutil
import struct
from pathlib import Path

import pytest
from tests.store.dispatch.kit import Rig, options_for

from kerolox.protocol.bodies.topics import TopicConfig
from kerolox.protocol.properties import pack
from kerolox.protocol.record import encode_record, topic_field
from kerolox.store.disk.files import Files
from kerolox.store.errors import DiskError, FileMissing
from kerolox.store.index.index_file import HEADER
from kerolox.store.message_store import MessageStore
from kerolox.store.offline.layout import Layout, find_layout
from kerolox.store.offline.verify import Report, verify
from kerolox.store.options import INDEX_SIZES
from kerolox.store.queue.entry import SIMPLE
from kerolox.store.tables.topics import TopicTable
from kerolox.supervise.embedded import EMBEDDED
from kerolox.testing.clock import ManualClock

Places = list[tuple[int, int, int]]


def layout_of(path: Path) -> Layout:
    return find_layout(path, options_for(path))


def look(path: Path, *, live: bool = False) -> Report:
    return verify(layout_of(path), live=live, clock=ManualClock())


async def fill(path: Path, count: int = 60) -> Places:
    clock = ManualClock()
    places: Places = []
    async with MessageStore(options_for(path), clock=clock) as store:
        for number in range(count):
            table = {"TAGS": f"t{number % 3}", "KEYS": f"k{number} all"}
            if number % 2:
                table["UNIQ_KEY"] = f"{number:032X}"
            places.append(await store.put(f"T{number % 2}", 0, b"b%d" % number, pack(table)))
            clock.step_wall(100)
    know_topics(path, "T0", "T1")
    return places


def know_topics(path: Path, *names: str) -> None:
    """The table a broker would have saved."""
    table = TopicTable(Files(), path / "config")
    for name in names:
        table.put(TopicConfig(topic_name=name))
    table.save()


def overwrite(path: Path, at: int, data: bytes) -> None:
    with open(path, "r+b") as file:
        file.seek(at)
        file.write(data)


def queue_file(path: Path, topic: str = "T0", start: int = 0) -> Path:
    return path / "consumequeue" / topic / "0" / f"{start:020d}"


def index_path(path: Path) -> Path:
    return path / "index" / os.listdir(path / "index")[0]


def kinds(report: Report) -> list[str]:
    return sorted({finding.kind for finding in report.findings})


async def test_a_whole_store_has_no_findings_and_is_not_changed(tmp_path: Path) -> None:
    places = await fill(tmp_path, 200)
    before = snapshot(tmp_path)
    report = look(tmp_path)
    assert (report.findings, report.notes) == ([], [])
    assert (report.records, report.queue_entries, report.queues) == (200, 200, 2)
    assert report.index_entries == 200 * 2 + 100
    assert report.log_end == places[-1][0] + places[-1][2]
    assert snapshot(tmp_path) == before


def snapshot(path: Path) -> dict[str, tuple[bytes, float]]:
    return {
        str(file.relative_to(path)): (file.read_bytes(), file.stat().st_mtime)
        for file in sorted(path.rglob("*"))
        if file.is_file()
    }


async def test_delayed_and_light_messages_are_understood(tmp_path: Path) -> None:
    options = options_for(tmp_path, light_queues=True, fill_light_queues=True)
    async with MessageStore(options, clock=ManualClock()) as store:
        for number in range(30):
            await store.put("SCHEDULE_TOPIC_XXXX", 2, b"later", pack({"DELAY": "3", "REAL_TOPIC": "T"}))
            await store.put("T", 0, b"light", pack({"INNER_MULTI_DISPATCH": "%LMQ%a,%LMQ%b", "TAGS": "x"}))
            await store.put("T", number % 3, "тело".encode(), pack({"TAGS": "тег", "KEYS": "ключ"}))
    know_topics(tmp_path, "T")
    report = verify(find_layout(tmp_path, options), clock=ManualClock())
    assert (report.findings, report.notes) == ([], [])
    assert report.queues == 6


async def test_sizes_are_found_out_without_options(tmp_path: Path) -> None:
    await fill(tmp_path)
    shutil.rmtree(tmp_path / "index")
    report = verify(find_layout(tmp_path), clock=ManualClock())
    assert report.findings == []
    assert [note.kind for note in report.notes] == ["no index"]


async def test_a_damaged_body_in_the_middle(tmp_path: Path) -> None:
    places = await fill(tmp_path)
    bad = places[5][0]
    overwrite(tmp_path / "commitlog" / f"{0:020d}", bad + 88, b"\xff")
    report = look(tmp_path)
    damage = report.findings[0]
    assert (damage.kind, damage.offset) == ("damaged log", bad)
    assert f"--skip {bad}" in damage.next
    assert str(places[6][0]) in damage.what
    assert report.records == 59  # those behind it are looked at all the same
    assert kinds(report) == ["damaged log", "index: no message", "queue: no message"]


async def test_a_record_that_lies_elsewhere(tmp_path: Path) -> None:
    places = await fill(tmp_path)
    overwrite(tmp_path / "commitlog" / f"{0:020d}", places[5][0] + 28, struct.pack(">q", 77))
    report = look(tmp_path)
    assert "names another offset, 77" in report.findings[0].what


async def test_a_missing_log_file(tmp_path: Path) -> None:
    await fill(tmp_path, 200)
    (tmp_path / "commitlog" / f"{4096:020d}").unlink()
    report = look(tmp_path)
    damage = [finding for finding in report.findings if finding.kind == "damaged log"]
    assert [finding.offset for finding in damage] == [4096]


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        (0, 1, "queue: wrong place"),
        (1, 5, "queue: wrong size"),
        (2, 5, "queue: wrong tags code"),
    ],
)
async def test_a_wrong_queue_entry(tmp_path: Path, field: int, value: int, kind: str) -> None:
    await fill(tmp_path)
    path = queue_file(tmp_path)
    entry = list(SIMPLE.at(path.read_bytes()[7 * 20 : 8 * 20]))
    entry[field] += value
    overwrite(path, 7 * 20, SIMPLE.pack(*entry))
    report = look(tmp_path)
    (finding,) = report.findings
    assert (finding.kind, finding.offset, finding.path) == (kind, 7, str(path.parent))
    assert "repair" in finding.next


async def test_a_queue_that_ends_early_or_late(tmp_path: Path) -> None:
    places = await fill(tmp_path)
    end = places[-1][0] + places[-1][2]
    overwrite(queue_file(tmp_path), 25 * 20, bytes(5 * 20))
    overwrite(queue_file(tmp_path, "T1"), 30 * 20, SIMPLE.pack(end, 100, 0))
    report = look(tmp_path)
    assert kinds(report) == ["queue: missing", "queue: no message"]
    assert "5 messages from queue offset 25" in next(f.what for f in report.findings if "missing" in f.kind)


async def test_a_queue_that_is_gone(tmp_path: Path) -> None:
    await fill(tmp_path)
    shutil.rmtree(tmp_path / "consumequeue/T1")
    report = look(tmp_path)
    assert [(finding.kind, finding.note) for finding in report.findings] == [("no queue", False)]
    know_topics(tmp_path, "T0")
    report = look(tmp_path)
    assert report.findings == []
    assert [note.kind for note in report.notes] == ["no queue"]


async def test_an_index_that_lost_keys(tmp_path: Path) -> None:
    await fill(tmp_path)
    path = index_path(tmp_path)
    header = list(HEADER.unpack(path.read_bytes()[:40]))
    header[5] -= 10
    overwrite(path, 0, HEADER.pack(*header))
    report = look(tmp_path)
    assert "index: missing" in kinds(report)


@pytest.mark.parametrize(
    ("at", "data", "kind"),
    [
        (40, b"\x00\x00\x00\x07", "index slots"),
        (40 + 400 + 20 * 9, b"\x00\x00\x00\x01", "index chain"),
        (40 + 400 + 20 * 9 + 4, struct.pack(">q", 3), "index: missing"),
        (36, struct.pack(">i", 5000), "index header"),
    ],
)
async def test_damage_in_the_index(tmp_path: Path, at: int, data: bytes, kind: str) -> None:
    await fill(tmp_path)
    overwrite(index_path(tmp_path), at, data)
    report = look(tmp_path)
    assert kind in kinds(report)
    assert all("--index" in finding.next for finding in report.findings)


async def test_what_a_killed_process_had_only_in_memory_is_no_finding(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    store = await rig.open()
    for number in range(30):
        await store.put("T", 0, b"x", pack({"KEYS": f"k{number}"}))
    await rig.kill(store)
    report = look(tmp_path)
    assert report.crashed
    assert report.findings == []
    assert {note.kind for note in report.notes} >= {"no queue", "index: end", "abort"}
    await rig.end()


async def test_a_queue_flushed_in_part_before_a_kill_is_no_finding(tmp_path: Path) -> None:
    rig = Rig(tmp_path)
    store = await rig.open()
    await store.put("T", 0, b"x")
    await store.housekeeper.flush()
    await store.put("T", 0, b"y")
    await rig.kill(store)
    report = look(tmp_path)
    assert report.findings == []
    assert "queue: end" in {note.kind for note in report.notes}
    await rig.end()


async def test_a_store_in_use_can_be_looked_at(tmp_path: Path) -> None:
    async with MessageStore(options_for(tmp_path), clock=ManualClock()) as store:
        for number in range(30):
            await store.put("T", 0, b"x", pack({"KEYS": f"k{number}"}))
        assert look(tmp_path, live=True).findings == []


async def test_stray_and_wrong_files(tmp_path: Path) -> None:
    await fill(tmp_path)
    (tmp_path / "commitlog/notes.txt").write_text("x")
    (tmp_path / "commitlog" / f"{1 << 30:020d}").write_bytes(b"short")
    (tmp_path / "commitlog" / f"{1 << 31:020d}").write_bytes(b"")
    (tmp_path / "consumequeue/T0/x").write_text("x")
    (tmp_path / "index/readme").write_text("x")
    (tmp_path / "config/consumerOffset.json").write_text('{"offsetTable":{"T@g":{0:5,1:6}}}')
    (tmp_path / "config/delayOffset.json").write_text('{"offsetTable":')
    (tmp_path / "index.before-repair-20240101-000000").mkdir()
    report = look(tmp_path)
    found = {finding.path.removeprefix(f"{tmp_path}/"): finding.kind for finding in report.findings}
    assert found == {
        "commitlog/notes.txt": "stray file",
        f"commitlog/{1 << 30:020d}": "wrong size",
        "consumequeue/T0/x": "stray file",
        "index/readme": "stray file",
        "config/delayOffset.json": "table: broken",
    }
    assert {note.kind for note in report.notes} == {"empty file", "leftover"}
    assert (tmp_path / "commitlog" / f"{1 << 31:020d}").exists()


@pytest.mark.parametrize("name", ["kerolox.marks", "kerolox.sums"])
async def test_a_directory_in_place_of_a_note_is_refused_as_by_the_start(tmp_path: Path, name: str) -> None:
    await fill(tmp_path)
    (tmp_path / name).unlink()
    (tmp_path / name).mkdir()
    (tmp_path / name / "a file").touch()
    report = look(tmp_path)
    assert [(found.kind, found.path) for found in report.findings] == [("refused", str(tmp_path / name))]
    with pytest.raises(DiskError, match=name):
        await fill(tmp_path)


async def test_findings_do_not_grow_with_the_damage(tmp_path: Path) -> None:
    await fill(tmp_path, 300)
    overwrite(queue_file(tmp_path), 0, bytes(50 * 20))
    overwrite(queue_file(tmp_path, "T1"), 0, SIMPLE.pack(5, 5, 5) * 50)
    report = look(tmp_path)
    assert len(report.findings) < 10


def test_no_store_at_all(tmp_path: Path) -> None:
    with pytest.raises(FileMissing, match="not a directory"):
        find_layout(tmp_path / "nowhere")
    with pytest.raises(FileMissing, match="no commit log"):
        find_layout(tmp_path)


def test_records_of_another_broker(tmp_path: Path) -> None:
    """IPv6 hosts, a long topic, prepared and rolled-back messages: as Apache's broker may have left them."""
    log = tmp_path / "commitlog"
    log.mkdir()
    data = b""
    queue = b""
    for number, (topic, flag, hosts) in enumerate(
        [("%RETRY%" + "g" * 150, 0, 20), ("T", 0x4, 8), ("T", 0xC, 8), ("%RETRY%" + "g" * 150, 0x8, 20)]
    ):
        record = encode_record(
            0, 0, number // 3, len(data), flag, 1, bytes(hosts - 4) + bytes(4), 1, bytes(8), 0, 0, b"x",
            topic_field(topic), b"",
        )  # fmt: skip
        if number in (0, 3):
            queue += SIMPLE.pack(len(data), len(record), 0)
        data += record
    (log / f"{0:020d}").write_bytes(data.ljust(4096, b"\0"))
    path = tmp_path / "consumequeue" / ("%RETRY%" + "g" * 150) / "0"
    path.mkdir(parents=True)
    (path / f"{0:020d}").write_bytes(queue.ljust(1000, b"\0"))
    report = look(tmp_path)
    assert (report.findings, report.records, report.queue_entries) == ([], 4, 2)


async def test_a_record_that_breaks_its_own_crc(tmp_path: Path) -> None:
    """Only stores with enabledAppendPropCRC have it; recovery refuses such a record, so verify must too."""
    options = options_for(tmp_path, record_crc=True)
    async with MessageStore(options, clock=ManualClock()) as store:
        places = [await store.put("T", 0, b"x", pack({"A": "value"})) for _ in range(5)]
    assert verify(find_layout(tmp_path, options), clock=ManualClock()).findings == []
    path = tmp_path / "commitlog" / f"{0:020d}"
    overwrite(path, path.read_bytes().index(b"value", places[2][0]), b"VALUE")
    report = verify(find_layout(tmp_path, options), clock=ManualClock())
    assert [(f.kind, f.offset) for f in report.findings if f.kind == "damaged log"] == [
        ("damaged log", places[2][0])
    ]


async def test_the_store_of_kerolox_up_needs_no_configuration(tmp_path: Path) -> None:
    # Its index files are smaller than a broker's: they were taken for missing.
    slots, entries = int(EMBEDDED["maxHashSlotNum"]), int(EMBEDDED["maxIndexNum"])
    assert (slots, entries) in INDEX_SIZES
    rig = Rig(tmp_path, index_slots=slots, index_entries=entries)
    store = await rig.open()
    await store.put("T", 0, b"1", pack({"UNIQ_KEY": "A" * 32, "KEYS": "k"}))
    await store.close()
    layout = find_layout(tmp_path)
    assert (layout.index_slots, layout.index_entries) == (slots, entries)
    report = verify(layout)
    assert report.findings == []
    assert report.index_entries == 2
