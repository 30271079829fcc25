"""The checks that the stories rest on find what they look for."""

from __future__ import annotations

import base64

from .client import Record, missing, out_of_order, place


def record(lane: int, number: int, at: int, offset: int = 0) -> Record:
    text = base64.b64encode(f"{lane}:{number}:...".encode()).decode()
    return {"body": text, "receivedAt": at, "queueOffset": offset}


def test_what_is_missing() -> None:
    got = [record(0, 0, 1), record(0, 2, 2), record(1, 0, 3), record(1, 0, 4), record(1, 1, 5)]
    assert missing(got, [2, 1]) == {0: [1]}
    assert missing(got, [1, 2]) == {}
    assert missing([], [0, 3]) == {1: [0, 1, 2]}


def test_what_is_out_of_order() -> None:
    in_order = [record(0, 0, 1), record(0, 1, 2), record(0, 0, 3), record(0, 1, 4), record(0, 2, 5)]
    assert out_of_order(in_order) == []
    assert out_of_order([record(0, 0, 1), record(0, 2, 2), record(0, 1, 3)]) == ["lane 0: 2 after 0"]
    assert out_of_order([record(0, 1, 1), record(0, 0, 2)]) == ["lane 0: 1 after -1"]
    # Of one millisecond, the place in the queue tells which came first.
    assert out_of_order([record(0, 1, 7, offset=1), record(0, 0, 7, offset=0)]) == []
    # Lanes do not wait for each other.
    assert out_of_order([record(1, 0, 1), record(0, 0, 2), record(1, 1, 3)]) == []


def test_place_of_an_id() -> None:
    assert place("7F00000100002A9F0000000000000400") == ("127.0.0.1:10911", 1024)
