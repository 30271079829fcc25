"""What every carrier promises: with a file of its own, and with three members of etcd."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kerolox.controller.carriers.carrier import NEW, Carrier, Deposed, LeadingController, RevisionConflict

from .carrier_kit import EtcdShelf, FileShelf, Shelf, group
from .conftest import until

KINDS = ["embedded", pytest.param("etcd", marks=pytest.mark.xdist_group("etcd"))]


@pytest.fixture(params=KINDS)
def shelf(request: pytest.FixtureRequest, tmp_path: Path) -> Shelf:
    if request.param == "embedded":
        return FileShelf(tmp_path)
    return EtcdShelf(request.getfixturevalue("etcd_members"))


@pytest.fixture
async def carrier(shelf: Shelf) -> AsyncIterator[Carrier]:
    made = shelf.carrier()
    await made.open()
    yield made
    await made.close()


async def test_what_was_committed_is_there_again(shelf: Shelf, carrier: Carrier) -> None:
    token = await carrier.lead("n0", "a:1")
    first = await carrier.commit(token, "broker-a", NEW, group())
    other = await carrier.commit(token, "broker-b", NEW, group("broker-b"))
    second = await carrier.commit(token, "broker-a", first, group(epoch=2))
    assert second > other > first > NEW
    await carrier.commit(token, "broker-b", other, None)
    await carrier.close()
    fresh = shelf.carrier()
    await fresh.open()
    stored = await fresh.load()
    assert stored.state.groups == {"broker-a": group(epoch=2)}
    assert stored.revisions == {"broker-a": second}
    # A group that comes again does not get a revision that it had.
    token = await fresh.lead("n0", "a:1")
    assert await fresh.commit(token, "broker-b", NEW, group("broker-b")) > second
    await fresh.close()


async def test_many_groups_are_loaded(carrier: Carrier) -> None:
    token = await carrier.lead("n0", "a:1")
    names = [f"broker-{number:02}" for number in range(45)]
    for name in names:
        await carrier.commit(token, name, NEW, group(name))
    stored = await carrier.load()
    assert sorted(stored.state.groups) == sorted(stored.revisions) == names


async def test_who_does_not_lead_changes_nothing(carrier: Carrier) -> None:
    with pytest.raises(Deposed, match="no controller leads"):
        await carrier.commit(1, "broker-a", NEW, group())
    old = await carrier.lead("n0", "a:1")
    new = await carrier.lead("n0", "b:1")
    assert new != old
    with pytest.raises(Deposed, match=f"the token is {new}"):
        await carrier.commit(old, "broker-a", NEW, group())
    assert (await carrier.load()).state.groups == {}
    assert carrier.holds(new)
    await carrier.commit(new, "broker-a", NEW, group())
    await carrier.close()
    assert not carrier.holds(new)


async def test_who_decided_on_something_old_changes_nothing(carrier: Carrier) -> None:
    token = await carrier.lead("n0", "a:1")
    first = await carrier.commit(token, "broker-a", NEW, group())
    with pytest.raises(RevisionConflict, match="decided for 0"):
        await carrier.commit(token, "broker-a", NEW, group(epoch=9))
    second = await carrier.commit(token, "broker-a", first, group(epoch=2))
    with pytest.raises(RevisionConflict):
        await carrier.commit(token, "broker-a", first, group(epoch=3))  # the same event twice
    stored = await carrier.load()
    assert (stored.state.groups["broker-a"].master_epoch, stored.revisions) == (2, {"broker-a": second})


async def test_the_leader_is_watched(shelf: Shelf, carrier: Carrier) -> None:
    watcher = shelf.beside(carrier)
    if watcher is not carrier:
        await watcher.open()
    seen: list[LeadingController | None] = []

    async def watch() -> None:
        async for leader in watcher.watch():
            seen.extend([leader])

    watching = asyncio.create_task(watch())
    await until(lambda: len(seen) == 1)
    token = await carrier.lead("n0", "a:1")
    await until(lambda: len(seen) == 2)
    assert seen == [None, LeadingController("n0", "a:1", token)]
    assert await carrier.leader() == seen[1]
    await carrier.close()
    await until(lambda: len(seen) == 3)
    assert seen[2] is None
    watching.cancel()
    await asyncio.wait([watching])
    await watcher.close()


async def test_another_one_waits_until_it_may_lead(shelf: Shelf, carrier: Carrier) -> None:
    first = await carrier.lead("n0", "a:1")
    other = shelf.beside(carrier)
    if other is not carrier:
        await other.open()
    waiting = asyncio.create_task(other.lead("n1", "b:1"))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    await shelf.depose(carrier)
    assert await waiting > first
    await other.close()


async def test_a_commit_that_nobody_waits_for_any_more_is_whole(carrier: Carrier) -> None:
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
