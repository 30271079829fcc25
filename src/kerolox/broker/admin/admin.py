"""Administration: everything tools ask of a broker, put together."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kerolox.broker.admin import not_supported
from kerolox.broker.admin.broker_admin import BrokerAdmin
from kerolox.broker.admin.client_admin import ClientAdmin
from kerolox.broker.admin.group_admin import GroupAdmin, ProgressAdmin
from kerolox.broker.admin.topic_admin import Settled, TopicAdmin
from kerolox.broker.figures.runtime_info import RuntimeInfo
from kerolox.broker.figures.stats import Statistics
from kerolox.broker.members.groups import Groups
from kerolox.broker.members.members import Members
from kerolox.broker.options import BrokerOptions
from kerolox.broker.tables.topics import Topics
from kerolox.clock import Clock
from kerolox.net.lanes import Lane
from kerolox.net.requests import Row
from kerolox.store.message_store import MessageStore
from kerolox.store.tables.offsets import ConsumerOffsets, DelayOffsets
from kerolox.store.tables.request_modes import RequestModes


class Admin:
    """The parts, one for each noun.

    ``settled`` waits until changed topics are told to the name servers, ``offsets_saved`` until changed
    offsets are on disk; ``changed`` hears of options that took other values.
    """

    def __init__(
        self,
        store: MessageStore,
        topics: Topics,
        groups: Groups,
        members: Members,
        offsets: ConsumerOffsets,
        delays: DelayOffsets,
        modes: RequestModes,
        stats: Statistics,
        lanes: Mapping[str, Lane],
        options: BrokerOptions,
        clock: Clock,
        *,
        address: str,
        settled: Settled,
        offsets_saved: Settled,
        changed: Callable[[Mapping[str, object]], None],
    ) -> None:
        self.topics = TopicAdmin(store, topics, offsets, members, stats, options, settled, offsets_saved)
        self.groups = GroupAdmin(
            topics, groups, members, offsets, delays, modes, stats, offsets_saved, address=address
        )
        self.progress = ProgressAdmin(
            store, topics, groups, members, offsets, stats, options, clock, address=address
        )
        self.clients = ClientAdmin(store, topics, groups, members, options)
        self.runtime_info = RuntimeInfo(store, stats, delays, lanes, options, clock)
        self.broker = BrokerAdmin(store, stats, self.runtime_info, options, settled, changed, clock)

    def rows(self) -> list[Row]:
        return [
            *self.topics.rows(),
            *self.groups.rows(),
            *self.progress.rows(),
            *self.clients.rows(),
            *self.broker.rows(),
            *not_supported.rows(),
        ]

    async def close(self) -> None:
        await self.broker.close()
