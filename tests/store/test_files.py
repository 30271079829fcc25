from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kerolox.compiled import load
from kerolox.store.disk import files as files_module
from kerolox.store.disk.files import PAGE, DiskUsage, File, Files
from kerolox.store.errors import (
    DiskError,
    DiskFull,
    FileAccessDenied,
    FileExists,
    FileMissing,
    FsyncFailed,
    ReadOnlyDisk,
    StoreError,
    TooManyOpenFiles,
    disk_error,
)
from kerolox.store.queue.entry import SIMPLE

CORE = load()
READ_MESSAGES = [
    files_module._read_messages,
    *([CORE.read_messages] if hasattr(CORE, "read_messages") else []),
]
READ_NOW = [files_module._read_now, *([CORE.read_now] if hasattr(CORE, "read_now") else [])]


@pytest.fixture
def files() -> Files:
    return Files()


def test_write_and_read_back(files: Files, tmp_path: Path) -> None:
    file = files.create(tmp_path / "a", 10_000)
    file.pwrite(b"hello", 4094)
    file.pwritev([b"one", bytearray(b"two"), memoryview(b"three")], 9989)
    assert file.pread(7, 4093) == b"\0hello\0"
    assert file.pread(100, 9989) == b"onetwothree"
    assert file.pread(10, 20_000) == b""
    file.sync()
    file.close()
    file.close()
    assert file.closed
    assert files.size(tmp_path / "a") == 10_000


def test_many_parts_and_growth(files: Files, tmp_path: Path) -> None:
    file = files.create(tmp_path / "a")
    file.pwritev([b"%05d" % i for i in range(3000)], 0)
    assert file.size == 15_000
    assert file.pread(15_000, 0) == b"".join(b"%05d" % i for i in range(3000))
    file.truncate(7)
    assert file.size == files.size(tmp_path / "a") == 7
    file.close()


@pytest.mark.parametrize("write_zeros", [False, True])
def test_created_files_have_blocks(files: Files, tmp_path: Path, write_zeros: bool) -> None:
    size = 3 * 1024 * 1024 + 5
    file = files.create(tmp_path / "a", size, write_zeros=write_zeros)
    assert os.stat(tmp_path / "a").st_blocks * 512 >= size
    assert file.pread(size, 0) == bytes(size)
    file.close()


