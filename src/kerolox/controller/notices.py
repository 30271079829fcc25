"""Notices to brokers about a new master, sent as soon as it is elected.

A lost notice is harmless: brokers poll every few seconds. So each is sent once, and an undelivered notice is
replaced by a newer one for the same address.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Collection
from functools import partial

from kerolox.controller.state import ReplicaGroup
from kerolox.errors import KeroloxError
from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.controller import SyncStateSet
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers.controller import BrokerRoleChanged

log = logging.getLogger(__name__)

NOTICE_TIMEOUT_S = 3.0


class RoleNotices:
    """Notices in flight: at most one per address."""

    def __init__(self, dialer: Dialer) -> None:
        self._dialer = dialer
        self._under_way: dict[str, asyncio.Task[None]] = {}

    def send(self, group: ReplicaGroup, to: Collection[int]) -> None:
        """Notify these replicas of the group."""
        for id in sorted(to):
            address = group.address(id)
            if address is None:
                continue
            older = self._under_way.pop(address, None)
            if older is not None:
                older.cancel()
            task = asyncio.get_running_loop().create_task(self._send(group, address))
            self._under_way[address] = task
            task.add_done_callback(partial(self._done, address))

    def close(self) -> None:
        for task in self._under_way.values():
            task.cancel()

    def _done(self, address: str, task: asyncio.Task[None]) -> None:
        if self._under_way.get(address) is task:
            del self._under_way[address]

    async def _send(self, group: ReplicaGroup, address: str) -> None:
        header = BrokerRoleChanged(
            master_address=group.address(group.master),
            master_broker_id=group.master,
            master_epoch=group.master_epoch,
            sync_state_set_epoch=group.in_sync_epoch,
        )
        body = SyncStateSet(sync_state_set=group.in_sync, sync_state_set_epoch=group.in_sync_epoch).encode()
        try:
            await self._dialer.tell(
                address, RequestCode.NOTIFY_BROKER_ROLE_CHANGED, header, body, timeout_s=NOTICE_TIMEOUT_S
            )
        except KeroloxError as error:
            log.warning(
                "notice_failed group=%r address=%r error=%r next='the broker polls the controller every few "
                "seconds'",
                group.name,
                address,
                str(error),
            )
