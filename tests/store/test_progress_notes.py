from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerolox.store.disk.files import Files
from kerolox.store.disk.progress_notes import (
    NAME,
    SECTOR_BYTES,
    ProgressNotes,
    ProgressNotesFile,
    boot_identity,
)
from kerolox.store.errors import StoreError
from kerolox.testing.faults import FaultyFiles

FULL = ProgressNotes("b" * 36, *([(1 << 63) - 1] * 6))


def test_saved_and_loaded(tmp_path: Path) -> None:
    file = ProgressNotesFile(Files(), tmp_path)
    assert file.load() == ProgressNotes()
    for marks in (ProgressNotes(boot="x", dispatched=5), FULL, ProgressNotes()):
        file.save(marks)
        assert file.load() == ProgressNotesFile(Files(), tmp_path).load() == marks
        assert os.path.getsize(tmp_path / NAME) == SECTOR_BYTES
    file.close()
    file.close()


def test_shorter_marks_leave_nothing_of_longer_ones(tmp_path: Path) -> None:
    file = ProgressNotesFile(Files(), tmp_path)
    file.save(FULL)
    file.save(ProgressNotes())
    assert b"b" * 36 not in (tmp_path / NAME).read_bytes()
    file.close()


@pytest.mark.parametrize("at", range(0, 160, 7))
def test_a_damaged_byte_makes_all_unknown(tmp_path: Path, at: int) -> None:
    file = ProgressNotesFile(Files(), tmp_path)
    file.save(FULL)
    file.close()
    data = bytearray((tmp_path / NAME).read_bytes())
    data[at] ^= 0x55
    (tmp_path / NAME).write_bytes(data)
    assert ProgressNotesFile(Files(), tmp_path).load() == ProgressNotes()


@given(st.binary(max_size=600))
@settings(max_examples=100, deadline=None)
def test_any_bytes(tmp_path_factory: pytest.TempPathFactory, data: bytes) -> None:
    path = tmp_path_factory.mktemp("marks")
    (path / NAME).write_bytes(data)
    assert ProgressNotesFile(Files(), path).load() == ProgressNotes()


def test_marks_of_a_later_version_are_read_as_far_as_known(tmp_path: Path) -> None:
    from zlib import crc32

    line = b'{"boot":"x","dispatched":7,"later":[1,2]}'
    (tmp_path / NAME).write_bytes(b"%b\n%010d\n" % (line, crc32(line)))
    assert ProgressNotesFile(Files(), tmp_path).load() == ProgressNotes(boot="x", dispatched=7)


def test_they_are_flushed_when_saved(tmp_path: Path) -> None:
    disk = FaultyFiles()
    file = ProgressNotesFile(disk, tmp_path)
    file.save(ProgressNotes(dispatched=1))
    file.save(ProgressNotes(dispatched=2))
    disk.power_loss(names=True)
    assert ProgressNotesFile(disk, tmp_path).load() == ProgressNotes(dispatched=2)


def test_an_unreadable_file_is_as_good_as_none(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    assert ProgressNotesFile(Files(), tmp_path).load() == ProgressNotes()
    with pytest.raises(StoreError):
        ProgressNotesFile(Files(), tmp_path).save(ProgressNotes())


def test_the_run_of_this_system_has_a_name() -> None:
    assert boot_identity() == boot_identity()
