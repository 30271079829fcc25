from __future__ import annotations

import os
import threading
from pathlib import Path

import pytest

from kerolox.store.disk.files import File, Files
from kerolox.store.disk.segment import OpenFiles, Segment, remove_segment, segment_name
from kerolox.store.errors import SegmentGone


def make(directory: Path, count: int, size: int = 100) -> list[Segment]:
    files = Files()
    segments = []
    for i in range(count):
        path = directory / segment_name(i * size)
        files.create(path, size).close()
        segments.append(Segment(str(path), i * size, size))
    return segments


def use(open_files: OpenFiles, segment: Segment) -> File:
    file = open_files.acquire(segment)
    open_files.release(segment)
    return file


def test_names() -> None:
    assert segment_name(0) == "00000000000000000000"
    assert segment_name(1073741824) == "00000000001073741824"
    assert segment_name(5 << 40) == "00000005497558138880"


def test_thousands_of_files_and_few_descriptors(tmp_path: Path) -> None:
    segments = make(tmp_path, 300)
    open_files = OpenFiles(Files(), limit=10)
    before = len(os.listdir("/proc/self/fd")) if os.path.isdir("/proc/self/fd") else None
    for _ in range(2):
        for segment in segments:
            use(open_files, segment).pwrite(b"x", 0)
            assert len(open_files) <= 10
    if before is not None:
        assert len(os.listdir("/proc/self/fd")) <= before + 10
    assert sum(segment.is_open for segment in segments) == 10
    for segment in segments:
        open_files.close_idle(segment)
    assert len(open_files) == 0


def test_the_longest_idle_is_closed_first(tmp_path: Path) -> None:
    a, b, c = make(tmp_path, 3)
    open_files = OpenFiles(Files(), limit=2)
    use(open_files, a)
    use(open_files, b)
    use(open_files, a)
    use(open_files, c)
    assert [s.is_open for s in (a, b, c)] == [True, False, True]


def test_unflushed_files_are_closed_last(tmp_path: Path) -> None:
    a, b, c, d = make(tmp_path, 4)
    open_files = OpenFiles(Files(), limit=2)
    a.dirty = True
    for segment in (a, b, c):
        use(open_files, segment)
    assert [s.is_open for s in (a, b, c)] == [True, False, True]
    c.dirty = True
    use(open_files, d)
    # The one just opened is in use while room is made, the others are both dirty: the oldest goes.
    assert [s.is_open for s in (a, c, d)] == [False, True, True]


def test_files_in_use_stay_open_beyond_the_limit(tmp_path: Path) -> None:
    segments = make(tmp_path, 5)
    open_files = OpenFiles(Files(), limit=2)
    held = [open_files.acquire(segment) for segment in segments]
    assert all(not file.closed for file in held)
    for segment in segments:
        open_files.release(segment)
    assert [segment.is_open for segment in segments] == [False, False, False, True, True]


def test_a_removed_file_serves_its_readers_to_the_end(tmp_path: Path) -> None:
    (segment,) = make(tmp_path, 1)
    open_files = OpenFiles(Files())
    file = open_files.acquire(segment)
    file.pwrite(b"still here", 0)
    remove_segment(open_files, segment)
    assert not os.path.exists(segment.path)
    assert file.pread(10, 0) == b"still here"
    second = open_files.acquire(segment)  # a reader that found it before, while another holds it
    open_files.release(segment)
    assert not second.closed
    open_files.release(segment)
    assert file.closed
    assert open_files.acquire_if_open(segment) is None
    with pytest.raises(SegmentGone):
        open_files.acquire(segment)


def test_removed_while_being_opened(tmp_path: Path) -> None:
    (segment,) = make(tmp_path, 1)
    open_files = OpenFiles(Files())
    late = open_files.files.open(segment.path)
    remove_segment(open_files, segment)
    with pytest.raises(SegmentGone):
        open_files.adopt(segment, late)
    assert late.closed


def test_opened_by_two_threads_at_once(tmp_path: Path) -> None:
    (segment,) = make(tmp_path, 1)
    both_opened = threading.Barrier(2)

    class SlowFiles(Files):
        def open(self, path: str | os.PathLike[str], *, read_only: bool = False) -> File:
            file = super().open(path, read_only=read_only)
            both_opened.wait(10)
            return file

    open_files = OpenFiles(SlowFiles())
    got: list[File] = []
    threads = [threading.Thread(target=lambda: got.append(open_files.acquire(segment))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert got[0] is got[1]
    assert not got[0].closed
    open_files.release(segment)
    open_files.release(segment)
    open_files.close_idle(segment)
    assert got[0].closed


def test_a_limit_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 1"):
        OpenFiles(Files(), limit=0)
