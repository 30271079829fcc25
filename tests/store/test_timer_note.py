from __future__ import annotations

from pathlib import Path

import pytest

from kerolox.store.disk.files import Files
from kerolox.store.timer.progress_note import TimerNote, TimerNoteFile

MARK = TimerNote(0, 1_700_000_000_000, 17, 520, 9, 1040, 4711, 3, 250)


def noted(tmp_path: Path, times: int) -> TimerNoteFile:
    file = TimerNoteFile(Files(), tmp_path)
    assert file.load() is None
    file.open()
    for number in range(times):
        file.note(MARK._replace(queue_offset=number))
    file.close()
    return file


@pytest.mark.parametrize("times", [1, 2, 5])
def test_the_newest_counts(tmp_path: Path, times: int) -> None:
    noted(tmp_path, times)
    again = TimerNoteFile(Files(), tmp_path)
    assert again.load() == MARK._replace(number=times, queue_offset=times - 1)
    again.open()
    again.note(MARK._replace(queue_offset=99))
    again.close()
    found = TimerNoteFile(Files(), tmp_path).load()
    assert found is not None
    assert (found.number, found.queue_offset) == (times + 1, 99)


def test_a_torn_mark_leaves_the_one_before(tmp_path: Path) -> None:
    path = Path(noted(tmp_path, 4).path)
    data = bytearray(path.read_bytes())
    data[20] ^= 1  # the fourth lies in the first place
    path.write_bytes(bytes(data))
    found = TimerNoteFile(Files(), tmp_path).load()
    assert found is not None
    assert found.queue_offset == 2


@pytest.mark.parametrize("data", [b"", b"x" * 50, bytes(4096), b"\xff" * 4096])
def test_nonsense_is_no_mark(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "kerolox.timer").write_bytes(data)
    file = TimerNoteFile(Files(), tmp_path)
    assert file.load() is None
    file.open()
    file.note(MARK)
    file.close()
    assert TimerNoteFile(Files(), tmp_path).load() == MARK._replace(number=1)


def test_a_mark_can_be_forgotten(tmp_path: Path) -> None:
    file = noted(tmp_path, 3)
    file.open()
    file.forget()
    file.close()
    assert TimerNoteFile(Files(), tmp_path).load() is None
