"""The carrier of one controller: what its file survives. What all carriers promise: test_carriers.py."""

from __future__ import annotations

import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import pytest

from kerolox import atomic_file
from kerolox.controller.carriers import embedded
from kerolox.controller.carriers.carrier import NEW
from kerolox.controller.carriers.document import StateUnreadable, StateUnusable
from kerolox.controller.carriers.embedded import ControllerLocked, EmbeddedCarrier
from kerolox.unsaved import NotSaved

from .carrier_kit import group


@pytest.fixture
async def carrier(tmp_path: Path) -> AsyncIterator[EmbeddedCarrier]:
    made = EmbeddedCarrier(tmp_path)
    await made.open()
    yield made
    await made.close()


async def again(carrier: EmbeddedCarrier) -> EmbeddedCarrier:
    """Another one on the same directory."""
    await carrier.close()
    fresh = EmbeddedCarrier(carrier.path.parent)
    await fresh.open()
    return fresh


async def test_one_controller_for_a_directory(carrier: EmbeddedCarrier) -> None:
    other = EmbeddedCarrier(carrier.path.parent)
    with pytest.raises(ControllerLocked, match="controllerStorePath"):
        await other.open()
    fresh = await again(carrier)
    await fresh.close()


@pytest.mark.skipif(os.name != "posix", reason="rights of files are those of POSIX")
async def test_a_private_directory_is_closed_with_what_is_in_it(tmp_path: Path) -> None:
    folder = tmp_path / "controller"
    before = os.umask(0o022)
    try:
        for private, expected in ((False, {0o755, 0o644}), (True, {0o700, 0o600})):
            carrier = EmbeddedCarrier(folder, private=private)
            await carrier.open()
            token = await carrier.lead("n0", "a:1")
            await carrier.commit(token, f"broker-{private}", NEW, group())
            await carrier.close()
            assert {path.stat().st_mode & 0o777 for path in (folder, *folder.iterdir())} == expected
    finally:
        os.umask(before)


async def test_every_damaged_file_is_named_and_left_alone(carrier: EmbeddedCarrier) -> None:
    token = await carrier.lead("n0", "a:1")
    await carrier.commit(token, "broker-a", NEW, group())
    await carrier.close()
    whole = carrier.path.read_bytes()
    damaged = [whole[:cut] for cut in range(len(whole))] + [b"", b"{}", whole + b"\n", b"\0" * len(whole)]
    for at in range(len(whole)):
        flipped = bytearray(whole)
        flipped[at] ^= 0x10
        damaged.append(bytes(flipped))
    for data in damaged:
        carrier.path.write_bytes(data)
        with pytest.raises(
            StateUnusable, match=r"controller\.state cannot be used: .*Restore it from a backup"
        ) as found:
            embedded._read(carrier.path)
        assert str(carrier.path) in str(found.value)
        assert carrier.path.read_bytes() == data
    carrier.path.write_bytes(damaged[20])
    refused = EmbeddedCarrier(carrier.path.parent)
    with pytest.raises(StateUnusable):
        await refused.open()
    await refused.close()
    carrier.path.write_bytes(whole)
    fresh = EmbeddedCarrier(carrier.path.parent)
    await fresh.open()
    assert (await fresh.load()).state.groups == {"broker-a": group()}
    await fresh.close()


@pytest.mark.parametrize("with_lock", [True, False])
async def test_a_state_that_comes_without_the_number_of_the_last_commit_may_be_an_older_copy(
    carrier: EmbeddedCarrier, tmp_path: Path, *, with_lock: bool
) -> None:
    token = await carrier.lead("n0", "a:1")
    await carrier.commit(token, "broker-a", NEW, msgspec.structs.replace(group(), master_epoch=1))
    await carrier.close()
    other = tmp_path / "another host"
    other.mkdir()
    for name in (embedded.STATE_FILE, *([embedded.LOCK_FILE] if with_lock else [])):
        shutil.copy(tmp_path / name, other / name)
    for _ in range(2):  # also when the first one there ended before it wrote anything
        moved = EmbeddedCarrier(other)
        await moved.open()
        assert (await moved.load()).state.groups["broker-a"].is_doubted is not with_lock
        await moved.close()
    await moved.open()
    token, loaded = await moved.lead("n0", "a:1"), await moved.load()
    revision = loaded.revisions["broker-a"]
    assert await moved.commit(token, "broker-a", revision, group()) > revision
    moved = await again(moved)
    assert not (await moved.load()).state.groups["broker-a"].is_doubted
    await moved.close()


async def test_a_file_that_cannot_be_read_is_not_to_be_replaced(carrier: EmbeddedCarrier) -> None:
    await carrier.close()
    carrier.path.mkdir()
    with pytest.raises(StateUnreadable, match=r"cannot be read \(.*Allow the controller to read") as found:
        embedded._read(carrier.path)
    assert "remove" not in str(found.value)


async def test_a_file_of_a_later_version_is_refused(carrier: EmbeddedCarrier) -> None:
    token = await carrier.lead("n0", "a:1")
    await carrier.commit(token, "broker-a", NEW, group())
    await carrier.close()
    carrier.path.write_bytes(carrier.path.read_bytes().replace(b"controller 1 ", b"controller 2 "))
    with pytest.raises(StateUnusable, match="version 2, this program reads 1"):
        embedded._read(carrier.path)


async def test_a_commit_is_durable_step_by_step(
    carrier: EmbeddedCarrier, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Written, flushed, renamed, and the directory flushed: in this order, before the commit is told."""
    steps: list[str] = []
    real_fsync, real_replace = os.fsync, os.replace

    def fsync(handle: int) -> None:
        steps.append("flush directory" if os.path.isdir(f"/proc/self/fd/{handle}") else "flush file")
        real_fsync(handle)

    def replace(old: str, new: object) -> None:
        steps.append("rename")
        real_replace(old, new)  # type: ignore[arg-type]

    monkeypatch.setattr(atomic_file.os, "fsync", fsync)
    monkeypatch.setattr(atomic_file.os, "replace", replace)
    token = await carrier.lead("n0", "a:1")
    await carrier.commit(token, "broker-a", NEW, group())
    assert steps == ["flush file", "rename", "flush directory"]


async def test_what_cannot_be_written_is_not_so(
    carrier: EmbeddedCarrier, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = await carrier.lead("n0", "a:1")
    first = await carrier.commit(token, "broker-a", NEW, group())

    def full(handle: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(atomic_file.os, "fsync", full)
        with pytest.raises(NotSaved, match="No space left"):
            await carrier.commit(token, "broker-a", first, group(epoch=2))
    assert (await carrier.load()).state.groups["broker-a"].master_epoch == 1
    assert [path.name for path in carrier.path.parent.iterdir() if "tmp" in path.name] == []
    await carrier.commit(token, "broker-a", first, group(epoch=3))
    fresh = await again(carrier)
    assert (await fresh.load()).state.groups["broker-a"].master_epoch == 3
    await fresh.close()
