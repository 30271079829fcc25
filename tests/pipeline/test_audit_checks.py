"""The checks of an audit, on stores with one fault each."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kerolox.pipeline.audit.checks import grouped
from kerolox.pipeline.audit.plan import is_users, plan_stores, spans
from kerolox.pipeline.audit.queues import cover
from kerolox.protocol.record import encode_message
from kerolox.store.errors import DiskError
from kerolox.store.offline.layout import find_layout
from kerolox.store.offline.verify import verify
from kerolox.store.queue.entry import HOLE_TAGS, SIMPLE
from tests.pipeline.audit_stores import DONE, HALF, AuditStore
from tests.pipeline.auditing import Examined, problems
from tests.spark.store_maker import overwrite


@pytest.fixture
def store(tmp_path: Path) -> AuditStore:
    made = AuditStore(tmp_path / "store")
    made.fill(400)
    return made


def examine(store: AuditStore, **how: int) -> Examined:
    return Examined(store.write(), store.root.parent / "work", **how)


def test_a_whole_store_has_no_findings(store: AuditStore) -> None:
    store.add("SCHEDULE_TOPIC_XXXX", DELAY="3", REAL_TOPIC="orders", queue_id=2)
    store.add("wide", sys_flag=0x10, TAGS="a")
    store.add("%RETRY%" + "g" * 200, TAGS="long name, two bytes of length")
    store.add("prepared", sys_flag=0x4)  # has no entry, and need not
    store.add("empty", b"")
    examined = examine(store)
    assert problems(examined.findings()) == {}
    assert examined.total("messages") == len(store.messages)
    assert examined.total("bytes") == sum(message.size for message in store.messages)
    assert examined.total("bodies") == len(store.messages) - 1
    assert examined.total("entries") == len(store.messages) - 1
    assert sum(row["messages"] for row in examined.table("volume")) == len(store.messages)


@pytest.mark.parametrize(("block_bytes", "span_bytes"), [(900, 1 << 13), (1 << 20, 1 << 20), (4096, 1 << 30)])
def test_how_a_log_is_cut_makes_no_difference(
    store: AuditStore, tmp_path: Path, block_bytes: int, span_bytes: int
) -> None:
    large = store.add("large", bytes(20_000))  # more than a block
    store.fill(30)
    examined = examine(store, block_bytes=block_bytes, span_bytes=span_bytes)
    assert examined.total("messages") == len(store.messages)
    assert problems(examined.findings()) == {}
    runs = examined.table("runs")
    assert sum(row["last"] - row["first"] for row in runs) == len(store.messages)
    assert [row["first_place"] for row in runs if row["topic"] == "large"] == [large.physical_offset]


def test_a_changed_body_is_found_with_its_file_and_place(store: AuditStore) -> None:
    message = store.messages[321]
    store.write()
    path, at = store.where(message.physical_offset)
    overwrite(path, at + 90, b"!")
    examined = Examined(store.root, store.root.parent / "work")
    ((row,),) = problems(examined.findings()).values()
    assert (row["file"], row["file_offset"], row["physical_offset"]) == (path, at, message.physical_offset)
    assert (row["topic"], row["queue_id"], row["queue_offset"]) == ("orders", 1, 160)
    assert row["msg_id"] == f"{321:032X}"
    assert examined.total("messages") == 400  # the record still counts, and leads to the next


def test_a_record_that_breaks_its_own_checksum_is_found(store: AuditStore) -> None:
    message = store.add("sealed", b"whole", **{"__CRC32#": "0000000000"})
    store.add("after")
    assert encode_message(message).endswith(b"__CRC32#\x010000000000\x02")
    examined = examine(store)
    (fault,) = examined.table("faults")
    assert (fault["kind"], fault["physical_offset"]) == ("record checksum", message.physical_offset)


def test_damage_is_stepped_over_and_what_was_there_is_missing(store: AuditStore) -> None:
    message, after = store.messages[100], store.messages[102]
    store.write()
    path, at = store.where(message.physical_offset)
    overwrite(path, at, b"\xff" * (message.size + 20))
    examined = Examined(store.root, store.root.parent / "work")
    found = problems(examined.findings())
    assert set(found) == {"damaged_log", "queue_gaps"}
    (damage,) = found["damaged_log"]
    assert (damage["file"], damage["file_offset"]) == (path, at)
    assert str(after.physical_offset) in damage["what"]
    # One message of each queue was there; the queues still point at them, which is no finding of its own.
    assert [(row["queue_id"], row["queue_offset"], row["messages"]) for row in found["queue_gaps"]] == [
        (0, 50, 1),
        (1, 50, 1),
    ]
    assert examined.total("messages") == 398


def test_the_first_record_of_a_file_may_be_the_damaged_one(store: AuditStore) -> None:
    first = next(each for each in store.messages if each.physical_offset == store.file_bytes)
    store.write()
    path, at = store.where(first.physical_offset)
    overwrite(path, at + 4, b"\0\0\0\0")
    found = problems(Examined(store.root, store.root.parent / "work").findings())
    assert [(row["file"], row["file_offset"]) for row in found["damaged_log"]] == [(path, 0)]


def test_an_entry_that_points_elsewhere_is_found(store: AuditStore) -> None:
    store.write()
    path = store.queue_file("orders", 0)
    right = [SIMPLE.at(store.queues["orders", 0], at) for at in (5, 6, 7)]
    overwrite(path, 100, SIMPLE.pack(right[0][0] + 1, right[0][1], right[0][2]))
    overwrite(path, 120, SIMPLE.pack(right[1][0], 17, right[1][2]))
    overwrite(path, 140, SIMPLE.pack(right[2][0], right[2][1], 99))
    ((place, size, tag),) = problems(Examined(store.root, store.root.parent / "work").findings()).values()
    for row, at, fault, wanted, found in (
        (place, 100, "wrong place", right[0][0], right[0][0] + 1),
        (size, 120, "wrong size", right[1][1], 17),
        (tag, 140, "wrong tag code", right[2][2], 99),
    ):
        assert (row["file"], row["file_offset"]) == (str(path), at)
        assert (row["fault"], row["expected"], row["found"]) == (fault, wanted, found)
        assert row["queue_offset"] == at // 20


def test_missing_entries_are_found_as_a_range(store: AuditStore) -> None:
    del store.queues["orders", 1][150 * 20 :]
    ((row,),) = problems(examine(store).findings()).values()
    assert (row["topic"], row["queue_id"], row["queue_offset"], row["messages"]) == ("orders", 1, 150, 50)
    assert (row["file"], row["file_offset"]) == (str(store.queue_file("orders", 1)), 3000)
    assert row["physical_offset"] == store.messages[301].physical_offset


def test_messages_without_any_queue_are_found(store: AuditStore) -> None:
    store.queues["orders", 1].clear()
    ((row,),) = problems(examine(store).findings()).values()
    assert (row["queue_id"], row["messages"], row["what"]) == (1, 200, "200 messages have no queue")


def test_in_a_store_that_is_in_use_the_tail_is_left_alone(store: AuditStore) -> None:
    del store.queues["orders", 1][150 * 20 :]
    store.queues["orders", 0] += SIMPLE.pack(len(store.log), 200, 0)  # ahead of the log
    store.write()
    (store.root / "abort").touch()
    assert problems(Examined(store.root, store.root.parent / "work").findings()) == {}


def test_a_gap_in_queue_offsets_is_found(store: AuditStore) -> None:
    store.queues["orders", 0] += SIMPLE.blank * 3
    after = store.add("orders")
    ((row,),) = problems(examine(store).findings()).values()
    assert (row["queue_offset"], row["messages"], row["physical_offset"]) == (200, 3, after.physical_offset)
    assert (row["file"], row["file_offset"]) == store.where(after.physical_offset)
    assert row["what"].startswith("queue offsets 200 to 202 are in no message")


def test_lost_messages_that_a_repair_has_marked_are_only_told(store: AuditStore) -> None:
    store.queues["orders", 0] += SIMPLE.pack(len(store.log), 200, HOLE_TAGS) * 2
    store.add("orders")
    found = examine(store).findings()
    assert problems(found) == {}
    (note,) = found.rows["other"]
    assert (note["note"], note["messages"]) == (True, 2)
    assert "marked" in note["what"]


def test_a_number_given_twice_is_found(store: AuditStore) -> None:
    again = store.add("orders", queue_offset=7)
    del store.queues["orders", 0][-20:]
    found = problems(examine(store).findings())
    (row,) = found["repeated_queue_offsets"]
    assert (row["queue_offset"], row["physical_offset"]) == (7, again.physical_offset)


def test_an_entry_without_a_message_is_found(store: AuditStore) -> None:
    store.queues["orders", 0] += SIMPLE.pack(50, 200, 0)
    store.queues["ghosts", 3] += SIMPLE.pack(60, 200, 0)
    found = problems(examine(store).findings())
    assert [
        (row["topic"], row["queue_offset"], row["points_at"]) for row in found["entries_without_message"]
    ] == [("ghosts", 0, 60), ("orders", 200, 50)]


def test_a_topic_made_anew_counts_from_0_again(store: AuditStore) -> None:
    for key in (("orders", 0), ("orders", 1)):
        store.queues[key].clear()
    store.fill(50)
    found = examine(store).findings()
    assert problems(found) == {}
    assert [(row["queue_id"], row["messages"]) for row in found.rows["other"]] == [(0, 200), (1, 200)]


def test_old_files_may_be_deleted(store: AuditStore) -> None:
    store.write()
    (store.root / "commitlog" / f"{0:020d}").unlink()
    assert problems(Examined(store.root, store.root.parent / "work").findings()) == {}


def test_a_missing_file_between_others_is_found(store: AuditStore) -> None:
    store.fill(400)
    store.write()
    path = store.root / "commitlog" / f"{store.file_bytes:020d}"
    path.unlink()
    found = problems(Examined(store.root, store.root.parent / "work").findings())
    assert [(row["file"], row["file_offset"]) for row in found["damaged_log"]] == [(str(path), 0)]
    assert "queue_gaps" in found


def test_light_queues_are_checked_too(store: AuditStore) -> None:
    for number in range(3):
        message = store.add(
            "orders", INNER_MULTI_DISPATCH="%LMQ%a,%LMQ%b", INNER_MULTI_QUEUE_OFFSET=f"{number},{number}"
        )
        entry = SIMPLE.pack(message.physical_offset, message.size, 0)
        store.queues["%LMQ%a", 0] += entry
        store.queues["%LMQ%b", 0] += entry if number != 1 else SIMPLE.pack(1, 2, 3)
    ((row,),) = problems(examine(store).findings()).values()
    assert (row["topic"], row["queue_offset"], row["fault"]) == ("%LMQ%b", 1, "wrong place")


def test_half_messages_and_what_ended_them_in_both_forms(store: AuditStore) -> None:
    halves = [store.add(HALF, REAL_TOPIC="orders", PGROUP="pay") for _ in range(4)]
    store.add(DONE, b"1", TAGS="d")  # of 4.x
    store.add(DONE, b"0,3,", TAGS="d")  # of 5.x
    committed = store.add("orders", sys_flag=0x8)
    examined = examine(store)
    assert [row["physical_offset"] for row in examined.table("halves")] == [
        each.physical_offset for each in halves
    ]
    assert {row["producer_group"] for row in examined.table("halves")} == {"pay"}
    assert sorted(row["queue_offset"] for row in examined.table("ended_halves")) == [0, 1, 3]
    assert [row["msg_id"] for row in examined.table("commits")] == [committed.unique_key]


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(at=st.floats(0, 0.999), value=st.integers(1, 255), data=st.data())
def test_one_changed_byte_is_judged_as_store_verify_does(
    tmp_path_factory: pytest.TempPathFactory, at: float, value: int, data: st.DataObject
) -> None:
    root = tmp_path_factory.mktemp("flip")
    store = AuditStore(root / "store", file_bytes=1 << 12, queue_entries=50)
    store.fill(30)
    store.write()
    path = data.draw(st.sampled_from(sorted(each for each in store.root.rglob("0*") if each.is_file())))
    content = path.read_bytes()
    place = int(at * len(content))
    overwrite(path, place, bytes([content[place] ^ value]))
    theirs = verify(find_layout(store.root), index=False)
    ours = problems(Examined(store.root, root / "work", block_bytes=700).findings())
    assert bool(ours) == (not theirs.clean), (path, place, theirs.findings, ours)


@pytest.mark.parametrize("what", ["queue offset", "topic", "topic of another directory"])
def test_damaged_messages_may_claim_anything(tmp_path: Path, what: str) -> None:
    store = AuditStore(tmp_path / "store", file_bytes=1 << 12, queue_entries=50)
    store.fill(30)
    store.write()
    log = sorted(each for each in (store.root / "commitlog").iterdir() if each.is_file())[1]
    topic_at = log.read_bytes().index(b"orders")
    at, value = {
        "queue offset": (20, b"\x52"),  # about 2 ** 62: not all of them can be looked at
        "topic": (topic_at, b"\0"),
        "topic of another directory": (topic_at, b"../or/"),
    }[what]
    overwrite(log, at, value)
    assert not verify(find_layout(store.root), index=False).clean
    assert problems(Examined(store.root, tmp_path / "work", block_bytes=700).findings())


# --- small parts -----------------------------------------------------------------------------------------


def test_runs_laid_side_by_side() -> None:
    found = cover([(10, 20, 500, 600), (0, 10, 0, 400), (25, 30, 700, 800), (27, 32, 900, 950)])
    assert found.ranges == ((0, 20), (25, 32))
    assert [tuple(gap) for gap in found.gaps] == [(20, 25, 700)]
    assert [tuple(gap) for gap in found.taken] == [(27, 30, 900)]
    anew = cover([(5, 10, 0, 1), (12, 13, 2, 3), (0, 4, 10, 11)])
    assert (anew.ranges, anew.gaps, anew.begin_place, anew.replaced) == (((0, 4),), (), 10, 6)


@pytest.mark.parametrize("far", [0, 1 << 61])
def test_rows_are_grouped_by_numbers(far: int) -> None:
    keys = (np.array([1, 1, 2, 1]), np.array([-5, -5, far, 7]))
    columns, (count, total) = grouped(keys, (np.array([10, 20, 30, 40]),))
    rows = {tuple(map(int, row)) for row in zip(*columns, count, total, strict=True)}
    assert rows == {(1, -5, 2, 30), (1, 7, 1, 40), (2, far, 1, 30)}


def test_spans_cover_the_log_and_begin_with_records(store: AuditStore) -> None:
    (plan,) = plan_stores([store.write()])
    found = spans(plan, 10_000)
    assert (found[0].start, found[-1].end) == (0, plan.log.end)
    assert all(before.end == after.start for before, after in pairwise(found))
    starts = {message.physical_offset for message in store.messages}
    assert {span.start for span in found} <= starts


def test_times_choose_a_part_of_the_log(store: AuditStore) -> None:
    store.write()
    since, until = store.messages[50].store_timestamp, store.messages[333].store_timestamp
    (plan,) = plan_stores([store.root], since_ms=since, until_ms=until)
    assert (plan.low, plan.high) == (store.messages[50].physical_offset, store.messages[333].physical_offset)
    (nothing,) = plan_stores([store.root], since_ms=store.now_ms + 1)
    assert spans(nothing) == []


@pytest.mark.parametrize("name", ["topics.json", "consumerOffset.json"])
def test_a_table_that_cannot_be_read_is_not_a_missing_one(store: AuditStore, name: str) -> None:
    store.write()
    table = store.root / "config" / name
    table.unlink(missing_ok=True)
    plan_stores([store.root])
    table.mkdir(parents=True)
    with pytest.raises(DiskError, match=name):
        plan_stores([store.root])


def test_what_belongs_to_users() -> None:
    assert all(map(is_users, ("orders", "BenchmarkTest")))
    assert not any(
        map(
            is_users,
            ("%RETRY%g", "%DLQ%g", "rmq_sys_wheel_timer", HALF, DONE, "SCHEDULE_TOPIC_XXXX", "c_REPLY_TOPIC"),
        )
    )


# --- fields in the head of a record, which no checksum covers -----------------------------------------------


@pytest.mark.parametrize("claimed", [-1, 0, 3, 100_000])
def test_a_damaged_queue_offset_is_no_second_broker(store: AuditStore, claimed: int) -> None:
    message = store.messages[201]  # number 100 of queue 1
    store.write()
    path, at = store.where(message.physical_offset)
    overwrite(path, at + 20, claimed.to_bytes(8, "big", signed=True))
    found = problems(Examined(store.root, store.root.parent / "work").findings())
    assert set(found) == {"damaged_fields"}
    (row,) = found["damaged_fields"]
    assert (row["file"], row["file_offset"], row["topic"], row["queue_id"]) == (path, at, "orders", 1)
    assert row["what"].startswith(f"the record has the queue offset {claimed}")


@pytest.mark.parametrize("born_ms", [0, -5, 1 << 40 | 1 << 62, 1_000_000_000])
def test_a_damaged_born_time_is_no_latency(store: AuditStore, born_ms: int) -> None:
    message = store.messages[201]
    store.write()
    path, at = store.where(message.physical_offset)
    overwrite(path, at + 40, born_ms.to_bytes(8, "big", signed=True))
    examined = Examined(store.root, store.root.parent / "work")
    found = problems(examined.findings())
    assert set(found) == {"damaged_fields"}
    (row,) = found["damaged_fields"]
    assert (row["physical_offset"], row["msg_id"]) == (message.physical_offset, f"{201:032X}")
    assert row["what"].startswith(f"the born time in its head is {born_ms}, and it was stored at ")
    assert all(abs(row["latency_ms"]) < 366 * 86_400_000 for row in examined.table("latency"))
    assert sum(row["messages"] for row in examined.table("latency")) == 399


@pytest.mark.parametrize("stored_ms", [0, -1, 1 << 61])
def test_a_damaged_store_time_is_on_no_chart(store: AuditStore, stored_ms: int) -> None:
    message = store.messages[201]
    store.write()
    path, at = store.where(message.physical_offset)
    overwrite(path, at + 56, stored_ms.to_bytes(8, "big", signed=True))
    examined = Examined(store.root, store.root.parent / "work")
    found = problems(examined.findings())
    assert [row["what"] for row in found["damaged_fields"]] == [f"the store time in its head is {stored_ms}"]
    minutes = {row["minute"] for row in examined.table("volume")}
    assert max(minutes) - min(minutes) < 1 << 20
    assert examined.total("went_back") == 0


@pytest.mark.parametrize(("at_byte", "field"), [(12, "queue"), (72, "attempts")])
def test_numbers_below_zero_are_damage(store: AuditStore, at_byte: int, field: str) -> None:
    message = store.messages[201]
    store.write()
    path, at = store.where(message.physical_offset)
    overwrite(path, at + at_byte, (-7).to_bytes(4, "big", signed=True))
    found = problems(Examined(store.root, store.root.parent / "work").findings())
    assert [row["what"] for row in found["damaged_fields"]] == [f"the {field} in its head is -7"]
    assert "repeated_queue_offsets" not in found


def test_numbers_given_twice_advise_nothing_that_destroys(store: AuditStore) -> None:
    from kerolox.pipeline.audit import finding_kinds

    assert "keep one" not in finding_kinds.TAKEN.next
    assert "copy the store before" in finding_kinds.TAKEN.next


def test_the_folder_of_kerolox_up_is_audited(store: AuditStore) -> None:
    """It has the store below it, beside other things."""
    store.write()
    folder = store.root.parent / "up"
    (folder / "logs").mkdir(parents=True)
    store.root.rename(folder / "store")
    (plan,) = plan_stores([str(folder)])
    assert plan.root == str(folder / "store")


def test_advice_names_no_option_that_audit_has_not(tmp_path: Path) -> None:
    from kerolox.store.errors import FileMissing

    with pytest.raises(FileMissing) as refused:
        plan_stores([str(tmp_path)])
    assert "(-c)" not in str(refused.value)
    assert "kerolox store verify" in str(refused.value)
