from __future__ import annotations

import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kerolox.store.disk.files import Files
from kerolox.store.disk.segment import OpenFiles
from kerolox.store.disk.segments import Segments
from kerolox.store.errors import (
    DiskFull,
    FsyncFailed,
    OffsetOutOfRange,
    StoreError,
    StrayFile,
    Unreadable,
    WrongFileSize,
)
from kerolox.testing.faults import FaultyFiles

SIZE = 10_000
FAR = (5 << 40) // SIZE * SIZE


@pytest.fixture
def disk() -> FaultyFiles:
    return FaultyFiles()


@pytest.fixture
def worker() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(1) as executor:
        yield executor


def filled(files: Files, directory: Path, count: int = 3, start: int = 0) -> Segments:
    """``count`` files, each full of its own number."""
    log = Segments(files, directory, SIZE)
    log.start_at(start)
    for i in range(count):
        if i:
            log.roll()
        log.append(b"%d" % i * SIZE)
    return log


def names(directory: Path) -> list[int]:
    return sorted(int(name) for name in os.listdir(directory))


def test_nothing_there(tmp_path: Path) -> None:
    log = Segments(Files(), tmp_path / "commitlog", SIZE)
    log.load()
    assert (log.min_offset, log.max_offset, log.room, log.gaps) == (-1, 0, 0, [])
    assert log.first is log.last is None
    assert log.flush() == 0
    assert log.readable(0) == 0
    log.truncate_to(0)
    log.close()
    assert not (tmp_path / "commitlog").exists()


@pytest.mark.parametrize("start", [0, FAR])
def test_append_roll_and_read(tmp_path: Path, start: int) -> None:
    log = Segments(Files(), tmp_path / "a" / "b", SIZE)
    log.load()
    log.start_at(start)
    assert log.append(b"first") == start
    assert log.append([b"se", b"cond"]) == start + 5
    assert log.room == SIZE - 11
    assert log.roll() == start + SIZE
    assert log.append(bytearray(b"third")) == start + SIZE
    assert (log.min_offset, log.max_offset, log.flushed) == (start, start + SIZE + 5, start)
    assert log.read(start, 11) == b"firstsecond"
    assert log.read_hot(start + SIZE, 5) == b"third"
    assert log.read(start + SIZE - 2, 2) == b"\0\0"
    assert log.readable(start) == SIZE
    assert log.readable(start + SIZE + 2) == 3
    assert log.readable(start + SIZE + 5) == 0
    assert names(tmp_path / "a" / "b") == [start, start + SIZE]
    assert log.flush() == log.flushed == log.max_offset
    log.close()


def test_first_roll_starts_at_zero(tmp_path: Path) -> None:
    log = Segments(Files(), tmp_path, SIZE)
    assert log.roll() == 0
    with pytest.raises(ValueError, match="already holds"):
        log.start_at(0)
    log.close()


def test_a_log_may_begin_inside_a_file(tmp_path: Path) -> None:
    log = Segments(Files(), tmp_path, SIZE)
    log.start_at(FAR + 500)
    assert names(tmp_path) == [FAR]
    assert (log.min_offset, log.max_offset, log.flushed) == (FAR, FAR + 500, FAR + 500)
    assert log.append(b"x") == FAR + 500
    log.close()


def test_what_does_not_fit_or_is_not_there_is_refused(tmp_path: Path) -> None:
    log = filled(Files(), tmp_path, 2, start=FAR)
    with pytest.raises(OffsetOutOfRange, match="do not fit in the 0 left"):
        log.append(b"x")
    for offset, size in ((FAR + SIZE - 1, 2), (FAR - 1, 1), (FAR + 2 * SIZE, 1), (0, 1), (FAR, -1)):
        with pytest.raises(OffsetOutOfRange, match=f"holds {FAR} to {FAR + 2 * SIZE}"):
            log.read(offset, size)
        with pytest.raises(OffsetOutOfRange):
            log.read_hot(offset, size)
    log.delete_before(FAR + SIZE)
    with pytest.raises(OffsetOutOfRange):
        log.read(FAR, 1)
    log.close()