def test_zeros_are_written_where_blocks_cannot_be_reserved(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    file = files.create(tmp_path / "a", 100_000)
    assert os.stat(tmp_path / "a").st_blocks * 512 >= 100_000
    file.close()


def test_no_part_of_a_file_stays_when_there_is_no_room(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(fd: int, offset: int, size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", refuse)
    with pytest.raises(DiskFull, match=r"allocate .*/a at byte 4096: No space left.*free space") as caught:
        files.create(tmp_path / "a", 4096)
    assert caught.value.retriable
    assert caught.value.code == 14
    assert files.list_dir(tmp_path) == []


def test_short_writes_and_reads_are_completed(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_pwrite, real_pread = os.pwrite, os.pread
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: real_pwrite(fd, bytes(data)[:3], at))
    monkeypatch.setattr(os, "pwritev", lambda fd, parts, at: real_pwrite(fd, parts[0][:1], at))
    monkeypatch.setattr(os, "pread", lambda fd, size, at: real_pread(fd, min(size, 2), at))
    file = files.create(tmp_path / "a")
    file.pwrite(b"0123456789", 0)
    file.pwritev([b"abc", b"def"], 10)
    assert file.pread(16, 0) == b"0123456789abcdef"
    file.close()


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="the system cannot tell hot from cold")
@pytest.mark.parametrize("may_wait", [False, True])
@pytest.mark.parametrize("read_messages", READ_MESSAGES)
def test_messages_of_entries_come_without_what_lies_between(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, may_wait: bool, read_messages: Any
) -> None:
    monkeypatch.setattr(files_module, "read_messages", read_messages)
    base = 5_000_000  # where the file begins in the log
    file = files.create(tmp_path / "a", 1_000_000)
    data = os.urandom(1_000_000)
    file.pwrite(data, 0)

    def read(*places: tuple[int, int]) -> bytes | None:
        entries = b"".join(SIMPLE.pack(base + at, size, 7) for at, size in places)
        return file.read_messages(entries + b"more", len(places), base, may_wait=may_wait)

    def expected(*places: tuple[int, int]) -> bytes:
        return b"".join(data[at : at + size] for at, size in places)

    near = [(100, 50), (150, 50), (210, 40), (250, 100), (9_000, 20), (60_000, 300), (700_000, 299_999)]
    assert read(*near) == expected(*near)
    many = [(at, 90) for at in range(0, 300_000, 100)]  # more pieces than one call takes
    assert read(*many) == expected(*many)
    alone = [(at, 200) for at in range(0, 1_000_000, 20_000)]  # each too far from the next one
    assert read(*alone) == expected(*alone)
    assert read() == b""
    assert read((100, 50), (999_990, 20)) is None  # behind the end of the file
    file.close()
    with pytest.raises(DiskError):
        read((100, 50))


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="the system cannot tell hot from cold")
def test_hot_reads(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file = files.create(tmp_path / "a", 1_000_000)
    data = os.urandom(600_000)
    file.pwrite(data, 100)
    for read_now in READ_NOW:
        monkeypatch.setattr(files_module, "read_now", read_now)
        assert file.pread_hot(600_000, 100) == data  # large: other threads run meanwhile
        assert file.pread_hot(50, 100) == data[:50]
        assert file.pread_hot(0, 100) == b""
        assert file.pread_hot(50, 999_990) is None  # not all there: the caller's thread finds out why
        with pytest.raises(OSError, match="Bad file descriptor"):
            read_now(-1, 1, 0)
    monkeypatch.setattr(files_module, "read_now", files_module._read_now)

    def partly_cold(fd: int, buffers: list[memoryview], offset: int, flags: int) -> int:
        return 10

    def cold(fd: int, buffers: list[memoryview], offset: int, flags: int) -> int:
        raise BlockingIOError(errno.EAGAIN, "would block")

    def refused(fd: int, buffers: list[memoryview], offset: int, flags: int) -> int:
        raise OSError(errno.EOPNOTSUPP, "not supported")

    monkeypatch.setattr(os, "preadv", partly_cold)
    assert file.pread_hot(50, 100) is None
    monkeypatch.setattr(os, "preadv", cold)
    assert file.pread_hot(50, 100) is None
    monkeypatch.setattr(os, "preadv", refused)
    assert file.pread_hot(50, 100) == data[:50]
    file.close()


@pytest.mark.skipif(not hasattr(os, "RWF_NOWAIT"), reason="the system cannot tell hot from cold")
def test_a_page_the_system_dropped_is_cold(files: Files, tmp_path: Path) -> None:
    file = files.create(tmp_path / "a", 1 << 20)
    file.pwrite(b"x" * (1 << 20), 0)
    file.sync()
    os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if file.pread_hot(4096, 512 * 1024) is not None:
        pytest.skip("this file system keeps the pages (tmpfs) or cannot tell")
    assert file.pread(4096, 512 * 1024) == b"x" * 4096
    assert file.pread_hot(4096, 512 * 1024) == b"x" * 4096
    file.close()


def test_zeroing_touches_only_what_is_not_zero(files: Files, tmp_path: Path) -> None:
    size = 4 * 1024 * 1024
    file = files.create(tmp_path / "a", size)
    assert file.zero(0, size) is False
    file.pwrite(b"keep" + b"x" * 10, 5000)
    file.pwrite(b"far away", 3_000_000)
    file.pwrite(b"end", size - 3)
    assert file.zero(5004, size - 1) is True
    content = bytearray(size)
    content[5000:5004] = b"keep"
    content[size - 1 :] = b"d"
    assert file.pread(size, 0) == bytes(content)
    assert file.zero(5004, size - 1) is False
    file.close()


def test_zeroing_without_knowing_where_data_is(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "SEEK_DATA", raising=False)
    file = files.create(tmp_path / "a", 2_500_000)
    file.pwrite(b"x" * 2_500_000, 0)
    assert file.zero(1_000_001, 2_400_000) is True
    assert file.pread(2_500_000, 0) == b"x" * 1_000_001 + bytes(1_399_999) + b"x" * 100_000
    file.close()


def test_works_without_the_calls_other_systems_lack(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("pread", "pwrite", "pwritev", "posix_fallocate", "fdatasync", "SEEK_DATA"):
        monkeypatch.delattr(os, name, raising=False)
    monkeypatch.setattr(files_module, "_NOWAIT", None)
    file = files.create(tmp_path / "a", 10_000)
    file.pwritev([b"ab", b"cd"], 9000)
    file.sync()
    assert file.pread_hot(4, 9000) == b"abcd"
    assert file.pread(2, 9002) == b"cd"
    file.close()


def test_imports_without_posix_modules() -> None:
    code = (
        "import sys\n"
        "sys.modules['fcntl'] = None; sys.modules['resource'] = None\n"
        "import kerolox.store.disk.segments, kerolox.store.disk.lock, kerolox.store.disk.checkpoint\n"
        "import kerolox.testing.faults\n"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_open_and_create_say_what_is_wrong(files: Files, tmp_path: Path) -> None:
    with pytest.raises(FileMissing, match=r"open .*/nothing"):
        files.open(tmp_path / "nothing")
    files.create(tmp_path / "a").close()
    with pytest.raises(FileExists):
        files.create(tmp_path / "a")
    with pytest.raises(FileMissing):
        files.size(tmp_path / "nothing")
    reader = files.open(tmp_path / "a", read_only=True)
    with pytest.raises(DiskError, match="write"):
        reader.pwrite(b"x", 0)
    reader.close()
    with pytest.raises(DiskError):
        reader.pread(1, 0)


@pytest.mark.parametrize(
    ("number", "kind"),
    [
        (errno.ENOSPC, DiskFull),
        (errno.EDQUOT, DiskFull),
        (errno.EROFS, ReadOnlyDisk),
        (errno.EACCES, FileAccessDenied),
        (errno.EMFILE, TooManyOpenFiles),
        (errno.EIO, DiskError),
    ],
)
def test_kinds_of_errors(number: int, kind: type[StoreError]) -> None:
    error = disk_error(OSError(number, os.strerror(number)), "write", "/x/y", 77)
    assert type(error) is kind
    assert (error.path, error.offset, error.os_error) == ("/x/y", 77, number)
    assert "/x/y at byte 77" in str(error)
    assert "Next: " in str(error)


def test_failed_sync(files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(fd: int) -> None:
        raise OSError(errno.EIO, "Input/output error")

    file = files.create(tmp_path / "a", 10)
    monkeypatch.setattr(files_module, "_sync_data", refuse)
    with pytest.raises(FsyncFailed, match=r"flush of .*/a failed") as caught:
        file.sync()
    assert not caught.value.retriable
    file.close()


def test_directories(files: Files, tmp_path: Path) -> None:
    deep = tmp_path / "a" / "b" / "c"
    assert files.make_dirs(deep) == [str(tmp_path / "a"), str(tmp_path / "a" / "b"), str(deep)]
    assert files.make_dirs(deep) == []
    files.create(deep / "2").close()
    files.create(deep / "1").close()
    assert files.list_dir(deep) == ["1", "2"]
    assert files.list_dir(tmp_path / "nothing") == []
    assert files.is_dir(deep)
    assert not files.is_dir(deep / "1")
    files.sync_dir(deep)
    with pytest.raises(DiskError, match="make directory"):
        files.make_dirs(deep / "1" / "x")
    assert files.remove(deep / "1") is True
    assert files.remove(deep / "1") is False
    assert files.remove_tree(tmp_path / "a") is True
    assert files.remove_tree(tmp_path / "a") is False
    assert not files.exists(tmp_path / "a")


def test_mtime(files: Files, tmp_path: Path) -> None:
    files.create(tmp_path / "a").close()
    files.set_mtime(tmp_path / "a", 1_000_000.5)
    assert files.mtime_s(tmp_path / "a") == 1_000_000.5


def test_write_atomic(files: Files, tmp_path: Path) -> None:
    path = tmp_path / "topics.json"
    assert files.read_if_exists(path) is None
    files.write_atomic(path, b"one", keep_backup=True)
    assert files.list_dir(tmp_path) == ["topics.json"]
    (tmp_path / "topics.json.tmp").write_bytes(b"left by a crash, and longer")
    files.write_atomic(path, b"two", keep_backup=True)
    assert files.read(path) == b"two"
    assert files.read(str(path) + ".bak") == b"one"
    files.write_atomic(path, b"")
    assert files.read(path) == b""
    assert files.list_dir(tmp_path) == ["topics.json", "topics.json.bak"]


def test_write_atomic_in_the_working_directory(
    files: Files, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files.write_atomic("x", b"1")
    assert files.read("x") == b"1"


def test_used_ratio_is_rounded_up_over_what_the_process_may_use() -> None:
    # 100 in all, 10 reserved for root: 30 used and 60 usable is 33.3 %.
    assert DiskUsage(total=100, free=70, available=60).ratio == 0.34
    assert DiskUsage(total=100, free=50, available=50).ratio == 0.5
    assert DiskUsage(total=100, free=10, available=0).ratio == 1.0
    assert DiskUsage(total=100, free=100, available=100).ratio == 0.0
    assert DiskUsage(total=0, free=0, available=0).ratio == -1.0


def test_disk_usage(files: Files, tmp_path: Path) -> None:
    usage = files.disk_usage(tmp_path)
    assert usage.total >= usage.free >= usage.available > 0
    assert 0 <= files.used_ratio(tmp_path) <= 1
    assert files.used_ratio(tmp_path, enough=usage.total + 1) == files.used_ratio(tmp_path) > 0
    assert files.used_ratio(tmp_path, enough=1) == 0
    assert files.used_ratio(tmp_path / "nothing") == -1.0
    with pytest.raises(FileMissing):
        files.disk_usage(tmp_path / "nothing")


def test_reads_past_a_page_boundary(files: Files, tmp_path: Path) -> None:
    file: File = files.create(tmp_path / "a", 3 * PAGE)
    file.pwrite(b"ab", PAGE - 1)
    assert file.pread_hot(2, PAGE - 1) == b"ab"
    file.close()


def test_a_name_that_cannot_be_looked_at_is_not_one_that_is_missing(files: Files, tmp_path: Path) -> None:
    assert not files.exists(tmp_path / "none")
    assert not files.is_dir(tmp_path / "none")
    assert not files.exists(tmp_path / ("n" * 300))
    (tmp_path / "file").write_bytes(b"")
    assert not files.exists(tmp_path / "file" / "below")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    for look in (files.exists, files.is_dir, files.remove_tree, files.make_dirs):
        with pytest.raises(DiskError, match=r"cannot look at .*loop") as raised:
            look(tmp_path / "loop" / "below")
        assert raised.value.os_error == errno.ELOOP
