from __future__ import annotations

import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kerolox.store.disk.files import PAGE, DiskUsage
from kerolox.store.errors import DiskFull, FileMissing, FsyncFailed, ReadOnlyDisk
from kerolox.testing.faults import FaultyFiles, PowerLost


@pytest.fixture
def disk() -> FaultyFiles:
    return FaultyFiles()


def test_without_faults_it_is_a_disk(disk: FaultyFiles, tmp_path: Path) -> None:
    file = disk.create(tmp_path / "a", 3 * PAGE)
    file.pwritev([b"ab", b"cd"], PAGE - 2)
    assert file.pread(4, PAGE - 2) == file.pread_hot(4, PAGE - 2) == b"abcd"
    file.sync()
    file.truncate(PAGE)
    assert (file.size, disk.writes, disk.syncs, disk.synced_paths[str(tmp_path / "a")]) == (PAGE, 1, 1, 1)
    file.close()
    disk.write_atomic(tmp_path / "b", b"x", keep_backup=True)
    disk.write_atomic(tmp_path / "b", b"y", keep_backup=True)
    assert (disk.read(tmp_path / "b"), disk.read(tmp_path / "b.bak")) == (b"y", b"x")
    assert disk.disk_usage(tmp_path).total > 0
    FaultyFiles(really_sync=True).open(tmp_path / "b").sync()


def test_power_loss_takes_back_what_was_not_synced(disk: FaultyFiles, tmp_path: Path) -> None:
    path = tmp_path / "a"
    file = disk.create(path, 4 * PAGE)
    file.pwrite(b"1" * PAGE * 2, 0)
    file.sync()
    file.pwrite(b"2" * PAGE, PAGE + 10)
    file.pwrite(b"3" * PAGE, PAGE + 10)
    disk.power_loss()
    assert path.read_bytes() == b"1" * 2 * PAGE + bytes(2 * PAGE)
    with pytest.raises(PowerLost):
        file.pread(1, 0)
    with pytest.raises(PowerLost):
        file.pwrite(b"x", 0)
    with pytest.raises(PowerLost):
        file.sync()
    file.close()
    disk.power_loss()
    assert path.read_bytes()[:1] == b"1"


def test_a_length_that_was_not_synced_is_taken_back(disk: FaultyFiles, tmp_path: Path) -> None:
    file = disk.create(tmp_path / "a")
    file.pwrite(b"12345", 0)
    file.sync()
    file.pwrite(b"678", 5)
    other = disk.create(tmp_path / "b", PAGE)
    other.pwrite(b"x" * PAGE, 0)
    other.sync()
    other.truncate(10)
    disk.power_loss()
    assert (tmp_path / "a").read_bytes() == b"12345"
    assert (tmp_path / "b").read_bytes() == b"x" * PAGE


def test_kill_loses_nothing_but_the_handles(disk: FaultyFiles, tmp_path: Path) -> None:
    file = disk.create(tmp_path / "a")
    file.pwrite(b"12345", 0)
    disk.kill()
    with pytest.raises(PowerLost):
        file.pwrite(b"x", 0)
    assert disk.read(tmp_path / "a") == b"12345"
    disk.power_loss()  # the machine follows the process: it was never synced
    assert disk.read(tmp_path / "a") == b""


@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(seed=st.integers(0, 2**32), pages=st.lists(st.integers(0, 7), max_size=8))
def test_with_a_seed_each_page_is_old_or_new(tmp_path: Path, seed: int, pages: list[int]) -> None:
    contents = []
    for _ in range(2):
        disk = FaultyFiles()
        disk.remove(tmp_path / "a")
        file = disk.create(tmp_path / "a", 8 * PAGE)
        file.pwrite(b"o" * 8 * PAGE, 0)
        file.sync()
        for page in pages:
            file.pwrite(b"n" * PAGE, page * PAGE)
        disk.power_loss(seed)
        contents.append((tmp_path / "a").read_bytes())
    assert contents[0] == contents[1]
    for page in range(8):
        one = contents[0][page * PAGE : (page + 1) * PAGE]
        assert one == b"o" * PAGE or (page in pages and one == b"n" * PAGE)


