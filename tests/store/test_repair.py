"""A repair that is killed, or finds the disk full, at every file operation it makes."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from kerolox.store.disk.files import Buffer, File, Files, PathLike
from kerolox.store.errors import StoreError, disk_error
from kerolox.store.message_store import MessageStore
from kerolox.store.offline.mend import plan_cut, plan_skip
from kerolox.store.offline.repair_note import RepairNote, RepairUnfinished
from kerolox.store.offline.verify import verify
from kerolox.store.repair import Repair
from kerolox.testing.clock import ManualClock

from .dispatch.test_rebuild import LOG_FILE, bodies, consume, damage, fill, layout_of, options

COUNT = 130


class Killed(Exception):
    """The process died in a file operation."""


class DyingFile(File):
    __slots__ = ("files",)

    files: DyingFiles

    def pwrite(self, data: Buffer, offset: int) -> None:
        if self.files.dies():
            if len(data) > 1:
                super().pwrite(bytes(data)[: len(data) // 2], offset)  # a write that ended half-way
            self.files.die("write", self.path)
        super().pwrite(data, offset)

    def truncate(self, size: int) -> None:
        self.files.step("truncate", self.path)
        super().truncate(size)

    def allocate(self, size: int, *, write_zeros: bool = False) -> None:
        self.files.step("allocate", self.path)
        super().allocate(size, write_zeros=write_zeros)

    def reserve(self, offset: int, end: int) -> None:
        self.files.step("reserve", self.path)
        super().reserve(offset, end)

    def sync(self) -> None:
        self.files.step("flush", self.path)


class DyingFiles(Files):
    """Changes files so many times, then no more: killed, or out of space for all that needs some."""

    def __init__(self, steps: int, *, full: bool = False) -> None:
        self.left = steps
        self.full = full

    def dies(self) -> bool:
        self.left -= 1
        return self.left < 0

    def die(self, action: str, path: PathLike) -> None:
        if self.full:
            raise disk_error(OSError(errno.ENOSPC, "No space left on device"), action, str(path))
        raise Killed

    def step(self, action: str, path: PathLike) -> None:
        if self.dies() and not (self.full and action in ("remove", "flush", "rename")):
            self.die(action, path)

    def _file(self, path: str, fd: int, size: int, read_only: bool) -> File:
        file = DyingFile(path, fd, size, read_only=read_only)
        file.files = self
        return file

    def create(
        self, path: PathLike, size: int = 0, *, write_zeros: bool = False, sparse: bool = False
    ) -> File:
        self.step("create", path)
        return super().create(path, size, write_zeros=write_zeros, sparse=sparse)

    def remove(self, path: PathLike) -> bool:
        self.step("remove", path)
        return super().remove(path)

    def rename(self, source: PathLike, target: PathLike) -> None:
        self.step("rename", source)
        super().rename(source, target)

    def _make_dir(self, path: str) -> None:
        self.step("make directory", path)
        super()._make_dir(path)

    def set_mtime(self, path: PathLike, mtime_s: float) -> None:
        self.step("set time", path)
        super().set_mtime(path, mtime_s)


def skip(path: Path, offset: int, files: Files | None = None) -> None:
    """``kerolox store repair --skip``."""
    repair = Repair(layout_of(path), files, ManualClock())
    plan = plan_skip(layout_of(path), offset)
    if plan.pieces:
        repair.skip(plan)
    repair.rebuild(queues=True, index=True)


def cut(path: Path, offset: int, files: Files | None = None) -> None:
    """``kerolox store repair --cut``."""
    repair = Repair(layout_of(path), files, ManualClock())
    plan = plan_cut(layout_of(path), offset)
    if plan is not None:
        repair.cut(plan)
    repair.rebuild(queues=True, index=True)


def missing_file(path: Path, places: list[tuple[int, int, int]]) -> tuple[int, list[int]]:
    (path / "commitlog" / f"{LOG_FILE:020d}").unlink()
    kept = [n for n, place in enumerate(places) if not LOG_FILE <= place[0] < 2 * LOG_FILE]
    return LOG_FILE, kept


def damaged_part(path: Path, places: list[tuple[int, int, int]]) -> tuple[int, list[int]]:
    begin = places[70][0]
    damage(path, begin, b"\xff" * 1500)
    kept = [n for n, place in enumerate(places) if not begin <= place[0] < begin + 1500]
    return begin, kept


def cut_off(path: Path, places: list[tuple[int, int, int]]) -> tuple[int, list[int]]:
    return places[40][0], list(range(40))


Way = tuple[
    Callable[[Path, list[tuple[int, int, int]]], tuple[int, list[int]]],
    Callable[[Path, int, Files | None], None],
]
WAYS: dict[str, Way] = {
    "missing file": (missing_file, skip),
    "damaged part": (damaged_part, skip),
    "cut": (cut_off, cut),
}


async def served(path: Path) -> list[str]:
    async with MessageStore(options(path), clock=ManualClock()) as store:
        return sorted([*await consume(store, "T0"), *await consume(store, "T1")])


@pytest.mark.parametrize("full", [False, True], ids=["killed", "disk full"])
@pytest.mark.parametrize("way", WAYS)
async def test_interrupted_anywhere_it_is_refused_by_name_and_goes_on(
    tmp_path: Path, way: str, full: bool
) -> None:
    harm, repair = WAYS[way]
    places = await fill(tmp_path / "origin", COUNT)
    offset, kept = harm(tmp_path / "origin", places)
    shutil.copytree(tmp_path / "origin", tmp_path / "counted")
    counting = DyingFiles(1 << 30)
    repair(tmp_path / "counted", offset, counting)
    steps = (1 << 30) - counting.left
    assert steps > 30
    refused = 0
    # Every step; of the many that only build new queues each third.
    for number in [n for n in range(steps) if n < 25 or n > steps - 25 or n % 3 == 0]:
        path = tmp_path / f"at {number}"
        shutil.copytree(tmp_path / "origin", path)
        try:
            repair(path, offset, DyingFiles(number, full=full))
        except (Killed, StoreError):
            if RepairNote(Files(), path).load() is not None:
                refused += 1
                with pytest.raises(RepairUnfinished, match=f"kerolox store repair {path} --"):
                    await served(path)
                assert any("partly repaired" in found.what for found in verify(layout_of(path)).findings)
            repair(path, offset, None)  # the same command goes on
        assert await served(path) == sorted(bodies(kept)), number
        assert verify(layout_of(path)).clean, number
        assert RepairNote(Files(), path).load() is None
        shutil.rmtree(path)
    assert refused > 10


async def test_sums_do_not_outlive_the_log_they_are_of(tmp_path: Path) -> None:
    """Without the note of a repair, as when its parts are called one by one: sums of the old queues would let
    a start believe queues that point into what was stepped over."""
    from kerolox.store.disk.sums import SumsFile
    from kerolox.store.offline.mend import apply_skip

    places = await fill(tmp_path, COUNT)
    offset, _ = missing_file(tmp_path, places)
    assert SumsFile(Files(), tmp_path).load() is not None
    with pytest.raises(Killed):
        apply_skip(layout_of(tmp_path), plan_skip(layout_of(tmp_path), offset), DyingFiles(5))
    assert SumsFile(Files(), tmp_path).load() is None


async def test_an_own_blank_file_is_known(tmp_path: Path) -> None:
    places = await fill(tmp_path, COUNT)
    offset, kept = missing_file(tmp_path, places)
    repair = Repair(layout_of(tmp_path), clock=ManualClock())
    repair.skip(plan_skip(layout_of(tmp_path), offset))
    assert plan_skip(layout_of(tmp_path), offset).pieces == []
    skip(tmp_path, offset)
    assert await served(tmp_path) == sorted(bodies(kept))
