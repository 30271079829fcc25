"""A leader that returns takes over what groups have consumed from its followers while it was away.

RocketMQ's leader does not ask: its groups consume all of that again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable

from kerolox.broker.bounds import OFFSETS_MAX
from kerolox.broker.cluster.remote_tables import RemoteTables
from kerolox.broker.tables.room import Tables
from kerolox.errors import KeroloxError
from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.offsets import ConsumerOffsetTable
from kerolox.protocol.bodies.routes import BrokerMemberGroupAnswer
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers.registration import BrokerMemberGroupRequest
from kerolox.store.message_store import MessageStore
from kerolox.store.tables.offsets import advance

log = logging.getLogger(__name__)

ASK_S = 3.0  # a start does not wait longer for a name server, nor for a follower


class FollowersProgress:
    """Asks name servers for the followers of a broker name, and those for the progress of groups."""

    def __init__(
        self, dialer: Dialer, nameservers: Iterable[str], store: MessageStore, tables: Tables
    ) -> None:
        self._dialer = dialer
        self._nameservers = list(nameservers)
        self._store = store
        self._tables = tables

    async def take(self, cluster: str, name: str, own_address: str) -> None:
        """Per queue, the larger offset. Before any consumer is let in, and before name servers send one."""
        asked = BrokerMemberGroupRequest(cluster_name=cluster, broker_name=name)
        found = await asyncio.gather(*[self._members(server, asked) for server in self._nameservers])
        followers = sorted(set().union(*found) - {own_address})
        for table in await asyncio.gather(*[self._progress(address) for address in followers]):
            if table is not None:
                self._take(table)

    async def _members(self, nameserver: str, asked: BrokerMemberGroupRequest) -> set[str]:
        try:
            answer = await self._dialer.call(
                nameserver, RequestCode.GET_BROKER_MEMBER_GROUP, asked, timeout_s=ASK_S
            )
            if answer.code != 0 or not answer.body:
                return set()  # RocketMQ 4 has no such question
            group = BrokerMemberGroupAnswer.decode(answer.body).broker_member_group
        except KeroloxError:
            return set()  # registering tells what is wrong with it
        return set() if group is None else {at for id, at in group.broker_addrs.items() if id}

    async def _progress(self, address: str) -> ConsumerOffsetTable | None:
        try:
            async with asyncio.timeout(ASK_S):
                return await RemoteTables(self._dialer, address).offsets()
        except (KeroloxError, TimeoutError) as error:
            log.warning(
                "progress_not_taken follower=%r error=%r next='what groups consumed there meanwhile may be "
                "consumed again'",
                address, str(error),
            )  # fmt: skip
            return None

    def _take(self, found: ConsumerOffsetTable) -> None:
        offsets, topics = self._tables.offsets, self._tables.topics
        version = found.data_version
        if version is not None and version.timestamp < offsets.version.timestamp:
            return  # groups may have been set back here since
        taken = 0
        for key, queues in found.offset_table.items():
            topic, _, group = key.partition("@")
            if topics.find(topic) is None or not offsets.has_room(topic, group, 0, OFFSETS_MAX):
                continue
            # What was lost of the log here is not skipped when there are other messages in its place.
            inside = {
                queue_id: min(offset, max(0, self._store.max_offset(topic, queue_id)))
                for queue_id, offset in queues.items()
            }
            ours = offsets.offsets.get(key, {})
            if advance(ours, inside):
                offsets.offsets[key] = ours
                taken += 1
        if taken:
            offsets.bump()
            log.info("progress_taken groups=%d reason='consumed from a follower meanwhile'", taken)
