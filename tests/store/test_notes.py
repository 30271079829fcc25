"""All notes of a store, changed together."""

from __future__ import annotations

from pathlib import Path

import pytest

from kerolox.protocol.epoch_file import EPOCH_FILE
from kerolox.protocol.ha_epochs import Epoch
from kerolox.store.disk.cut_note import Cut
from kerolox.store.disk.files import Files
from kerolox.store.disk.log_identity import FileHead, LogIdentity
from kerolox.store.disk.progress_notes import ProgressNotes
from kerolox.store.disk.sums import Sums
from kerolox.store.errors import CorruptRecord
from kerolox.store.notes import Notes, Times


def notes_at(path: Path, *, controlled: bool = True) -> Notes:
    return Notes(Files(), str(path), boot="one", controlled=controlled)


def filled(path: Path) -> Notes:
    notes = notes_at(path)
    notes.save(ProgressNotes("one", 900, 900), Times(90, 80, 70), confirmed=800)
    notes.sums.save(Sums(900, 0))
    notes.identity.save(LogIdentity(0, [FileHead(0, 1, 10), FileHead(500, 2, 50)]))
    notes.deleted.note("Gone", 700, 0)
    notes.epochs.take((Epoch(1, 0), Epoch(2, 300), Epoch(4, 600)))
    return notes


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    filled(tmp_path).close()
    notes = notes_at(tmp_path)
    assert notes.load(now_ms=100) == (ProgressNotes("one", 900, 900), False)
    checkpoint = notes.checkpoint
    assert (checkpoint.commit_log_ms, checkpoint.queues_ms, checkpoint.index_ms) == (90, 80, 70)
    assert checkpoint.confirmed_offset == 800
    assert [epoch.number for epoch in notes.epochs.entries] == [1, 2, 4]
    notes.save(
        ProgressNotes("one", 950, 950), Times(60, 95, 0), confirmed=810
    )  # times: not back, but the index
    assert (checkpoint.commit_log_ms, checkpoint.queues_ms, checkpoint.index_ms) == (90, 95, 0)


def test_without_a_controller_there_is_no_confirmed_offset(tmp_path: Path) -> None:
    (tmp_path / EPOCH_FILE).write_text("nonsense")
    notes = notes_at(tmp_path, controlled=False)
    notes.load(now_ms=100)
    notes.save(ProgressNotes(), Times(1, 1, 1), confirmed=800)
    assert notes.checkpoint.confirmed_offset == 0


def test_a_run_that_did_not_end_cleanly(tmp_path: Path) -> None:
    notes = notes_at(tmp_path)
    notes.note_running()
    assert notes_at(tmp_path).load(now_ms=100)[1] is True
    notes.note_stopped()
    assert notes_at(tmp_path).load(now_ms=100)[1] is False
    notes.note_unfinished(50)
    assert notes_at(tmp_path).load(now_ms=100) == (ProgressNotes("one", 50), True)


def test_a_cut_of_the_log_cuts_all_of_them(tmp_path: Path) -> None:
    notes = filled(tmp_path)
    cut = Cut(500, stored_ms=49)
    notes.lower_to(cut)
    assert (notes.checkpoint.commit_log_ms, notes.checkpoint.confirmed_offset) == (49, 500)
    assert notes.sums.load() is not None  # the files are not touched yet
    notes.clear_behind(cut)
    for each in (notes, notes_at(tmp_path)):
        each.load(now_ms=100)
        each.deleted.load()
        assert each.sums.load() is None
        assert each.identity.load() == LogIdentity(0, [FileHead(0, 1, 10)])
        assert each.deleted.before == {"Gone": 500}
        assert [epoch.number for epoch in each.epochs.entries] == [1, 2]
    notes.clear_behind(cut)  # again, as after a crash in between


def test_the_end_that_a_start_finds(tmp_path: Path) -> None:
    notes = filled(tmp_path)
    notes.fit(600)
    assert notes.deleted.before == {"Gone": 600}
    assert [epoch.number for epoch in notes.epochs.entries] == [1, 2, 4]
    notes.fit(599)
    again = notes_at(tmp_path)
    again.load(now_ms=100)
    assert [epoch.number for epoch in again.epochs.entries] == [1, 2]


def test_epochs_that_cannot_be_read_stop_a_cut_only_under_a_controller(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / EPOCH_FILE).write_text("nonsense")
    notes_at(tmp_path, controlled=False).clear_behind(Cut(500))
    assert "epochs_not_cut offset=500" in caplog.text
    with pytest.raises(CorruptRecord, match="cannot read the epochs"):
        notes_at(tmp_path).clear_behind(Cut(500))


def test_an_identity_of_another_brokers_files_is_not_trusted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    filled(tmp_path).close()
    identity = notes_at(tmp_path).identity
    assert identity.load(trusted=False) is None
    assert identity.known is None
    assert "log_identity_made_again" in caplog.text
    assert identity.load() is not None