def test_names_come_and_go_with_the_directory(disk: FaultyFiles, tmp_path: Path) -> None:
    disk.write_atomic(tmp_path / "kept", b"old")
    disk.write_atomic(tmp_path / "gone", b"was here")
    disk.make_dirs(tmp_path / "x" / "y")
    disk.create(tmp_path / "x" / "y" / "new").close()
    fresh = disk.create(tmp_path / "fresh")
    fresh.pwrite(b"new", 0)
    fresh.sync()
    fresh.close()
    disk.rename(tmp_path / "fresh", tmp_path / "kept")
    disk.remove(tmp_path / "gone")
    disk.power_loss(names=True)
    assert disk.list_dir(tmp_path) == ["gone", "kept"]
    assert (disk.read(tmp_path / "kept"), disk.read(tmp_path / "gone")) == (b"old", b"was here")

    disk.remove(tmp_path / "gone")
    disk.sync_dir(tmp_path)
    disk.power_loss(names=True)
    assert disk.list_dir(tmp_path) == ["kept"]


def test_what_was_in_a_directory_is_gone_with_it(disk: FaultyFiles, tmp_path: Path) -> None:
    disk.make_dirs(tmp_path / "x" / "y")
    disk.create(tmp_path / "x" / "y" / "a", 10).close()
    for made in (tmp_path / "x" / "y", tmp_path / "x", tmp_path):
        disk.sync_dir(made)
    disk.remove_tree(tmp_path / "x" / "y")
    disk.sync_dir(tmp_path / "x")
    disk.power_loss(names=True)
    assert disk.list_dir(tmp_path / "x") == []


def test_by_default_names_stay(disk: FaultyFiles, tmp_path: Path) -> None:
    disk.create(tmp_path / "a", 10).close()
    disk.power_loss()
    assert disk.list_dir(tmp_path) == ["a"]
    assert disk.size(tmp_path / "a") == 0


@pytest.mark.parametrize("seed", range(20))
def test_write_atomic_survives_any_power_loss(disk: FaultyFiles, tmp_path: Path, seed: int) -> None:
    path = tmp_path / "x.json"
    disk.write_atomic(path, b"old" * 3000)
    disk.fail_syncs(1, path_contains=str(tmp_path / "x.json.tmp") if seed % 2 else str(tmp_path))
    with pytest.raises(FsyncFailed):
        disk.write_atomic(path, b"new" * 3000)
    disk.power_loss(seed, names=True)
    assert disk.read(path) in (b"old" * 3000, b"new" * 3000)


def test_torn_write(disk: FaultyFiles, tmp_path: Path) -> None:
    file = disk.create(tmp_path / "a", 100)
    disk.tear_next_write(after=3)
    with pytest.raises(PowerLost, match="died 3 bytes into a write of 10"):
        file.pwrite(b"0123456789", 5)
    with pytest.raises(PowerLost):
        file.pwrite(b"0123456789", 5)
    assert (tmp_path / "a").read_bytes() == bytes(5) + b"012" + bytes(92)
    disk.open(tmp_path / "a").pwrite(b"fine", 0)


def test_failing_syncs(disk: FaultyFiles, tmp_path: Path) -> None:
    file, other = disk.create(tmp_path / "a", 10), disk.create(tmp_path / "b", 10)
    disk.fail_syncs(2, path_contains="/a")
    other.sync()
    for _ in range(2):
        with pytest.raises(FsyncFailed):
            file.sync()
    file.sync()
    disk.fail_syncs()
    for _ in range(3):
        with pytest.raises(FsyncFailed):
            other.sync()
    with pytest.raises(FsyncFailed):
        disk.sync_dir(tmp_path)
    disk.fail_syncs(0)
    other.sync()


def test_what_a_failed_sync_covered_is_lost_even_if_the_next_one_succeeds(
    disk: FaultyFiles, tmp_path: Path
) -> None:
    file = disk.create(tmp_path / "a", 3 * PAGE)
    file.sync()
    file.pwrite(b"one", 0)
    file.pwrite(b"two", PAGE)
    disk.fail_syncs(1)
    with pytest.raises(FsyncFailed):
        file.sync()
    file.pwrite(b"two", PAGE)  # written again
    file.pwrite(b"three", 2 * PAGE)
    file.sync()
    disk.power_loss()
    content = (tmp_path / "a").read_bytes()
    assert [content[page * PAGE :][:5] for page in range(3)] == [bytes(5), b"two\0\0", b"three"]


def test_stalled_sync(disk: FaultyFiles, tmp_path: Path) -> None:
    file = disk.create(tmp_path / "a", 2 * PAGE)
    file.sync()
    assert disk.wait_for_stalled_sync(0.01) is False
    disk.stall_syncs()
    with ThreadPoolExecutor(1) as worker:
        file.pwrite(b"before", 0)
        sync = worker.submit(file.sync)
        assert disk.wait_for_stalled_sync()
        file.pwrite(b"during", PAGE)
        assert not sync.done()
        disk.release_syncs()
        sync.result()
    disk.power_loss()
    assert (tmp_path / "a").read_bytes().rstrip(b"\0") == b"before"


