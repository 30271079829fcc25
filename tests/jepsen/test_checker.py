"""The checker finds what it is there to find: each history here is wrong in one way."""

from __future__ import annotations

import dataclasses

from tests.rig.history import OK, Send
from tests.rig.logs import Record

from . import checker
from .checker import Election, Epoch
from .history import Commit, Read

T = "orders"
A, B = "10.79.0.11:10911", "10.79.0.12:10911"
FIRST = Record(T, 0, 0, 0, 100, b"one", A)
SECOND = Record(T, 0, 1, 100, 100, b"two", A)
THIRD = Record(T, 0, 2, 200, 100, b"three", B)
OTHER_QUEUE = Record(T, 1, 0, 300, 100, b"four", B)
RECORDS = [FIRST, SECOND, THIRD, OTHER_QUEUE]
EPOCHS = [Epoch(1, 0), Epoch(3, 200)]


def sent(record: Record, began_s: float = 10.0, ended_s: float = 11.0, status: str = OK) -> Send:
    return Send(
        "ours", record.body, began_s, ended_s, status, record.queue, record.offset, record.place, record.host
    )


SENDS = [sent(FIRST, 1, 2), sent(SECOND, 3, 4), sent(THIRD, 5, 6), sent(OTHER_QUEUE, 1, 9)]
READS = [Read(10.0, one.queue, one.offset, one.body) for one in RECORDS]


def test_a_good_history_is_good() -> None:
    assert not checker.twice_in_log(SENDS, RECORDS, T)
    assert not checker.out_of_order(SENDS)
    assert not checker.two_leaders(EPOCHS, RECORDS, SENDS)
    assert not checker.read_what_is_not_there(READS, RECORDS, T)
    assert not checker.skipped([*READS, READS[0], *READS])
    assert not checker.unread(READS, RECORDS, T)
    assert checker.queue_ends(RECORDS, T) == {0: 3, 1: 1}
    assert not checker.committed_beyond([Commit(1.0, 0, 3), Commit(1.0, 1, 1)], {0: 3, 1: 1})
    assert not checker.offsets_beyond("b1", {0: 3}, {0: 3})
    assert not checker.epochs_differ({"b1": EPOCHS, "b2": EPOCHS[1:]})


def test_one_message_at_two_places() -> None:
    records = [*RECORDS, FIRST._replace(place=400, offset=3)]
    (wrong,) = checker.twice_in_log(SENDS, records, T)
    assert wrong == "b'one' is at 0 and at 400"
    again = [dataclasses.replace(send, client="java") for send in SENDS]
    assert not checker.twice_in_log(again, records, T)


def test_an_acknowledged_message_before_an_earlier_one() -> None:
    late = sent(FIRST, 5, 6)
    (wrong,) = checker.out_of_order([sent(SECOND, 1, 2), late])
    assert "b'one', queue 0 offset 0, was sent after" in wrong
    assert not checker.out_of_order([sent(SECOND, 1, 5.5), late])  # at the same time
    assert not checker.out_of_order([sent(SECOND, 1, 4.995), late])  # as far as anybody knows
    assert not checker.out_of_order([sent(SECOND, 1, 2, "FLUSH_SLAVE_TIMEOUT"), late])
    assert checker.out_of_order([sent(SECOND, 1, 2), sent(SECOND, 5, 6)])  # one place twice


def test_two_that_write_in_one_epoch() -> None:
    (wrong,) = checker.two_leaders(EPOCHS, [FIRST, SECOND._replace(host=B), THIRD], [])
    assert wrong == f"epoch 1 has messages of {A} and, at 100, of {B}"


def test_two_that_acknowledge_in_one_epoch() -> None:
    (wrong,) = checker.two_leaders(EPOCHS, RECORDS, [sent(SECOND._replace(host=B))])
    assert f"was acknowledged by {B} in epoch 1 of {A}" in wrong
    assert not checker.two_leaders(EPOCHS, RECORDS, [sent(SECOND._replace(host=B), status="SendFailed")])


def test_epochs_that_fall_or_differ() -> None:
    assert checker.two_leaders([Epoch(3, 0), Epoch(1, 200)], [], [])
    (wrong,) = checker.epochs_differ({"b1": EPOCHS, "b2": [Epoch(3, 300)]})
    assert wrong == "epoch 3 begins at 300 at b2, and at 200 at b1"


def test_two_elected_in_one_epoch() -> None:
    said = [Election("a", 1, 1, "c1"), Election("a", 2, 2, "c1"), Election("a", 2, 2, "b2")]
    assert not checker.elected_twice(said)
    (wrong,) = checker.elected_twice([*said, Election("a", 2, 3, "c2")])
    assert wrong == "epoch 2 of a is 2's, says c1, and 3's, says c2"


def test_what_was_read_and_is_gone() -> None:
    (wrong,) = checker.read_what_is_not_there(READS, RECORDS[:3], T)
    assert wrong == "queue 1 offset 0 was read as b'four', and is None"
    other = [*RECORDS[:3], OTHER_QUEUE._replace(body=b"another")]
    (wrong,) = checker.read_what_is_not_there(READS, other, T)
    assert "and is b'another'" in wrong


def test_what_was_left_out() -> None:
    (wrong,) = checker.skipped([READS[0], READS[2]])
    assert wrong == "queue 0 was read on from 2 after 0"
    (wrong,) = checker.unread(READS[1:], RECORDS, T)
    assert wrong == "nobody was given b'one', queue 0 offset 0"


def test_progress_behind_the_end() -> None:
    (wrong,) = checker.committed_beyond([Commit(1.0, 0, 4)], {0: 3})
    assert wrong == "progress 4 was saved for queue 0, which ends at 3"
    (wrong,) = checker.offsets_beyond("b2", {1: 1}, {0: 3})
    assert wrong == "b2 has progress 1 for queue 1, which ends at 0"
