from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kerolox.store.disk.checkpoint import Checkpoint
from kerolox.store.disk.files import Files
from kerolox.store.errors import FsyncFailed
from kerolox.testing.faults import FaultyFiles

NOW_MS = 1_700_000_000_000


def test_nothing_there(tmp_path: Path) -> None:
    checkpoint = Checkpoint(Files(), tmp_path / "checkpoint")
    assert checkpoint.load() is False
    assert checkpoint.min_timestamp_ms == checkpoint.min_timestamp_with_index_ms == 0
    assert not (tmp_path / "checkpoint").exists()


def test_layout_and_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    checkpoint = Checkpoint(Files(), path)
    checkpoint.commit_log_ms = NOW_MS
    checkpoint.queues_ms = NOW_MS - 5
    checkpoint.index_ms = NOW_MS - 9_000
    checkpoint.master_flushed_offset = -1
    checkpoint.confirmed_offset = 5 << 40
    checkpoint.save()
    checkpoint.close()
    data = path.read_bytes()
    assert len(data) == 4096
    assert data[:40] == struct.pack(">qqqqq", NOW_MS, NOW_MS - 5, NOW_MS - 9_000, -1, 5 << 40)
    assert data[40:] == bytes(4056)

    again = Checkpoint(Files(), path)
    assert again.load(NOW_MS) is True
    assert (again.commit_log_ms, again.queues_ms, again.index_ms) == (NOW_MS, NOW_MS - 5, NOW_MS - 9_000)
    assert (again.master_flushed_offset, again.confirmed_offset) == (-1, 5 << 40)
    again.queues_ms += 1
    again.save()
    again.save()
    again.close()
    again.close()
    assert struct.unpack(">q", path.read_bytes()[8:16]) == (NOW_MS - 4,)


def test_min_timestamps(tmp_path: Path) -> None:
    checkpoint = Checkpoint(Files(), tmp_path / "checkpoint")
    checkpoint.commit_log_ms, checkpoint.queues_ms = 10_000, 8_000
    assert checkpoint.min_timestamp_ms == 5_000
    assert checkpoint.min_timestamp_with_index_ms == 0
    checkpoint.index_ms = 4_000
    assert checkpoint.min_timestamp_with_index_ms == 4_000
    checkpoint.index_ms = 9_000
    assert checkpoint.min_timestamp_with_index_ms == 5_000
    checkpoint.queues_ms = 2_999
    assert checkpoint.min_timestamp_ms == 0


def test_a_file_of_an_older_version_lacks_fields(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(struct.pack(">qqq", 7_000, 6_000, 5_000) + b"\1\2\3")
    checkpoint = Checkpoint(Files(), path)
    assert checkpoint.load()
    assert (checkpoint.commit_log_ms, checkpoint.queues_ms, checkpoint.index_ms) == (7_000, 6_000, 5_000)
    assert checkpoint.confirmed_offset == 0
    checkpoint.save()
    checkpoint.close()
    assert path.stat().st_size == 4096


def test_senseless_times_are_read_as_zero(tmp_path: Path) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(struct.pack(">qqqqq", -5, NOW_MS + 30 * 24 * 3600 * 1000, NOW_MS, -7, -1))
    checkpoint = Checkpoint(Files(), path)
    checkpoint.load(NOW_MS)
    assert (checkpoint.commit_log_ms, checkpoint.queues_ms, checkpoint.index_ms) == (0, 0, NOW_MS)
    assert (checkpoint.master_flushed_offset, checkpoint.confirmed_offset) == (0, -1)


def test_an_unreadable_file_means_scan_everything(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    checkpoint = Checkpoint(Files(), tmp_path / "checkpoint")
    assert checkpoint.load() is True
    assert checkpoint.min_timestamp_ms == 0


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.binary(max_size=60))
def test_any_bytes_load_to_something_safe(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "checkpoint"
    path.write_bytes(data)
    checkpoint = Checkpoint(Files(), path)
    assert checkpoint.load(NOW_MS)
    for value in (checkpoint.commit_log_ms, checkpoint.queues_ms, checkpoint.index_ms):
        assert 0 <= value <= NOW_MS + 24 * 3600 * 1000
    assert checkpoint.confirmed_offset >= -1


def test_saved_means_it_survives_power_loss(tmp_path: Path) -> None:
    files = FaultyFiles()
    checkpoint = Checkpoint(files, tmp_path / "checkpoint")
    checkpoint.commit_log_ms = 1
    checkpoint.save()
    files.fail_syncs(1)
    checkpoint.commit_log_ms = 2
    with pytest.raises(FsyncFailed):
        checkpoint.save()
    files.power_loss(names=True)
    again = Checkpoint(files, tmp_path / "checkpoint")
    assert again.load()
    assert again.commit_log_ms == 1
