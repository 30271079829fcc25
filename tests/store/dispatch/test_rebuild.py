"""Rebuilding queues and index, stepping over damage, cutting off: and what consumers get afterwards."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest

from kerolox.protocol.properties import pack
from kerolox.protocol.record import decode_records
from kerolox.protocol.record_scan import CHECK_BODY, Stop, scan
from kerolox.store.disk.files import Files
from kerolox.store.message_store import MessageStore
from kerolox.store.offline.layout import Layout, find_layout
from kerolox.store.offline.mend import (
    FILLER_BYTES_MAX,
    CannotMend,
    apply_cut,
    apply_skip,
    fillers,
    plan_cut,
    plan_skip,
)
from kerolox.store.offline.verify import verify
from kerolox.store.options import StoreOptions
from kerolox.store.queue.entry import HOLE_TAGS, SIMPLE
from kerolox.store.rebuild import DamagedLog, rebuild
from kerolox.store.recovery import CorruptLog
from kerolox.testing.clock import ManualClock

LOG_FILE = 8192
PER_FILE = 50
Places = list[tuple[int, int, int]]


def options(path: Path, **changes: object) -> StoreOptions:
    values: dict[str, object] = {
        "store_path": str(path),
        "commit_log_file_bytes": LOG_FILE,
        "queue_file_bytes": 20 * PER_FILE,
        "index_slots": 100,
        "index_entries": 1000,
        "disk_free_enough": 64 << 20,
    }
    return StoreOptions(**(values | changes))  # type: ignore[arg-type]


def layout_of(path: Path) -> Layout:
    return find_layout(path, options(path))


async def fill(path: Path, count: int, *, topics: int = 2, body: int = 40) -> Places:
    """Messages to the queues of a few topics in turn, closed cleanly; where they lie."""
    clock = ManualClock()
    places: Places = []
    async with MessageStore(options(path), clock=clock) as store:
        first = store.queues.max_offset("T0", 0) * topics
        for number in range(first, first + count):
            properties = pack({"TAGS": f"t{number % 3}", "KEYS": f"k{number}"})
            text = f"m{number}-".encode().ljust(body, b".")
            places.append(await store.put(f"T{number % topics}", 0, text, properties))
            clock.step_wall(1000)
    return places


async def consume(store: MessageStore, topic: str, offset: int = 0) -> list[str]:
    """All messages of a queue, as a consumer that follows the offsets it is told."""
    got: list[str] = []
    while offset < store.queues.max_offset(topic, 0):
        read = await store.queues.read(topic, 0, offset)
        assert read.next_offset > offset
        offset = read.next_offset
        messages = decode_records(b"".join(read.parts))
        got += [message.body.split(b"-")[0].decode() for message in messages]
    return got


async def open_and_consume(path: Path, *topics: str) -> list[list[str]]:
    async with MessageStore(options(path), clock=ManualClock()) as store:
        return [await consume(store, topic) for topic in topics]


async def all_of(path: Path) -> list[str]:
    first, second = await open_and_consume(path, "T0", "T1")
    return first + second


def found(path: Path, pattern: str) -> list[Path]:
    return sorted(path.glob(pattern))


def damage(path: Path, offset: int, data: bytes) -> None:
    data = data[: LOG_FILE - offset % LOG_FILE]
    with open(path / "commitlog" / f"{offset - offset % LOG_FILE:020d}", "r+b") as file:
        file.seek(offset % LOG_FILE)
        file.write(data)


def bodies(numbers: range | list[int]) -> list[str]:
    return [f"m{number}" for number in numbers]


# Rebuilding


async def test_rebuilt_files_are_the_same(tmp_path: Path) -> None:
    await fill(tmp_path, 300)
    made = rebuild(layout_of(tmp_path))
    assert (made.records, made.queues, made.holes) == (300, 2, 0)
    old = found(tmp_path, "consumequeue.before-repair-*")[0]
    for path in old.rglob("0*"):
        if path.is_file():
            assert path.read_bytes() == (tmp_path / "consumequeue" / path.relative_to(old)).read_bytes()
    old_index = found(tmp_path, "index.before-repair-*/*")[0].read_bytes()
    assert [path.read_bytes() for path in (tmp_path / "index").iterdir()] == [old_index]
    assert verify(layout_of(tmp_path)).findings == []
    assert await open_and_consume(tmp_path, "T0") == [bodies(range(0, 300, 2))]


async def test_rebuilt_from_nothing_but_the_log(tmp_path: Path) -> None:
    await fill(tmp_path, 100)
    for name in ("consumequeue", "index"):
        shutil.rmtree(tmp_path / name)
    (tmp_path / "kerolox.marks").unlink()
    rebuild(layout_of(tmp_path))
    assert verify(layout_of(tmp_path)).findings == []
    async with MessageStore(options(tmp_path), clock=ManualClock()) as store:
        assert store.recovered is not None
        assert len(await store.find_by_key("T1", "k51")) == 1


async def test_only_what_is_asked_for_is_rebuilt(tmp_path: Path) -> None:
    await fill(tmp_path, 20)
    rebuild(layout_of(tmp_path), index=False)
    assert not found(tmp_path, "index.*")
    rebuild(layout_of(tmp_path), queues=False)
    assert len(found(tmp_path, "consumequeue.*")) == 1
    assert verify(layout_of(tmp_path)).findings == []


async def test_an_interrupted_rebuild_changes_nothing_and_is_repeated(tmp_path: Path) -> None:
    await fill(tmp_path, 60)

    class Stopped(Exception):
        pass

    def stop(done: int, total: int) -> None:
        raise Stopped

    with pytest.raises(Stopped):
        rebuild(layout_of(tmp_path), progress=stop)
    assert not found(tmp_path, "*.before-repair-*")
    assert verify(layout_of(tmp_path)).findings == []
    (tmp_path / "consumequeue.repairing" / "Rest" / "0").mkdir(parents=True)
    rebuild(layout_of(tmp_path))
    assert not found(tmp_path, "*.repairing")
    assert not (tmp_path / "consumequeue" / "Rest").exists()


async def test_between_the_two_renames_the_store_still_opens(tmp_path: Path) -> None:
    await fill(tmp_path, 60)

    class Dies(Files):
        def rename(self, source: object, target: object) -> None:
            if str(source).endswith(".repairing"):
                raise KeyboardInterrupt
            super().rename(source, target)  # type: ignore[arg-type]

    with pytest.raises(KeyboardInterrupt):
        rebuild(layout_of(tmp_path), files=Dies())
    assert not (tmp_path / "consumequeue").exists()
    assert await open_and_consume(tmp_path, "T0", "T1") == [bodies(range(0, 60, 2)), bodies(range(1, 60, 2))]


async def test_a_queue_without_messages_keeps_counting(tmp_path: Path) -> None:
    """All its messages were deleted with their log files: the next one must not get number 0 again."""
    await fill(tmp_path, 10, topics=1)
    async with MessageStore(options(tmp_path), clock=ManualClock()) as store:
        for _ in range(300):
            await store.put("Busy", 0, b"x" * 100)
        store.segments.delete_before(store.segments.all[-1].start)
        store.consume_queues.delete_before(store.log.min_offset)
    made = rebuild(layout_of(tmp_path))
    assert made.kept_queues == 1
    async with MessageStore(options(tmp_path), clock=ManualClock()) as store:
        assert (store.queues.min_offset("T0", 0), store.queues.max_offset("T0", 0)) == (10, 10)
        assert (await store.put("T0", 0, b"next"))[1] == 10
        assert await consume(store, "T0", 10) == ["next"]


async def test_deleted_topics_stay_deleted_and_new_ones_of_the_name_begin_anew(tmp_path: Path) -> None:
    async with MessageStore(options(tmp_path), clock=ManualClock()) as store:
        for number in range(20):
            await store.put("Gone", 0, b"old")
            await store.put("Again", 0, b"old%d-" % number)
        await store.delete_topic("Gone")
        await store.delete_topic("Again")
        for number in range(5):
            await store.put("Again", 0, b"new%d-" % number)
    (tmp_path / "config").mkdir(exist_ok=True)
    topics = {"topicConfigTable": {"Again": {"topicName": "Again"}}}
    (tmp_path / "config/topics.json").write_text(json.dumps(topics))
    report = verify(layout_of(tmp_path))
    assert report.findings == []
    assert len([note for note in report.notes if note.kind in ("deleted topic", "no queue")]) == 2
    made = rebuild(layout_of(tmp_path))
    assert (made.restarted, made.left_out) == (0, 40)
    assert not (tmp_path / "consumequeue/Gone").exists()
    assert await open_and_consume(tmp_path, "Again") == [[f"new{number}" for number in range(5)]]


# Stepping over damage


async def test_the_refusal_to_start_names_commands_that_work(tmp_path: Path) -> None:
    places = await fill(tmp_path, 200)
    offset = places[90][0]
    damage(tmp_path, offset + 100, b"\xff" * 600)  # the body of one, and some behind it
    shutil.rmtree(tmp_path / "consumequeue")
    with pytest.raises(CorruptLog) as refused:
        await open_and_consume(tmp_path, "T0")
    assert f"repair {tmp_path} --skip {offset} " in str(refused.value)
    with pytest.raises(DamagedLog, match=f"--skip {offset} .* --cut {offset} "):
        rebuild(layout_of(tmp_path))
    assert [
        finding.offset for finding in verify(layout_of(tmp_path), queues=False, index=False).findings
    ] == [offset]
    plan = plan_skip(layout_of(tmp_path), offset)
    assert plan.valid_from == refused.value.valid_from
    before = read_log(tmp_path, offset, plan.lost_bytes)
    assert apply_skip(layout_of(tmp_path), plan) == str(tmp_path / f"damaged-{offset}.bin")
    assert (tmp_path / f"damaged-{offset}.bin").read_bytes() == before
    lost = [n for n, place in enumerate(places) if offset <= place[0] < plan.valid_from]
    assert len(lost) >= 3
    made = rebuild(layout_of(tmp_path))
    assert made.holes == len(lost)
    assert verify(layout_of(tmp_path)).findings == []
    kept = [n for n in range(200) if n not in lost]
    assert await open_and_consume(tmp_path, "T0", "T1") == [
        bodies([n for n in kept if n % 2 == 0]),
        bodies([n for n in kept if n % 2]),
    ]


def read_log(path: Path, offset: int, size: int) -> bytes:
    data = (path / "commitlog" / f"{offset - offset % LOG_FILE:020d}").read_bytes()
    return data[offset % LOG_FILE :][:size]


async def test_a_second_skip_says_it_is_done_and_a_wrong_offset_is_refused(tmp_path: Path) -> None:
    places = await fill(tmp_path, 40)
    offset = places[10][0]
    damage(tmp_path, offset + 90, b"\xff")
    with pytest.raises(CannotMend, match=f"damaged at {offset} "):
        plan_skip(layout_of(tmp_path), places[12][0])
    with pytest.raises(CannotMend, match="no damage at"):
        plan_skip(layout_of(tmp_path), places[5][0])
    apply_skip(layout_of(tmp_path), plan_skip(layout_of(tmp_path), offset))
    assert plan_skip(layout_of(tmp_path), offset).pieces == []


async def test_a_skip_interrupted_before_its_last_write_is_repeated(tmp_path: Path) -> None:
    places = await fill(tmp_path, 3, topics=1, body=2000)
    offset = places[1][0]
    damage(tmp_path, offset + 4, b"\0\0\0\0")
    plan = plan_skip(layout_of(tmp_path), offset)
    whole = plan.pieces[0]
    tail = fillers(offset, plan.lost_bytes - 500, 1)[0]
    # As if several records had been planned and all but the first written.
    later = fillers(offset + 500, plan.lost_bytes - 500, 1)
    damage(tmp_path, offset + 500, b"".join(later))
    again = plan_skip(layout_of(tmp_path), offset)
    assert again.valid_from == offset + 500
    apply_skip(layout_of(tmp_path), again)
    assert len(tail) == plan.lost_bytes - 500
    assert whole.end - whole.at == plan.lost_bytes
    rebuild(layout_of(tmp_path))
    assert await open_and_consume(tmp_path, "T0") == [bodies([0, 2])]


async def test_damage_to_the_end_of_a_file_becomes_a_blank_record(tmp_path: Path) -> None:
    places = await fill(tmp_path, 100)
    last = max(n for n, place in enumerate(places) if place[0] < LOG_FILE)
    offset = places[last - 1][0]
    damage(tmp_path, offset, b"\xee" * (LOG_FILE - offset))
    apply_skip(layout_of(tmp_path), plan_skip(layout_of(tmp_path), offset))
    assert rebuild(layout_of(tmp_path)).holes == 2
    kept = [n for n in range(100) if n not in (last - 1, last)]
    assert sorted(await all_of(tmp_path)) == sorted(bodies(kept))


async def test_a_missing_log_file_is_stepped_over(tmp_path: Path) -> None:
    places = await fill(tmp_path, 200)
    (tmp_path / "commitlog" / f"{LOG_FILE:020d}").unlink()
    report = verify(layout_of(tmp_path))
    assert [finding.offset for finding in report.findings if finding.kind == "damaged log"] == [LOG_FILE]
    apply_skip(layout_of(tmp_path), plan_skip(layout_of(tmp_path), LOG_FILE))
    rebuild(layout_of(tmp_path))
    kept = [n for n, place in enumerate(places) if not LOG_FILE <= place[0] < 2 * LOG_FILE]
    assert sorted(await all_of(tmp_path)) == sorted(bodies(kept))


async def test_damage_too_small_for_a_record_is_refused_with_the_other_way(tmp_path: Path) -> None:
    places = await fill(tmp_path, 40, body=100)
    offset = places[10][0]
    damage(tmp_path, offset, fillers(offset, 174, 1)[0][:50] + b"\xee" * 41)
    plan = plan_skip(layout_of(tmp_path), offset)
    assert plan.lost_bytes == places[10][2]
    # A whole record right behind a few bad bytes cannot come from a crash, but from somebody's editing.
    small = fillers(offset + 60, places[10][2] - 60, 1)[0]
    damage(tmp_path, offset, b"\xee" * 60 + small)
    with pytest.raises(CannotMend, match=f"only 60 bytes .*--cut {offset}"):
        plan_skip(layout_of(tmp_path), offset)


async def test_lost_messages_at_the_ends_of_a_queue(tmp_path: Path) -> None:
    """At the beginning and the end of a queue, and over the end of queue files and pages."""
    places = await fill(tmp_path, 600)
    first, last = places[0][0], places[-130][0]
    damage(tmp_path, first + 20, b"\xff" * 900)
    plan = plan_skip(layout_of(tmp_path), first)
    apply_skip(layout_of(tmp_path), plan)
    damage(tmp_path, last + 30, b"\xff" * 3000)
    plan_2 = plan_skip(layout_of(tmp_path), last)
    apply_skip(layout_of(tmp_path), plan_2)
    rebuild(layout_of(tmp_path))
    lost = [
        n
        for n, place in enumerate(places)
        if place[0] < plan.valid_from or last <= place[0] < plan_2.valid_from
    ]
    kept = [n for n in range(600) if n not in lost]
    for _ in range(2):  # also after recovery has looked at the queues
        assert sorted(await all_of(tmp_path)) == sorted(bodies(kept))
    assert verify(layout_of(tmp_path)).findings == []
    # Numbers go on where they were.
    async with MessageStore(options(tmp_path), clock=ManualClock()) as store:
        assert store.queues.max_offset("T0", 0) == 300
        assert (await store.put("T0", 0, b"x"))[1] == 300


async def test_a_queue_whose_last_messages_are_lost_gives_no_number_twice(tmp_path: Path) -> None:
    places = await fill(tmp_path, 20, topics=1)
    async with MessageStore(options(tmp_path), clock=ManualClock()) as store:
        other = await store.put("Other", 0, b"o")
    offset = places[15][0]
    damage(tmp_path, offset + 10, b"\xff" * (other[0] - offset - 20))
    apply_skip(layout_of(tmp_path), plan_skip(layout_of(tmp_path), offset))
    assert rebuild(layout_of(tmp_path)).holes == 5
    async with MessageStore(options(tmp_path), clock=ManualClock()) as store:
        assert await consume(store, "T0") == bodies(range(15))
        assert (await store.put("T0", 0, b"n20-"))[1] == 20
        assert await consume(store, "T0", 15) == ["n20"]


async def test_an_entry_for_a_lost_message_points_at_the_next_one(tmp_path: Path) -> None:
    """So the places in a queue never go back: both brokers search them by halves."""
    places = await fill(tmp_path, 10, topics=1)
    damage(tmp_path, places[4][0] + 95, b"\xff" * 200)
    apply_skip(layout_of(tmp_path), plan_skip(layout_of(tmp_path), places[4][0]))
    rebuild(layout_of(tmp_path))
    data = (tmp_path / "consumequeue/T0/0" / f"{0:020d}").read_bytes()[:200]
    entries = list(SIMPLE.each(data))
    holes = [n for n, entry in enumerate(entries) if entry[2] == HOLE_TAGS]
    assert holes
    after = entries[holes[-1] + 1]
    assert all(entries[n][:2] == after[:2] for n in holes)
    assert [entry[0] for entry in entries] == sorted(entry[0] for entry in entries)
    # Who asks for tags does not get them: no tag has such a hash.
    assert HOLE_TAGS > 0x7FFF_FFFF


def test_fillers_fill_any_span_exactly() -> None:
    for span in (92, 93, 107, 108, 5000, FILLER_BYTES_MAX, FILLER_BYTES_MAX + 1, 3 * FILLER_BYTES_MAX - 5):
        data = b"".join(fillers(4096, span, 1_700_000_000_000))
        assert len(data) == span
        walked = scan(data, check=CHECK_BODY)
        assert (walked.stop, walked.position) == (Stop.END, span)
        place = 4096
        for entry in walked.entries:
            assert entry[4] == place
            assert entry[5] == 0xC
            place += entry[0]


# Cutting off


async def test_cut_drops_what_follows_and_puts_it_aside(tmp_path: Path) -> None:
    places = await fill(tmp_path, 200)
    offset = places[90][0]
    plan = plan_cut(layout_of(tmp_path), offset)
    assert plan is not None
    assert plan.records == 110
    assert len(plan.later_files) == len(list((tmp_path / "commitlog").iterdir())) - 1 - offset // LOG_FILE
    put = apply_cut(layout_of(tmp_path), plan, clock=ManualClock())
    assert [os.path.basename(path).split(".before")[0] for path in put] == [
        "commitlog",
        f"damaged-{offset}.bin",
    ]
    rebuild(layout_of(tmp_path))
    assert verify(layout_of(tmp_path)).findings == []
    assert plan_cut(layout_of(tmp_path), offset) is None
    assert await open_and_consume(tmp_path, "T0", "T1") == [bodies(range(0, 90, 2)), bodies(range(1, 90, 2))]


async def test_cut_only_between_records(tmp_path: Path) -> None:
    places = await fill(tmp_path, 40)
    low, _, size = places[20]
    with pytest.raises(CannotMend, match=f"from {low} to {low + size}"):
        plan_cut(layout_of(tmp_path), low + 1)
    with pytest.raises(CannotMend, match="not inside the log"):
        plan_cut(layout_of(tmp_path), 1 << 40)


async def test_cut_at_damage(tmp_path: Path) -> None:
    places = await fill(tmp_path, 40)
    offset = places[20][0]
    damage(tmp_path, offset + 5, b"\xff" * 30)
    plan = plan_cut(layout_of(tmp_path), offset)
    assert plan is not None
    assert plan.records == 19
    apply_cut(layout_of(tmp_path), plan)
    rebuild(layout_of(tmp_path))
    assert sorted(await all_of(tmp_path)) == sorted(bodies(range(20)))
