"""The forms of half and op messages, and what becomes of a half message when a round comes by."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.broker.transactions import half_messages
from kerolox.broker.transactions import recent_half_messages as fresh_module
from kerolox.broker.transactions.counts import Counts
from kerolox.broker.transactions.finished_half_messages import op_bodies, read_op
from kerolox.broker.transactions.half_messages import Fate, Open
from kerolox.broker.transactions.recent_half_messages import RecentHalfMessages
from kerolox.broker.write.intake import Intake
from kerolox.broker.write.pending_message import PendingMessage
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.properties import pack, unpack
from kerolox.store.disk.files import Files
from kerolox.store.message_store import MessageStore
from kerolox.store.state import Obstacle
from kerolox.store.tables.transaction_counts import TransactionCounts
from kerolox.testing.clock import ManualClock
from tests.store.dispatch.kit import rig_at
from tests.store.test_flush import append

HOST = bytes([127, 0, 0, 1, 0, 0, 0x2A, 0x9F])
NOW_MS = 1_700_000_000_000
GROUP = "payers"


def op(body: bytes, tag: str = "d") -> StoredMessage:
    return StoredMessage("RMQ_SYS_TRANS_OP_HALF_TOPIC", body, 0, 0, 0, pack({"TAGS": tag}))


def half(age_ms: int = 10_000, stored_ms: int = NOW_MS - 10_000, **properties: str) -> StoredMessage:
    return StoredMessage(
        "RMQ_SYS_TRANS_HALF_TOPIC", b"x", 0, 5, 500, pack(properties),
        born_timestamp=NOW_MS - age_ms, store_timestamp=stored_ms,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("body", "offsets"),
    [
        (b"42", [42]),  # 4.x
        (b"42,43,57,", [42, 43, 57]),  # 5.x
        (b"", []),
        (b",,7,", [7]),
        (b"x,1,-3,99999999999999999999,2", [1, 2]),
    ],
)
def test_op_messages_of_both_lines_are_read(body: bytes, offsets: list[int]) -> None:
    assert read_op(op(body)) == offsets
    assert read_op(op(body, tag="e")) == []


@given(st.binary())
def test_any_op_body_is_survived(body: bytes) -> None:
    assert all(offset >= 0 for offset in read_op(op(body)))


@given(st.lists(st.integers(0, 1 << 62), unique=True), st.integers(32, 200))
def test_op_bodies_hold_all_offsets_and_stay_short(offsets: list[int], bytes_max: int) -> None:
    bodies = op_bodies(offsets, bytes_max)
    assert [each for body, _ in bodies for each in read_op(op(body))] == offsets
    assert all(len(body) <= bytes_max for body, _ in bodies)
    assert all(highest == max(read_op(op(body))) for body, highest in bodies)


def judged(message: StoredMessage, *, checks_max: int = 15, keep_ms: int = 72 * 3_600_000) -> Fate:
    return half_messages.judge(
        message, round_ms=NOW_MS, now_ms=NOW_MS, usual_ms=6000, checks_max=checks_max, keep_ms=keep_ms
    )


def test_fates() -> None:
    assert judged(half(6001)) is Fate.CHECK
    assert judged(half(6000)) is Fate.WAIT
    assert judged(half(0)) is Fate.WAIT
    assert judged(half(-1)) is Fate.CHECK  # from the future
    assert judged(half(stored_ms=NOW_MS)) is Fate.WAIT  # copies made in this very round
    assert judged(half(TRANSACTION_CHECK_TIMES="14")) is Fate.CHECK
    assert judged(half(TRANSACTION_CHECK_TIMES="15")) is Fate.GIVE_UP
    assert judged(half(TRANSACTION_CHECK_TIMES="many")) is Fate.CHECK
    assert judged(half(1001), keep_ms=1000) is Fate.GIVE_UP
    immunity = {"CHECK_IMMUNITY_TIME_IN_SECONDS": "100"}
    assert judged(half(100_000, **immunity)) is Fate.PUT_OFF
    assert judged(half(100_001, **immunity)) is Fate.CHECK
    assert judged(half(-5, **immunity)) is Fate.PUT_OFF
    for unreadable in ("-1", "soon"):
        assert judged(half(6000, CHECK_IMMUNITY_TIME_IN_SECONDS=unreadable)) is Fate.PUT_OFF
        assert judged(half(6001, CHECK_IMMUNITY_TIME_IN_SECONDS=unreadable)) is Fate.CHECK
    assert judged(half(1, CHECK_IMMUNITY_TIME_IN_SECONDS="0")) is Fate.CHECK


def test_an_immunity_is_at_least_the_usual_one_for_its_producer() -> None:
    for wish, limit_ms in (("10", 10_000), ("1", 6000), ("soon", 6000), ("-1", 6000)):
        properties = {"CHECK_IMMUNITY_TIME_IN_SECONDS": wish}
        assert not half_messages.opened(half(limit_ms, **properties)).is_too_late(NOW_MS, 6000)
        assert half_messages.opened(half(limit_ms + 1, **properties)).is_too_late(NOW_MS, 6000)
    assert not half_messages.opened(half(10**9)).is_too_late(NOW_MS, 6000)


def test_a_copy_counts_and_remembers() -> None:
    first = half_messages.checked(half(a="b"))
    assert unpack(first.properties) == {"a": "b", "TRANSACTION_CHECK_TIMES": "1"}
    assert unpack(half_messages.checked(half(TRANSACTION_CHECK_TIMES="4")).properties) == {
        "TRANSACTION_CHECK_TIMES": "5"
    }
    assert unpack(half_messages.put_off(half()).properties) == {"TRAN_PREPARED_QUEUE_OFFSET": "5"}
    again = half_messages.put_off(half(TRAN_PREPARED_QUEUE_OFFSET="2"))
    assert unpack(again.properties) == {"TRAN_PREPARED_QUEUE_OFFSET": "2"}
    assert unpack(half_messages.resumed(half(TRANSACTION_CHECK_TIMES="15")).properties) == {
        "TRANSACTION_CHECK_TIMES": "0"
    }


def test_a_half_message_that_is_sent_again_says_anew_where_it_belongs() -> None:
    properties = pack({"REAL_TOPIC": "elsewhere", "REAL_QID": "9", "UNIQ_KEY": "U"})
    pending = PendingMessage("t", 1, b"x", properties, NOW_MS, HOST, sys_flag=4 | 1)
    half_messages.park(pending)
    assert unpack(pending.properties) == {
        "REAL_TOPIC": "t", "REAL_QID": "1", "UNIQ_KEY": "U", "__transactionId__": "U"
    }  # fmt: skip
    assert (pending.topic, pending.queue_id, pending.sys_flag) == ("RMQ_SYS_TRANS_HALF_TOPIC", 0, 1)


_WORDS = st.text("ab\x01=", max_size=4)
_NAMES = st.sampled_from(
    [
        "a",
        "UNIQ_KEY",
        "PGROUP",
        "REAL_TOPIC",
        "REAL_QID",
        "__transactionId__",
        "CHECK_IMMUNITY_TIME_IN_SECONDS",
    ]
)


@given(st.lists(st.tuples(_NAMES, _WORDS), max_size=6), st.booleans(), st.integers(0, 15), st.integers(0, 99))
def test_what_is_remembered_of_a_half_message_is_what_it_says(
    own: list[tuple[str, str]], ends: bool, sys_flag: int, queue_id: int
) -> None:
    properties = "".join(f"{name}\x01{value}\x02" for name, value in own).encode()
    if not ends:
        properties = properties.removesuffix(b"\x02")
    pending = PendingMessage("t", queue_id, b"body", properties, NOW_MS, HOST, 7, sys_flag, 3)
    home = half_messages.park(pending)
    stored = StoredMessage(
        pending.topic, pending.body, pending.queue_id, 5, 500, pending.properties, flag=7,
        sys_flag=pending.sys_flag, born_timestamp=NOW_MS, born_host=HOST, store_host=HOST, reconsume_times=3,
    )  # fmt: skip
    read = half_messages.opened(stored)
    known = half_messages.just_parked(pending, home, (500, 5, 200))
    assert known.pending is not None
    known.pending.store_host = HOST  # this broker's own, if nothing is said
    assert known == read


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[MessageStore]:
    async with rig_at(tmp_path, commit_log_file_bytes=1 << 20) as rig:
        yield await rig.open()


def fresh(store: MessageStore, tmp_path: Path) -> tuple[RecentHalfMessages, Intake, Counts]:
    intake = Intake(store.log, store.acks)
    counts = Counts(TransactionCounts(Files(), tmp_path, clock=ManualClock(NOW_MS)))
    return RecentHalfMessages(intake, counts), intake, counts


def remembered(place: int) -> Open:
    return Open("t", place, place, GROUP, NOW_MS, None, None)


async def test_only_what_was_written_is_remembered(store: MessageStore, tmp_path: Path) -> None:
    halves, intake, counts = fresh(store, tmp_path)
    append(store, b"one")
    halves.add("t", remembered(1), 100)
    assert halves.find(1) is None
    intake.write()
    assert halves.find(1) == remembered(1)
    append(store, b"two")
    halves.add("t", remembered(2), 100)
    store.state.set(Obstacle.DISK_FULL, "no room")
    intake.write()
    store.state.clear(Obstacle.DISK_FULL)
    append(store, b"three")
    halves.add("t", None, 100)
    intake.write()
    assert halves.find(2) is None
    assert counts.table.counts["t"].count == 2
    halves.forget(1)
    assert halves.find(1) is None


@pytest.mark.parametrize("bound", ["COUNT_MAX", "BYTES_MAX"])
async def test_the_oldest_are_forgotten(
    store: MessageStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bound: str
) -> None:
    monkeypatch.setattr(fresh_module, bound, 3 if bound == "COUNT_MAX" else 3 * 1100)
    halves, intake, _ = fresh(store, tmp_path)
    for place in range(5):
        halves.add("t", remembered(place), 100)
        intake.write()
    assert [place for place in range(5) if halves.find(place) is not None] == [2, 3, 4]


def test_counts_as_rocketmq_writes_them(tmp_path: Path) -> None:
    (tmp_path / "transactionMetrics").write_text(
        '{"dataVersion":{"counter":7,"stateVersion":0,"timestamp":1700000000000},'
        '"transactionCount":{"T":{"count":3,"timeStamp":1700000000000}}}'
    )
    clock = ManualClock(NOW_MS + 5)
    counts = TransactionCounts(Files(), tmp_path, clock=clock)
    assert counts.load()
    counts.add("T", -1)
    counts.add("U", 1)
    counts.save()
    again = TransactionCounts(Files(), tmp_path, clock=clock)
    assert again.load()
    assert {topic: (each.count, each.timestamp) for topic, each in again.counts.items()} == {
        "T": (2, NOW_MS + 5),
        "U": (1, NOW_MS + 5),
    }
    assert again.version.counter == 9
    again.remove("T")
    assert list(again.counts) == ["U"]
