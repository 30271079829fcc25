"""Files that are replaced as a whole, in order, newest last."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path

import pytest

from kerolox import atomic_file
from kerolox.atomic_file import LatestSave, write_atomically


def test_the_file_is_replaced_and_nothing_else_is_left(tmp_path: Path) -> None:
    target = tmp_path / "deep" / "file.json"
    write_atomically(target, b"one")
    target.chmod(0o600)
    write_atomically(target, b"two")
    assert target.read_bytes() == b"two"
    assert target.stat().st_mode & 0o777 == 0o600
    assert list(target.parent.iterdir()) == [target]


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target = tmp_path / "file.json"
    write_atomically(target, b"one")

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(atomic_file.os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_atomically(target, b"two")
    assert target.read_bytes() == b"one"
    assert list(tmp_path.iterdir()) == [target]


async def test_saves_that_pile_up_are_written_once_with_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[bytes] = []
    begun, may_go_on = threading.Event(), threading.Event()

    def slow(path: Path, content: bytes) -> None:
        begun.set()
        assert may_go_on.wait(10)
        written.append(content)

    monkeypatch.setattr(atomic_file, "write_atomically", slow)
    file = LatestSave(tmp_path / "file")
    first = file.save(b"0")
    assert await asyncio.to_thread(begun.wait, 10)
    later = [file.save(str(number).encode()) for number in range(1, 50)]
    may_go_on.set()
    await asyncio.gather(first, *later)
    assert written == [b"0", b"49"]
    await file.close()


async def test_an_error_reaches_those_who_asked_and_the_next_save_works(tmp_path: Path) -> None:
    blocker = tmp_path / "blocker"
    blocker.write_bytes(b"")
    file = LatestSave(blocker / "file")
    with pytest.raises(OSError, match="blocker"):
        await file.save(b"x")
    blocker.unlink()
    await file.save(b"y")
    assert (blocker / "file").read_bytes() == b"y"


async def test_close_waits_for_the_last_save(tmp_path: Path) -> None:
    file = LatestSave(tmp_path / "file")
    file.save(b"x")
    await file.close()
    assert (tmp_path / "file").read_bytes() == b"x"
