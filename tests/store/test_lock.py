from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kerolox.store.disk.files import Files
from kerolox.store.disk.lock import StoreLock, _holder_pid
from kerolox.store.errors import StoreLocked
from kerolox.testing.faults import FaultyFiles

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="POSIX record locks")

# What a Java broker does: FileChannel.tryLock(0, 1, false) is fcntl(F_SETLK) on the first byte.
HOLD = """
import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
try:
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 0)
except OSError:
    print("refused", flush=True)
    sys.exit()
print("held", flush=True)
sys.stdin.read()
"""


@contextmanager
def another_process(path: Path) -> Iterator[tuple[int, str]]:
    with subprocess.Popen(
        [sys.executable, "-c", HOLD, str(path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process.pid, process.stdout.readline().strip()
        finally:
            process.communicate("")


def test_takes_and_marks(tmp_path: Path) -> None:
    with StoreLock(Files(), tmp_path / "store") as lock:
        assert lock.held
        lock.take()
        # os.stat, not a read: opening and closing the file here would drop the lock.
        assert (tmp_path / "store" / "lock").stat().st_size == 4
    assert not lock.held
    assert (tmp_path / "store" / "lock").read_bytes() == b"lock"
    lock.release()


def test_another_process_is_kept_out(tmp_path: Path) -> None:
    with StoreLock(Files(), tmp_path), another_process(tmp_path / "lock") as (_, said):
        assert said == "refused"
    with another_process(tmp_path / "lock") as (_, said):
        assert said == "held"


def test_the_holder_is_named(tmp_path: Path) -> None:
    lock = StoreLock(Files(), tmp_path)
    with another_process(tmp_path / "lock") as (pid, said):
        assert said == "held"
        with pytest.raises(StoreLocked, match=rf"process {pid} \(.*python.*Stop the other") as caught:
            lock.take()
        assert caught.value.pid == pid
        assert not lock.held
        with pytest.raises(StoreLocked):
            lock.take()
    lock.take()
    lock.release()


def test_the_note_of_the_store_names_the_holder_when_the_kernel_does_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kerolox.store.disk.lock._holder_pid", lambda fd: None)
    with another_process(tmp_path / "lock"):
        with pytest.raises(StoreLocked, match=r"by another process\. Only"):
            StoreLock(Files(), tmp_path).take()
        (tmp_path / "abort").write_bytes(b"4711")
        with pytest.raises(StoreLocked, match="probably 4711"):
            StoreLock(Files(), tmp_path).take()


def test_a_second_store_in_this_process_is_refused_and_does_not_drop_the_lock(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path / "store")
    with StoreLock(Files(), tmp_path / "store"):
        for path in (tmp_path / "store", tmp_path / "link"):
            with pytest.raises(StoreLocked, match="this process"):
                StoreLock(Files(), path).take()
        with another_process(tmp_path / "store" / "lock") as (_, said):
            assert said == "refused"
    with StoreLock(Files(), tmp_path / "link"):
        pass


def test_a_dead_process_of_a_test_holds_nothing(tmp_path: Path) -> None:
    files = FaultyFiles()
    StoreLock(files, tmp_path).take()
    files.kill()
    with StoreLock(files, tmp_path) as lock:
        assert lock.held


def test_nobody_holds_a_free_lock(tmp_path: Path) -> None:
    with Files().create(tmp_path / "lock") as file:
        assert _holder_pid(file.fileno()) is None
