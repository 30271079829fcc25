"""A follower knows the users of its leader: whoever is elected next lets the same people in."""

from __future__ import annotations

import asyncio
from pathlib import Path

from kerolox.net.dialer import Dialer
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
                follower.broker.table_copy.copy_now()
                await asyncio.sleep(0.02)
        assert there.users == leader.broker.access.book.users
        assert there.policies == leader.broker.access.book.policies