def test_load(tmp_path: Path) -> None:
    filled(Files(), tmp_path, 3, start=FAR).close()
    (tmp_path / "a directory").mkdir()
    log = Segments(Files(), tmp_path, SIZE)
    log.load()
    assert (log.min_offset, log.wrote, log.committed, log.flushed) == (FAR, *[FAR + 3 * SIZE] * 3)
    assert log.read_hot(FAR, 1) is None  # not open: opening could wait for the disk
    assert log.read(FAR + SIZE, SIZE) == b"1" * SIZE
    assert log.read_hot(FAR + SIZE, 5) == b"11111"
    log.close()


def test_load_removes_empty_last_files(tmp_path: Path) -> None:
    filled(Files(), tmp_path, 2).close()
    (tmp_path / f"{2 * SIZE:020d}").touch()
    (tmp_path / f"{3 * SIZE:020d}").touch()
    log = Segments(Files(), tmp_path, SIZE)
    log.load()
    assert names(tmp_path) == [0, SIZE]
    assert log.max_offset == 2 * SIZE


def test_load_refuses_what_does_not_belong(tmp_path: Path) -> None:
    filled(Files(), tmp_path, 2).close()
    log = Segments(Files(), tmp_path, SIZE)
    first = tmp_path / f"{0:020d}"
    first.write_bytes(b"")
    with pytest.raises(WrongFileSize, match=f"0 bytes long, expected {SIZE}"):
        log.load()
    first.write_bytes(bytes(SIZE - 1))
    with pytest.raises(WrongFileSize, match="size option"):
        log.load()
    first.write_bytes(bytes(SIZE))
    stray = tmp_path / ".DS_Store"
    stray.write_bytes(b"x")
    with pytest.raises(StrayFile, match=r"\.DS_Store does not belong here"):
        log.load()
    stray.unlink()
    (tmp_path / f"{SIZE // 2:020d}").write_bytes(bytes(SIZE))
    with pytest.raises(StrayFile, match="overlaps"):
        log.load()