def test_power_loss_during_a_stalled_sync(disk: FaultyFiles, tmp_path: Path) -> None:
    file = disk.create(tmp_path / "a", PAGE)
    file.sync()
    file.pwrite(b"never arrived", 0)
    disk.stall_syncs()
    with ThreadPoolExecutor(2) as worker:
        syncs = [worker.submit(file.sync), worker.submit(disk.sync_dir, tmp_path)]
        assert disk.wait_for_stalled_sync()
        while disk.syncs + disk.dir_syncs < 3:
            time.sleep(0.001)
        disk.power_loss()
        for sync in syncs:
            assert isinstance(sync.exception(), PowerLost)
    assert (tmp_path / "a").read_bytes() == bytes(PAGE)


def test_slow_syncs(disk: FaultyFiles, tmp_path: Path) -> None:
    file = disk.create(tmp_path / "a", 10)
    disk.stall_syncs(for_s=0.02)
    start = time.monotonic()
    file.sync()
    assert time.monotonic() - start >= 0.02
    disk.release_syncs()


def test_full_disk(disk: FaultyFiles, tmp_path: Path) -> None:
    file = disk.create(tmp_path / "a", 100)
    disk.fill(free_bytes=50)
    file.pwrite(b"x" * 100, 0)  # has its blocks
    with pytest.raises(DiskFull, match="No space left"):
        disk.create(tmp_path / "b", 51)
    assert disk.list_dir(tmp_path) == ["a"]
    disk.create(tmp_path / "b", 30).close()
    file.pwrite(b"x" * 20, 100)
    with pytest.raises(DiskFull):
        file.pwrite(b"x", 120)
    disk.remove(tmp_path / "b")  # gives back its thirty bytes
    file.pwrite(b"x" * 30, 120)
    disk.make_room()
    disk.create(tmp_path / "c", 10_000).close()
    disk.usage = DiskUsage(total=100, free=5, available=0)
    assert disk.used_ratio(tmp_path) == 1.0


def test_read_only(disk: FaultyFiles, tmp_path: Path) -> None:
    file = disk.create(tmp_path / "a", 100)
    disk.read_only = True
    for action in (
        lambda: file.pwrite(b"x", 0),
        lambda: file.truncate(1),
        lambda: disk.create(tmp_path / "b"),
        lambda: disk.make_dirs(tmp_path / "c"),
        lambda: disk.remove(tmp_path / "a"),
        lambda: disk.rename(tmp_path / "a", tmp_path / "b"),
        lambda: disk.set_mtime(tmp_path / "a", 1.0),
        lambda: disk.write_atomic(tmp_path / "d", b"x"),
    ):
        with pytest.raises(ReadOnlyDisk):
            action()
    assert file.pread(1, 0) == b"\0"
    disk.read_only = False
    file.pwrite(b"x", 0)


def test_cold_reads_and_who_reads(disk: FaultyFiles, tmp_path: Path) -> None:
    file = disk.create(tmp_path / "a", 2 * PAGE)
    disk.cold = lambda path, offset, size: offset >= PAGE
    assert file.pread_hot(4, 0) == bytes(4)
    assert file.pread_hot(4, PAGE) is None
    assert disk.cold_answers == 1
    assert disk.reading_threads == set()
    with ThreadPoolExecutor(1) as worker:
        worker.submit(file.pread, 4, PAGE).result()
        thread = worker.submit(threading.get_ident).result()
    assert disk.reading_threads == {thread}
    assert [(path, offset, hot) for path, offset, hot, _ in disk.reads] == [
        (str(tmp_path / "a"), 0, True),
        (str(tmp_path / "a"), PAGE, False),
    ]


def test_a_new_file_of_an_old_name_has_no_past(disk: FaultyFiles, tmp_path: Path) -> None:
    file = disk.create(tmp_path / "a", PAGE)
    file.pwrite(b"first", 0)
    disk.remove(tmp_path / "a")
    with pytest.raises(FileMissing):
        disk.open(tmp_path / "a")
    second = disk.create(tmp_path / "a", PAGE)
    second.pwrite(b"second", 0)
    second.sync()
    file.pwrite(b"still a file", 0)
    disk.power_loss()
    assert os.path.getsize(tmp_path / "a") == PAGE
    assert disk.read(tmp_path / "a").rstrip(b"\0") == b"second"
