"""The folder of the user's own: what others put in its place is not used."""

from __future__ import annotations

import os
import stat
import tempfile
from pathlib import Path

import pytest

from kerolox.errors import KeroloxError
from kerolox.own_folder import own_folder
from kerolox.pipeline.audit.report_place import AddressPlace
from kerolox.pipeline.lake.remote_store import RemoteStore
from kerolox.store.disk.files import Files
from kerolox.store.disk.lock import StoreLock
from kerolox.store.errors import DiskError

pytestmark = pytest.mark.skipif(os.name != "posix", reason="rights of files are those of POSIX")


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder that everybody shares."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def test_it_is_for_its_owner_only(temporary: Path) -> None:
    before = os.umask(0)
    try:
        found = own_folder("archives", "x")
    finally:
        os.umask(before)
    assert found.is_dir()
    (top,) = temporary.iterdir()
    assert top.name == f"kerolox-{os.getuid()}"
    assert mode(top) == 0o700
    top.chmod(0o755)  # as earlier versions made it
    assert own_folder("archives", "x") == found
    assert mode(top) == 0o700


def test_a_link_in_its_place_is_refused(temporary: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (temporary / f"kerolox-{os.getuid()}").symlink_to(elsewhere)
    with pytest.raises(KeroloxError, match="is not a folder"):
        own_folder("archives", "x")
    assert list(elsewhere.iterdir()) == []


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives files away")
def test_a_folder_of_another_user_is_refused(temporary: Path) -> None:
    theirs = temporary / f"kerolox-{os.getuid()}"
    theirs.mkdir()
    os.chown(theirs, 12345, 12345)
    with pytest.raises(KeroloxError, match="belongs to user 12345"):
        own_folder("archives", "x")
    assert list(theirs.iterdir()) == []


def test_locks_and_work_for_object_stores_are_in_it(temporary: Path) -> None:
    store = RemoteStore("memory://bucket/archive")
    place = AddressPlace(RemoteStore("memory://bucket/report"))
    for folder in (store.lock_folder, place._near()[0]):
        assert folder.is_relative_to(temporary / f"kerolox-{os.getuid()}")


def test_a_lock_does_not_follow_a_link(tmp_path: Path) -> None:
    """Another user may have put one there that leads to a file of this user."""
    precious = tmp_path / "precious"
    precious.write_bytes(b"precious")
    folder = tmp_path / "store"
    folder.mkdir()
    (folder / "lock").symlink_to(precious)
    with pytest.raises(DiskError):
        StoreLock(Files(), folder).take()
    assert precious.read_bytes() == b"precious"