def test_gaps_are_reported_and_the_rest_works(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    filled(Files(), tmp_path, 5).close()
    (tmp_path / f"{SIZE:020d}").unlink()
    (tmp_path / f"{2 * SIZE:020d}").unlink()
    log = Segments(Files(), tmp_path, SIZE)
    log.load()
    assert log.gaps == [(SIZE, 3 * SIZE)]
    assert f"missing={SIZE}..{3 * SIZE}" in caplog.text
    assert log.read(4 * SIZE, 3) == b"444"
    assert log.read(3 * SIZE, 3) == b"333"
    assert log.segment_at(2 * SIZE) is None
    assert log.readable(SIZE) == 0
    with pytest.raises(OffsetOutOfRange):
        log.read(SIZE, 1)
    log.truncate_to(2 * SIZE)
    assert (names(tmp_path), log.max_offset) == ([0], SIZE)
    log.close()


def test_a_file_cut_from_outside_is_noticed(tmp_path: Path) -> None:
    log = filled(Files(), tmp_path, 1)
    os.truncate(tmp_path / f"{0:020d}", 50)
    with pytest.raises(Unreadable, match="is 50 bytes long"):
        log.read(40, 20)
    log.close()


def test_several_directories(tmp_path: Path) -> None:
    a, b, old = (str(tmp_path / name) for name in ("a", "b", "old"))
    filled(Files(), Path(old), 2).close()
    log = Segments(Files(), [b, a, old], SIZE, read_only_directories=[old])
    log.load()
    assert (log.min_offset, log.max_offset) == (0, 2 * SIZE)
    for _ in range(3):
        log.roll()
    # sorted(a, b)[index mod 2], for the files number 2, 3 and 4
    assert names(Path(a)) == [2 * SIZE, 4 * SIZE]
    assert names(Path(b)) == [3 * SIZE]
    log.full_directories.add(b)
    log.roll()
    assert names(Path(a))[-1] == 5 * SIZE
    log.full_directories.add(a)
    log.roll()
    log.roll()
    assert names(Path(a))[-1] == 6 * SIZE
    assert names(Path(b))[-1] == 7 * SIZE
    with pytest.raises(StoreError, match="read-only directory"):
        log.truncate_to(SIZE + 5)
    log.close()
    with pytest.raises(StoreError, match="every directory of the log is read-only"):
        Segments(Files(), a, SIZE, read_only_directories=[a]).roll()


# Flushing


def test_flush_covers_every_file_in_order(tmp_path: Path, disk: FaultyFiles) -> None:
    log = filled(disk, tmp_path / "x" / "y", 3)
    assert [segment.start for segment in log.flush_targets()] == [0, SIZE, 2 * SIZE]
    assert log.flush(5) == SIZE
    assert disk.syncs == 1
    assert log.flush() == 3 * SIZE
    assert disk.syncs == 3
    assert log.flush() == 3 * SIZE
    assert disk.syncs == 3
    disk.power_loss(names=True)
    again = Segments(disk, tmp_path / "x" / "y", SIZE)
    again.load()
    assert again.read(2 * SIZE, SIZE) == b"2" * SIZE


def test_a_write_during_a_flush_is_not_claimed(
    tmp_path: Path, disk: FaultyFiles, worker: ThreadPoolExecutor
) -> None:
    log = filled(disk, tmp_path, 1)
    log.roll()
    log.append(b"before")
    disk.stall_syncs()
    flush = worker.submit(log.flush)
    assert disk.wait_for_stalled_sync()
    log.append(b"during")
    disk.release_syncs()
    assert flush.result() == SIZE + 6
    disk.power_loss()
    assert (tmp_path / f"{SIZE:020d}").read_bytes()[:12].rstrip(b"\0") in (b"before", b"beforeduring")
    assert log.flushed == SIZE + 6


def test_a_failed_flush_is_final(tmp_path: Path, disk: FaultyFiles) -> None:
    log = filled(disk, tmp_path, 2)
    disk.fail_syncs(1, path_contains=f"{SIZE:020d}")
    with pytest.raises(FsyncFailed) as first:
        log.flush()
    assert log.flushed == SIZE
    syncs = disk.syncs
    with pytest.raises(FsyncFailed) as second:
        log.flush()
    assert first.value is second.value is log.broken
    assert disk.syncs == syncs
    assert log.flushed == SIZE


def test_unflushed_names_are_synced_with_the_data(tmp_path: Path, disk: FaultyFiles) -> None:
    log = Segments(disk, tmp_path / "t" / "0", SIZE)
    log.roll()
    log.append(b"x")
    disk.power_loss(names=True)
    assert not (tmp_path / "t").exists()
    log = Segments(disk, tmp_path / "t" / "0", SIZE)
    log.roll()
    log.append(b"x")
    log.flush()
    disk.power_loss(names=True)
    assert names(tmp_path / "t" / "0") == [0]


# The next file, ahead of time


def test_prepared_file(tmp_path: Path, disk: FaultyFiles, worker: ThreadPoolExecutor) -> None:
    log = filled(disk, tmp_path, 1)
    assert not log.next_ready
    prepared = log.prepare_next(worker)
    assert prepared is not None
    prepared.result()
    assert log.next_ready
    assert log.prepare_next(worker) is None
    assert names(tmp_path) == [0, SIZE]
    assert log.max_offset == SIZE
    created = disk.syncs
    log.roll()
    assert log.last is prepared.result()
    assert not log.next_ready
    log.append(b"x")
    log.flush()
    assert disk.syncs == created + 2


def test_a_file_never_survives_its_predecessor(
    tmp_path: Path, disk: FaultyFiles, worker: ThreadPoolExecutor
) -> None:
    log = Segments(disk, tmp_path, SIZE)
    log.roll()
    log.append(b"not flushed by anyone")
    prepared = log.prepare_next(worker)
    assert prepared is not None
    prepared.result()
    disk.power_loss(names=True)
    again = Segments(disk, tmp_path, SIZE)
    again.load()
    assert (again.min_offset, again.max_offset, again.gaps) == (0, 2 * SIZE, [])


def test_a_predecessor_that_cannot_be_flushed_breaks_the_log(
    tmp_path: Path, disk: FaultyFiles, worker: ThreadPoolExecutor
) -> None:
    log = Segments(disk, tmp_path, SIZE)
    log.roll()
    log.append(b"in doubt")
    disk.fail_syncs(1)
    prepared = log.prepare_next(worker)
    assert prepared is not None
    assert prepared.exception() is log.broken
    with pytest.raises(FsyncFailed):
        log.flush()
    assert log.flushed == 0


def test_unused_prepared_file_is_removed_on_close(tmp_path: Path, worker: ThreadPoolExecutor) -> None:
    log = filled(Files(), tmp_path, 1)
    prepared = log.prepare_next(worker)
    assert prepared is not None
    prepared.result()
    log.close()
    assert names(tmp_path) == [0]


def test_roll_waits_for_a_slow_preparation(
    tmp_path: Path, disk: FaultyFiles, worker: ThreadPoolExecutor
) -> None:
    log = filled(disk, tmp_path, 1)
    disk.stall_syncs()
    log.prepare_next(worker)
    assert disk.wait_for_stalled_sync()
    threading.Timer(0.05, disk.release_syncs).start()
    assert log.roll() == SIZE
    assert names(tmp_path) == [0, SIZE]


def test_a_preparation_not_begun_is_done_at_once(tmp_path: Path, worker: ThreadPoolExecutor) -> None:
    busy = threading.Event()
    worker.submit(busy.wait, 10)
    log = filled(Files(), tmp_path, 1)
    log.prepare_next(worker)
    assert log.roll() == SIZE
    log.prepare_next(worker)
    log.close()
    busy.set()
    assert names(tmp_path) == [0, SIZE]


def test_no_room_for_the_next_file_is_told_at_the_roll(
    tmp_path: Path, disk: FaultyFiles, worker: ThreadPoolExecutor
) -> None:
    log = filled(disk, tmp_path, 1)
    disk.fill(SIZE - 1)
    prepared = log.prepare_next(worker)
    assert prepared is not None
    assert isinstance(prepared.exception(), DiskFull)
    assert not log.next_ready
    for _ in range(2):  # first what the thread met, then an attempt of its own
        with pytest.raises(DiskFull):
            log.roll()
        assert (log.room, log.max_offset, names(tmp_path)) == (0, SIZE, [0])
    disk.make_room()
    assert log.roll() == SIZE
    assert log.append(b"x") == SIZE


def test_a_prepared_file_that_cannot_be_made_safe_is_not_used(
    tmp_path: Path, disk: FaultyFiles, worker: ThreadPoolExecutor
) -> None:
    log = filled(disk, tmp_path, 1)
    disk.fail_syncs(1)
    log.prepare_next(worker)
    with pytest.raises(FsyncFailed):
        log.roll()
    assert names(tmp_path) == [0]


def test_warm_files_are_written(tmp_path: Path) -> None:
    log = Segments(Files(), tmp_path, SIZE, warm=True)
    log.roll()
    assert os.stat(tmp_path / f"{0:020d}").st_blocks * 512 >= SIZE
    log.close()


# Faults while appending


def test_a_failed_append_leaves_nothing_behind(
    tmp_path: Path, disk: FaultyFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = filled(Files(), tmp_path, 1)
    log.roll()
    log.append(b"good")
    real = os.pwritev
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: real(fd, [b"".join(parts)[:50]], at))

    def full(fd: int, data: bytes, at: int) -> int:
        monkeypatch.undo()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(DiskFull):
        log.append(b"x" * 100)
    assert log.wrote == SIZE + 4
    assert log.append(b"!") == SIZE + 4
    assert (tmp_path / f"{SIZE:020d}").read_bytes().rstrip(b"\0") == b"good!"
    log.close()


def test_read_only_disk(tmp_path: Path, disk: FaultyFiles) -> None:
    log = filled(disk, tmp_path, 1)
    log.roll()
    disk.read_only = True
    with pytest.raises(StoreError, match="Read-only"):
        log.append(b"x")
    assert log.read(0, 1) == b"0"


def test_cold_reads_are_left_to_a_thread(
    tmp_path: Path, disk: FaultyFiles, worker: ThreadPoolExecutor
) -> None:
    log = filled(disk, tmp_path, 2)
    disk.cold = lambda path, offset, size: path.endswith(f"{0:020d}")
    assert log.read_hot(SIZE, 4) == b"1111"
    assert log.read_hot(0, 4) is None
    assert disk.reading_threads == set()
    assert worker.submit(log.read, 0, 4).result() == b"0000"
    assert threading.get_ident() not in disk.reading_threads
    assert len(disk.reading_threads) == 1


# Shrinking


def test_truncation_zeroes_what_it_cuts_off(tmp_path: Path, disk: FaultyFiles) -> None:
    log = filled(disk, tmp_path, 4)
    log.flush()
    log.truncate_to(SIZE + 7)
    assert names(tmp_path) == [0, SIZE]
    assert (log.wrote, log.committed, log.flushed) == (SIZE + 7,) * 3
    disk.power_loss(names=True)
    assert names(tmp_path) == [0, SIZE]
    assert (tmp_path / f"{SIZE:020d}").read_bytes() == b"1" * 7 + bytes(SIZE - 7)


def test_truncation_of_an_unused_tail_syncs_nothing(tmp_path: Path, disk: FaultyFiles) -> None:
    log = Segments(disk, tmp_path, SIZE)
    log.start_at(0)
    log.append(b"abc")
    log.close()
    log = Segments(disk, tmp_path, SIZE)
    log.load()
    syncs = disk.syncs
    log.truncate_to(3)
    assert disk.syncs == syncs
    assert log.append(b"d") == 3
    assert log.read(0, 4) == b"abcd"


def test_truncation_at_the_borders(tmp_path: Path, worker: ThreadPoolExecutor) -> None:
    log = filled(Files(), tmp_path, 3, start=FAR)
    log.prepare_next(worker)
    with pytest.raises(OffsetOutOfRange):
        log.truncate_to(FAR + 3 * SIZE + 1)
    log.truncate_to(FAR + 2 * SIZE)
    assert names(tmp_path) == [FAR, FAR + SIZE, FAR + 2 * SIZE]  # the file that starts there stays, empty
    assert log.room == SIZE
    log.truncate_to(FAR)
    assert (names(tmp_path), log.max_offset, log.room) == ([FAR], FAR, SIZE)
    log.truncate_to(FAR - 1)
    assert (names(tmp_path), log.min_offset, log.max_offset) == ([], -1, 0)
    log.start_at(FAR + SIZE)
    assert log.append(b"x") == FAR + SIZE
    log.close()


def test_deletion_never_takes_the_last_file(tmp_path: Path) -> None:
    log = filled(Files(), tmp_path, 3)
    assert log.delete_before(SIZE - 1) == 0
    assert log.delete_before(SIZE) == 1
    assert log.min_offset == SIZE
    assert log.delete_before(99 * SIZE) == 1
    assert (names(tmp_path), log.min_offset, log.max_offset) == ([2 * SIZE], 2 * SIZE, 3 * SIZE)
    assert log.roll() == 3 * SIZE
    log.close()


def test_a_file_that_cannot_be_deleted_stays_in_the_log(tmp_path: Path, disk: FaultyFiles) -> None:
    log = filled(disk, tmp_path, 3)
    disk.read_only = True
    with pytest.raises(StoreError):
        log.delete_before(2 * SIZE)
    assert log.read(0, 1) == b"0"
    disk.read_only = False
    assert log.delete_before(2 * SIZE) == 2


def test_deletion_while_a_reader_holds_the_file(tmp_path: Path) -> None:
    log = filled(Files(), tmp_path, 2)
    segment = log.first
    assert segment is not None
    file = log.open_files.acquire(segment)
    log.delete_before(SIZE)
    assert file.pread(3, 0) == b"000"
    log.open_files.release(segment)
    assert file.closed
    log.close()


def test_delete_all(tmp_path: Path, worker: ThreadPoolExecutor) -> None:
    log = filled(Files(), tmp_path, 2)
    log.prepare_next(worker)
    log.delete_all()
    assert (names(tmp_path), log.min_offset, log.max_offset, log.room) == ([], -1, 0, 0)
    assert log.roll() == 0
    log.close()


# The transient buffer


def test_transient_appends_are_seen_when_committed(tmp_path: Path, disk: FaultyFiles) -> None:
    log = Segments(disk, tmp_path, SIZE, transient=True)
    log.start_at(0)
    log.append(b"abc")
    log.append([b"de", b"f"])
    assert (log.wrote, log.committed, log.max_offset, log.readable(0)) == (6, 0, 0, 0)
    assert disk.writes == 0
    with pytest.raises(OffsetOutOfRange):
        log.read(0, 1)
    assert log.flush() == 0
    assert log.commit() == 6
    assert disk.writes == 1
    assert log.read(0, 6) == b"abcdef"
    log.append(b"x")
    log.roll()
    log.append(b"y" * 5)
    assert (log.wrote, log.committed) == (SIZE + 5, 6)
    assert log.commit() == SIZE + 5
    assert (log.read(6, 2), log.read(SIZE, 5)) == (b"x\0", b"yyyyy")
    log.roll()
    assert log.commit() == 2 * SIZE
    assert log.flush() == 2 * SIZE


def test_transient_data_is_kept_when_the_commit_fails(tmp_path: Path, disk: FaultyFiles) -> None:
    log = Segments(disk, tmp_path, SIZE, transient=True)
    log.start_at(0)
    log.append(b"a" * 10)
    disk.read_only = True
    with pytest.raises(StoreError):
        log.commit()
    disk.read_only = False
    assert log.committed == 0
    log.append(b"b")
    assert log.commit() == 11
    assert log.read(0, 11) == b"a" * 10 + b"b"


def test_transient_truncation_and_close(tmp_path: Path) -> None:
    log = Segments(Files(), tmp_path, SIZE, transient=True)
    log.start_at(0)
    log.append(b"abcdef")
    log.truncate_to(3)
    assert (log.wrote, log.committed) == (3, 3)
    log.append(b"X")
    log.close()
    assert (tmp_path / f"{0:020d}").read_bytes().rstrip(b"\0") == b"abcX"


# Many queues


def test_many_small_queues_share_few_descriptors(tmp_path: Path) -> None:
    files = Files()
    shared = OpenFiles(files, limit=8)
    queues = [Segments(files, tmp_path / str(i), 200, open_files=shared) for i in range(60)]
    for round_ in range(3):
        for i, queue in enumerate(queues):
            if not queue.room:
                queue.roll()
            queue.append(b"%02d%d" % (i, round_))
    assert len(shared) <= 8
    for i, queue in enumerate(queues):
        assert queue.read(0, 9) == b"%02d0%02d1%02d2" % (i, i, i)
        assert queue.flush() == 9
        queue.close()
    assert len(shared) == 0


def test_threads_read_and_flush_while_the_log_grows_and_shrinks(tmp_path: Path) -> None:
    """With one descriptor to share, files are opened, closed and removed under the readers' hands."""
    log = Segments(Files(), tmp_path, 400, open_files=OpenFiles(Files(), limit=1))
    log.start_at(0)
    stop = threading.Event()
    read = 0

    def reader() -> int:
        count = 0
        while not stop.is_set():
            offset = max(0, log.min_offset)
            while log.readable(offset) >= 8:
                try:
                    data = log.read(offset, 8)
                except OffsetOutOfRange:
                    assert offset < log.min_offset  # deleted meanwhile, and said so
                    break
                assert int(data) == offset
                offset += 8
                count += 1
        return count

    def flusher() -> int:
        while not stop.is_set():
            before = log.committed
            assert log.flush() >= min(before, log.committed)
        return log.flush()

    with ThreadPoolExecutor(3) as threads:
        readers = [threads.submit(reader) for _ in range(2)]
        flushing = threads.submit(flusher)
        try:
            for i in range(3000):
                if log.room < 8:
                    log.roll()
                log.append(b"%08d" % (i * 8))
                if i % 100 == 99:
                    log.delete_before(log.wrote - 1000)
        finally:
            stop.set()
        read = sum(future.result() for future in readers)
        assert flushing.result() == log.wrote == 24_000
    assert read > 0
    assert len(log.open_files) <= 1
    log.close()


# Against a model

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.binary(min_size=1, max_size=90)),
        st.tuples(st.just("append_parts"), st.lists(st.binary(max_size=30), max_size=4)),
        st.tuples(st.just("roll"), st.none()),
        st.tuples(st.just("flush"), st.none()),
        st.tuples(st.just("truncate"), st.floats(0, 1)),
        st.tuples(st.just("delete"), st.floats(0, 1)),
        st.tuples(st.just("reload"), st.none()),
        st.tuples(st.just("power_loss"), st.none()),
    ),
    max_size=40,
)


