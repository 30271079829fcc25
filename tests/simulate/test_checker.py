"""The checker finds what is planted, and nothing else."""

from __future__ import annotations

from dataclasses import replace

from kerolox.protocol.ha_epochs import Epoch
from tests.rig.logs import Log, Record

from . import checker
from .clients import TOPIC, Seen, Sent

EPOCHS = (Epoch(1, 0), Epoch(3, 200))
MASTERS = {1: 1, 2: 2, 3: 2}
IDS = {"a": {1}, "b": {2}}


def record(body: bytes, queue: int, offset: int, place: int) -> Record:
    return Record(TOPIC, queue, offset, place, 100, body)


def sent(body: bytes, by: str, place: int, began_s: float, ended_s: float, status: str = "SEND_OK") -> Sent:
    return Sent("c", body, began_s, ended_s, status, 0, place // 100, place, by=by)


RECORDS = [record(b"m0", 0, 0, 0), record(b"m1", 1, 0, 100), record(b"m2", 0, 1, 200)]
SENDS = [sent(b"m0", "a", 0, 1, 2), sent(b"m1", "a", 100, 2, 3), sent(b"m2", "b", 200, 5, 6)]


def test_all_is_well() -> None:
    assert not checker.twice(RECORDS, TOPIC)
    assert not checker.unread([Seen(b"m1", 1, 0, "a", 3.0)], RECORDS, TOPIC)
    assert not checker.logs_differ({"a": Log(0, b"abcd"), "b": Log(2, b"cd")})
    assert not checker.epochs_differ({"a": EPOCHS, "b": EPOCHS}, {"a": Log(0, b""), "b": Log(0, b"")})
    assert not checker.wrong_leader(SENDS, EPOCHS, MASTERS, IDS)
    assert not checker.two_leaders(SENDS, EPOCHS)
    assert not checker.epochs_unknown(EPOCHS, MASTERS)
    assert not checker.offsets_beyond({0: 2}, {0: 2}, "a")


def test_a_message_at_two_places() -> None:
    assert checker.twice([*RECORDS, record(b"m1", 1, 1, 300)], TOPIC) == ["b'm1' lies at 100 and at 300"]


def test_what_was_read_is_gone_or_another() -> None:
    (told,) = checker.unread([Seen(b"m9", 1, 0, "a", 3.0)], RECORDS, TOPIC)
    assert "b'm1'" in told
    (told,) = checker.unread([Seen(b"m9", 1, 7, "a", 3.0)], RECORDS, TOPIC)
    assert "nothing" in told


def test_logs_that_differ_or_end_elsewhere() -> None:
    assert checker.logs_differ({"a": Log(0, b"abcd"), "b": Log(0, b"abXd")})
    assert checker.logs_differ({"a": Log(0, b"abcd"), "b": Log(0, b"abc")})


def test_epochs_that_differ_where_both_have_the_log() -> None:
    logs = {"a": Log(0, b""), "b": Log(150, b"")}
    assert not checker.epochs_differ({"a": EPOCHS, "b": (Epoch(1, 150), Epoch(3, 200))}, logs)
    assert not checker.epochs_differ({"a": EPOCHS, "b": EPOCHS}, logs)
    logs["b"] = Log(250, b"")
    assert not checker.epochs_differ({"a": EPOCHS, "b": (Epoch(3, 200),)}, logs)
    assert checker.epochs_differ({"a": EPOCHS, "b": (Epoch(2, 200),)}, logs)


def test_who_was_not_elected_acknowledged() -> None:
    assert checker.wrong_leader([replace(SENDS[1], by="b")], EPOCHS, MASTERS, IDS)
    assert checker.wrong_leader([replace(SENDS[2], by="a")], EPOCHS, MASTERS, IDS)
    assert not checker.wrong_leader([replace(SENDS[2], by="a", status="timeout")], EPOCHS, MASTERS, IDS)


def test_a_leader_that_was_replaced_acknowledged() -> None:
    late = sent(b"m3", "a", 150, 7, 8)
    assert checker.two_leaders([*SENDS, late], EPOCHS)
    assert not checker.two_leaders([*SENDS, replace(late, began_s=5.5)], EPOCHS), "it was under way"


def test_an_epoch_without_an_election() -> None:
    assert checker.epochs_unknown((*EPOCHS, Epoch(4, 300)), MASTERS)
    assert checker.epochs_unknown((Epoch(3, 0), Epoch(1, 200)), MASTERS)
    assert checker.epochs_unknown((Epoch(1, 200), Epoch(3, 200)), MASTERS)


def test_consumers_beyond_the_end() -> None:
    assert checker.offsets_beyond({0: 3, 1: 1}, {0: 2}, "a") == [
        "readers are at 3 of queue 0 at a, which ends at 2",
        "readers are at 1 of queue 1 at a, which ends at 0",
    ]
