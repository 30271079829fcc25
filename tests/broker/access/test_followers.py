"""A follower knows the users of its leader: whoever is elected next lets the same people in."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kerolox.access.book import Book
from kerolox.access.book_file import BookFile
from kerolox.broker.copies.remote_tables import RemoteTables
from kerolox.clock import SYSTEM_CLOCK
from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.access import User
from kerolox.protocol.codes import ResponseCode
from kerolox.testing.access import ADMIN, secured
from kerolox.testing.cluster import running_cluster
from tests.broker.access.test_users import Caller


async def test_users_and_rules_are_copied(tmp_path: Path) -> None:
    async with (
        running_cluster(followers=1, directory=tmp_path, **secured()) as cluster,
        Dialer(credentials=ADMIN) as dialer,
    ):
        leader, follower = cluster.leaders["broker-a"], cluster.followers("broker-a")[1]
        admin = Caller(leader, dialer)
        assert (await admin.create("alice", "her secret")).code == ResponseCode.SUCCESS
        assert (await admin.allow("alice", "Topic:T", "Pub")).code == ResponseCode.SUCCESS
        there = follower.broker.access.book
        async with asyncio.timeout(20):
            while "alice" not in there.policies:
                follower.broker.copies.copy.copy_now()
                await asyncio.sleep(0.02)
        assert there.users == leader.broker.access.book.users
        assert there.policies == leader.broker.access.book.policies


async def test_a_file_that_is_shared_is_never_put_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The leader has answered, then somebody makes a user: the follower does not write the answer over it."""
    path = str(tmp_path / "access.json")
    options = secured(access_path=path)
    answered = RemoteTables.access
    made: list[str] = []

    async def make(name: str) -> None:
        other = BookFile(path, SYSTEM_CLOCK)
        await other.load()
        await other.change(lambda book: book.create_user(User(username=name, password="p")))
        made.append(name)

    async def slowly(self: RemoteTables) -> Book:
        await make(f"before-{len(made)}")
        found = await answered(self)
        await make(f"after-{len(made)}")
        return found

    monkeypatch.setattr(RemoteTables, "access", slowly)
    async with running_cluster(followers=1, directory=tmp_path / "data", **options) as cluster:
        follower = cluster.followers("broker-a")[1].broker
        async with asyncio.timeout(20):
            while len(made) < 6:
                follower.copies.copy.copy_now()
                await asyncio.sleep(0.02)
    kept = BookFile(path, SYSTEM_CLOCK)
    await kept.load()
    assert set(made) <= kept.book.users.keys()