@settings(max_examples=80, deadline=None)
@given(steps=STEPS, start=st.sampled_from([0, FAR]), limit=st.sampled_from([1, 3]))
def test_behaves_like_one_long_array(steps: list[tuple[str, object]], start: int, limit: int) -> None:
    """The model: the bytes from ``low`` on, how many are flushed, and nothing else."""
    size = 100
    with TemporaryDirectory() as directory:
        disk = FaultyFiles()

        def reopened(end: int) -> Segments:
            log = Segments(disk, directory, size, open_files=OpenFiles(disk, limit))
            log.load()
            if log.last is not None:
                assert log.last.end >= end
                log.truncate_to(end)
            return log

        log = reopened(0)
        log.start_at(start)
        low, content, flushed = start, b"", start
        for step, value in steps:
            high = low + len(content)
            if step in ("append", "append_parts"):
                data = value if isinstance(value, bytes) else b"".join(value)  # type: ignore[arg-type]
                if len(data) > log.room:
                    if len(data) > size:
                        continue
                    content += bytes(log.room)
                    assert log.roll() == low + len(content)
                assert log.append(value) == low + len(content)  # type: ignore[arg-type]
                content += data
            elif step == "roll":
                content += bytes(log.room)
                assert log.roll() == low + len(content)
            elif step == "flush":
                flushed = high
                assert log.flush() == flushed
            elif step == "truncate":
                assert isinstance(value, float)
                end = low + int(value * len(content))
                log.truncate_to(end)
                content = content[: end - low]
                flushed = min(flushed, end)
            elif step == "delete":
                assert isinstance(value, float)
                assert log.last is not None
                asked = low + int(value * (len(content) + size))
                new_low = min(max(low, asked - asked % size), log.last.start)
                assert log.delete_before(asked) == (new_low - low) // size
                content, low = content[new_low - low :], new_low
                flushed = max(flushed, low)
            elif step == "reload":
                log.close()
                log = reopened(high)
                flushed = log.flushed = min(flushed, high)
            elif step == "power_loss":
                disk.power_loss()
                content = content[: flushed - low]
                log = reopened(flushed)
                if log.last is None:  # not one file was ever flushed
                    assert content == b""
                    return
            high = low + len(content)
            assert (log.min_offset, log.wrote, log.committed) == (low, high, high)
            assert log.flushed == flushed
            assert len(log.open_files) <= limit
            for segment in log.all:
                count = log.readable(segment.start)
                got = log.read(segment.start, count)
                assert got == content[segment.start - low :][:count]
                with open(segment.path, "rb") as file:
                    assert not file.read()[count:].strip(b"\0"), "stale bytes after the end"
        log.close()
