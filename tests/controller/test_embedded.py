"""The carrier of one controller: what it promises of any carrier, and what its file survives."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kerolox import atomic_file
from kerolox.controller.carriers import embedded
from kerolox.controller.carriers.carrier import NEW, Deposed, LeadingController, RevisionConflict
from kerolox.controller.carriers.embedded import ControllerLocked, EmbeddedCarrier, StateUnusable
from kerolox.controller.state import RegisteredReplica, ReplicaGroup
from kerolox.unsaved import NotSaved

from .conftest import until


def group(name: str = "broker-a", epoch: int = 1) -> ReplicaGroup:
    return ReplicaGroup(
        cluster="c",
        name=name,
        next_id=3,
        replicas={1: RegisteredReplica("10.0.0.1:10911", "x;1"), 2: RegisteredReplica("ü:1", "y;2")},
        master=1,
        master_epoch=epoch,
        in_sync=frozenset({1, 2}),
        in_sync_epoch=7,
    )


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


async def test_what_was_committed_is_there_again(carrier: EmbeddedCarrier) -> None:
    token = await carrier.lead("n0", "a:1")
    first = await carrier.commit(token, "broker-a", NEW, group())
    other = await carrier.commit(token, "broker-b", NEW, group("broker-b"))
    second = await carrier.commit(token, "broker-a", first, group(epoch=2))
    assert second > other > first > NEW
    await carrier.commit(token, "broker-b", other, None)
    fresh = await again(carrier)
    stored = await fresh.load()
    assert stored.state.groups == {"broker-a": group(epoch=2)}
    assert stored.revisions == {"broker-a": second}
    # A group that comes again does not get a revision that it had.
    token = await fresh.lead("n0", "a:1")
    assert await fresh.commit(token, "broker-b", NEW, group("broker-b")) > second
    await fresh.close()


async def test_who_does_not_lead_changes_nothing(carrier: EmbeddedCarrier) -> None:
    with pytest.raises(Deposed, match="nobody leads"):
        await carrier.commit(1, "broker-a", NEW, group())
    old = await carrier.lead("n0", "a:1")
    new = await carrier.lead("n0", "b:1")
    assert new != old
    with pytest.raises(Deposed, match="the token is 2"):
        await carrier.commit(old, "broker-a", NEW, group())
    assert (await carrier.load()).state.groups == {}
    await carrier.commit(new, "broker-a", NEW, group())


async def test_who_decided_on_something_old_changes_nothing(carrier: EmbeddedCarrier) -> None:
    token = await carrier.lead("n0", "a:1")
    first = await carrier.commit(token, "broker-a", NEW, group())
    with pytest.raises(RevisionConflict, match="decided for 0"):
        await carrier.commit(token, "broker-a", NEW, group(epoch=9))
    second = await carrier.commit(token, "broker-a", first, group(epoch=2))
    with pytest.raises(RevisionConflict):
        await carrier.commit(token, "broker-a", first, group(epoch=3))  # the same event twice
    stored = await carrier.load()
    assert (stored.state.groups["broker-a"].master_epoch, stored.revisions) == (2, {"broker-a": second})


async def test_the_leader_is_watched(carrier: EmbeddedCarrier) -> None:
    seen: list[LeadingController | None] = []

    async def watch() -> None:
        async for leader in carrier.watch():
            seen.extend([leader])

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    token = await carrier.lead("n0", "a:1")
    await until(lambda: len(seen) == 2)
    assert seen == [None, LeadingController("n0", "a:1", token)]
    assert await carrier.leader() == seen[1]
    await carrier.close()
    await until(lambda: len(seen) == 3)
    assert seen[2] is None
    watching.cancel()


async def test_another_one_waits_until_it_may_lead(carrier: EmbeddedCarrier) -> None:
    first = await carrier.lead("n0", "a:1")
    waiting = asyncio.create_task(carrier.lead("n1", "b:1"))
    await asyncio.sleep(0.01)
    assert not waiting.done()
    carrier._set_leader(None)
    assert await waiting > first


async def test_one_controller_for_a_directory(carrier: EmbeddedCarrier) -> None:
    other = EmbeddedCarrier(carrier.path.parent)
    with pytest.raises(ControllerLocked, match="controllerStorePath"):
        await other.open()
    fresh = await again(carrier)
    await fresh.close()


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
            StateUnusable, match=r"controller\.state cannot be used: .*Restore a copy"
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


async def test_a_commit_that_nobody_waits_for_any_more_is_whole(carrier: EmbeddedCarrier) -> None:
    token = await carrier.lead("n0", "a:1")
    committing = asyncio.create_task(carrier.commit(token, "broker-a", NEW, group()))
    await asyncio.sleep(0)
    committing.cancel()
    with pytest.raises(asyncio.CancelledError):
        await committing
    # The next one waits for it, and finds that it was done.
    with pytest.raises(RevisionConflict):
        await carrier.commit(token, "broker-a", NEW, group(epoch=2))
    assert (await carrier.load()).state.groups == {"broker-a": group()}
