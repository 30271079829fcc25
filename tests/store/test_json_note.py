"""Notes as a line of JSON and its CRC."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerolox.store.disk.cut_note import Cut, QueueEnd
from kerolox.store.disk.files import Files
from kerolox.store.disk.json_note import JsonNote, decode_note, encode_note
from kerolox.store.disk.log_identity import FileHead, LogIdentity
from kerolox.store.disk.progress_notes import ProgressNotes
from kerolox.store.disk.sums import FileSum, IndexSum, QueueSums, Sums
from kerolox.store.errors import StoreError
from kerolox.testing.faults import FaultyFiles

# As stores of earlier versions have them.
KNOWN = [
    (dict[str, int], {"Gone": 4096}, b'{"Gone":4096}\n2687356872\n'),
    (
        LogIdentity,
        LogIdentity(4096, [FileHead(4096, 1774773741, 1700000000123)]),
        b'{"begin":4096,"heads":[[4096,1774773741,1700000000123]]}\n',
    ),
    (
        Cut,
        Cut(92, stored_ms=7, queues=[QueueEnd("T", 0, 1)], records=2),
        b'{"end":92,"stored_ms":7,"queues":[["T",0,1]],"records":2,"first_ms":0,"last_ms":0,"delayed":{},'
        b'"timer":false,"due_ms":null,"half_ended":null,"files_cut":false}\n',
    ),
    (
        Sums,
        Sums(92, 0, [QueueSums("T", 0, [FileSum(0, 20, 9)])], [IndexSum("20261119180000000", "00", 5)]),
        b'{"end":92,"before":0,"queues":[["T",0,[[0,20,9]],[]]],"index":[["20261119180000000","00",5,-1]]}\n',
    ),
    (ProgressNotes, ProgressNotes("x", 5), None),
]


@pytest.mark.parametrize(("kind", "value", "line"), KNOWN)
def test_the_bytes_of_each_note(kind: type[object], value: object, line: bytes | None) -> None:
    data = encode_note(value)
    assert line is None or data.startswith(line)
    assert len(data) == data.index(b"\n") + 12, "ten digits between two ends of a line"
    assert decode_note(data, kind) == value
    assert decode_note(data.ljust(512, b"\0"), kind) == value


@given(st.binary(max_size=200))
def test_any_bytes_are_a_note_or_damaged(data: bytes) -> None:
    with pytest.raises(ValueError, match="its CRC does not match"):
        decode_note(data, dict[str, int])


@pytest.mark.parametrize("at", range(len(encode_note({"Gone": 4096})) - 1))
def test_a_damaged_byte_is_noticed(at: int) -> None:
    data = bytearray(encode_note({"Gone": 4096}))
    data[at] ^= 0x15
    with pytest.raises(ValueError):
        decode_note(bytes(data), dict[str, int])


def test_a_value_of_another_kind_is_damage() -> None:
    with pytest.raises(ValueError, match="Expected") as raised:
        decode_note(encode_note([1]), dict[str, int])
    assert not isinstance(raised.value, msgspec.MsgspecError)


def test_a_file_is_replaced_and_removed_for_good(tmp_path: Path) -> None:
    disk = FaultyFiles()
    note = JsonNote(disk, tmp_path, "kerolox.test", dict[str, int])
    assert note.read() is None
    note.remove()
    for value in ({"a": 1}, {"a": 2, "b": 3}, {}):
        note.write(value)
        disk.power_loss(names=True)
        assert note.read() == value
    note.remove()
    disk.power_loss(names=True)
    assert note.read() is None
    assert os.listdir(tmp_path) == []


def test_a_file_that_cannot_be_read_is_not_taken_for_none(tmp_path: Path) -> None:
    (tmp_path / "kerolox.test").mkdir()
    with pytest.raises(StoreError):
        JsonNote(Files(), tmp_path, "kerolox.test", dict[str, int]).read()
