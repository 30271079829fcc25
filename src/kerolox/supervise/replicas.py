"""Wait after the start of a cluster until every broker has its replicas."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from kerolox.client.admin.controllers import Controllers
from kerolox.errors import KeroloxError
from kerolox.protocol.bodies.stats import HaStatus
from kerolox.protocol.codes import RequestCode

if TYPE_CHECKING:
    from kerolox.net.dialer import Dialer
    from kerolox.supervise.folder import ServerEntry

COPYING_S = 30.0  # limit until all followers replicate; then the cluster is reported as up anyway
ASK_S = 3.0


async def missing_replicas(servers: Sequence[ServerEntry], dialer: Dialer) -> AsyncIterator[str]:
    """Wait until every leader has its followers; earlier synchronous sends would lack a replica.

    Yields a sentence for each leader, or for the controllers, without all replicas after COPYING_S.
    """
    for leader in (one for one in servers if one.role == "leader"):
        followers = sum(one.role == "follower" and one.broker == leader.broker for one in servers)
        try:
            async with asyncio.timeout(COPYING_S):
                await _copying(leader.address, followers, dialer)
        except (KeroloxError, TimeoutError):
            yield (
                f"{leader.name} does not have all of its followers after {COPYING_S:.0f} s. Check them: "
                f"kerolox broker followers -b {leader.address}"
            )
    replicas = sum(one.role == "replica" for one in servers)
    if not replicas:
        return
    at = [one.address for one in servers if one.role == "controller"]
    try:
        async with asyncio.timeout(COPYING_S):
            await _in_sync(Controllers(dialer, at), replicas)
    except TimeoutError:
        yield (
            f"some replicas are not in sync after {COPYING_S:.0f} s. Check them: kerolox controller status "
            f"-a '{';'.join(at)}'"
        )


async def _copying(leader: str, followers: int, dialer: Dialer) -> None:
    """Wait until a leader has its followers."""
    while followers:
        answer = await dialer.call(leader, RequestCode.GET_BROKER_HA_STATUS, timeout_s=ASK_S)
        if HaStatus.decode(answer.body).in_sync_slave_nums >= followers:
            return
        await asyncio.sleep(0.05)


async def _in_sync(controllers: Controllers, replicas: int) -> None:
    """Wait until the controllers have elected a master, and all replicas are in sync with it."""
    while True:
        try:
            found = await controllers.groups(await controllers.leader(), None)
            if sum(len(one.in_sync_replicas) for one in found.values()) >= replicas:
                return
        except KeroloxError:
            pass  # retried below
        await asyncio.sleep(0.1)
