"""Administration of consumer groups and their offsets: the layer of ``kerolox group`` and
:class:`kerolox.Admin`."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

import msgspec

from kerolox.client.admin.calls import AdminCalls, at_all
from kerolox.client.admin.part import AdminPart, place_ms
from kerolox.client.admin.results import (
    Group,
    GroupAtBroker,
    GroupMember,
    GroupMembers,
    OffsetChange,
    QueueProgress,
)
from kerolox.client.calls.offsets import PROGRESS_CODES, ask_commit, ask_progress, read_progress
from kerolox.client.errors import AlreadyThere, NotFound
from kerolox.client.messages import Queue
from kerolox.errors import OptionError
from kerolox.protocol.bodies.body import MessageQueue
from kerolox.protocol.bodies.groups import WHY_DISABLED, GroupConfig
from kerolox.protocol.bodies.stats import ConsumeOffsets
from kerolox.protocol.codes import RequestCode, version_name
from kerolox.protocol.headers.offset import ResetOffsetRequest


async def known_group(calls: AdminCalls, group: str) -> dict[str, GroupConfig]:
    """Return the settings of a group by broker. Raises NotFound when no broker has settings or progress of
    it. A group that only pulls may have progress and no settings."""
    try:
        return await calls.group(group)
    except NotFound:
        if not await calls.progress(group):
            raise
        return {}


class GroupAdmin(AdminPart):
    """Creates, changes, deletes and lists consumer groups; reads and sets their offsets."""

    # --- settings -------------------------------------------------------------------------------------

    async def list_groups(self, *, broker: str | None = None) -> list[Group]:
        """Return all groups that have settings at brokers, or at the broker of one name."""
        tables = await at_all(await self._calls.masters(broker=broker), self._calls.groups)
        groups: dict[str, dict[str, GroupConfig]] = {}
        for name, table in tables.items():
            for group, config in table.items():
                groups.setdefault(group, {})[name] = config
        return [_group(group, found) for group, found in sorted(groups.items())]

    async def describe_group(self, group: str) -> Group:
        """Return the settings of a group at each broker."""
        return _group(group, await known_group(self._calls, group))

    async def create_group(
        self,
        group: str,
        *,
        retries: int = 16,
        consume: bool = True,
        ordered: bool = False,
        broadcast: bool = True,
        cluster: str | None = None,
    ) -> Group:
        """Create a group at all brokers, or at those of a cluster. Raises AlreadyThere if it exists at one of
        them. Groups also appear when their first member connects."""
        masters, there = await self._group_settings(group, cluster)
        if there:
            raise AlreadyThere(
                f"group {group} exists at {', '.join(there)}. Change it with: kerolox group update {group}"
            )
        config = _changed(GroupConfig(group_name=group), retries, consume, ordered, broadcast)
        return await self._put(group, masters, dict.fromkeys(masters, config))

    async def update_group(
        self,
        group: str,
        *,
        retries: int | None = None,
        consume: bool | None = None,
        ordered: bool | None = None,
        broadcast: bool | None = None,
        cluster: str | None = None,
    ) -> Group:
        """Change settings of a group at the brokers that have it. None leaves a setting as it is;
        ``consume=False`` stops consumption."""
        masters, there = await self._group_settings(group, cluster)
        if not there:
            await self._calls.group(group)  # raises NotFound when no broker has it
            raise NotFound(f"group {group} does not exist at {', '.join(masters)}")
        changed = {
            name: _changed(config, retries, consume, ordered, broadcast) for name, config in there.items()
        }
        return await self._put(group, masters, changed)

    async def delete_group(
        self, group: str, *, keep_progress: bool = False, cluster: str | None = None
    ) -> list[str]:
        """Delete the settings and the progress of a group; return the brokers. Members that are connected may
        create it again."""
        masters = await self._calls.masters(cluster=cluster)
        await known_group(self._calls, group)
        for address in masters.values():
            await self._calls.delete_group(address, group, clean_offsets=not keep_progress)
        return sorted(masters)

    async def _group_settings(
        self, group: str, cluster: str | None
    ) -> tuple[dict[str, str], dict[str, GroupConfig]]:
        """Return the masters, by broker name, and the settings of those that have the group."""
        masters = await self._calls.masters(cluster=cluster)
        tables = await at_all(masters, self._calls.groups)
        return masters, {name: table[group] for name, table in sorted(tables.items()) if group in table}

    async def _put(self, group: str, masters: Mapping[str, str], configs: Mapping[str, GroupConfig]) -> Group:
        for name, config in configs.items():
            await self._calls.put_group(masters[name], config)
        return _group(group, configs)

    # --- members and progress -------------------------------------------------------------------------

    async def group_members(self, group: str) -> GroupMembers:
        """Return the connected members of a group and their subscriptions."""
        found = await self._calls.members(group)
        if not found:
            await known_group(self._calls, group)
        clients: dict[tuple[str, str], GroupMember] = {}
        subscriptions: dict[str, str] = {}
        for broker, connections in sorted(found.items()):
            for one in connections.connection_set:
                key = (one.client_id or "", one.client_addr or "")
                known = clients.get(key)
                clients[key] = GroupMember(
                    client_id=key[0],
                    address=key[1],
                    language=one.language or "",
                    version=version_name(one.version),
                    brokers=(*(known.brokers if known is not None else ()), broker),
                )
            for topic, data in connections.subscription_table.items():
                subscriptions[topic] = data.sub_string or ""
        first = next(iter(found.values()), None)
        model = None if first is None else first.message_model
        kind = None if first is None else first.consume_type
        return GroupMembers(
            members=tuple(clients.values()),
            subscriptions=subscriptions,
            model=None if model is None else model.value,
            type=None if kind is None else kind.value,
        )

    async def group_lag(self, group: str, topic: str | None = None) -> list[QueueProgress]:
        """Return the progress and the lag of a group in every queue it has progress in."""
        if topic is not None:
            await self._calls.route(topic)  # raises NotFound when there is no such topic
        await known_group(self._calls, group)
        found = await self._calls.progress(group, topic)
        return [_progress(queue, offsets) for queue, offsets in found.items()]

    async def group_lags(self, topic: str | None = None) -> dict[str, list[QueueProgress]]:
        """Return the progress of all groups, by name, or that in one topic."""
        if topic is not None:
            await self._calls.route(topic)
        names = [group.name for group in await self.list_groups()]
        return {
            name: [_progress(*found) for found in (await self._calls.progress(name, topic)).items()]
            for name in names
        }

    # --- offsets --------------------------------------------------------------------------------------

    async def group_offsets(self, group: str, topic: str | None = None) -> dict[Queue, int]:
        """Return the committed offsets of a group; queues without one are left out."""
        lag = await self.group_lag(group, topic)
        topics = [topic] if topic is not None else sorted({one.queue.topic for one in lag})
        queues = [
            (Queue(name, one.broker, one.queue_id), one.address)
            for name in topics
            for one in await self._calls.queues(name)
        ]
        offsets = await asyncio.gather(*(self._offset(group, *one) for one in queues))
        return {
            queue: offset for (queue, _), offset in zip(queues, offsets, strict=True) if offset is not None
        }

    async def _offset(self, group: str, queue: Queue, address: str) -> int | None:
        asked = ask_progress(queue.topic, None, queue.queue_id, group)
        return read_progress(await self._calls.ask(address, asked.code, asked.header, ok=PROGRESS_CODES))

    async def set_offsets(self, group: str, offsets: Mapping[Queue, int]) -> list[OffsetChange]:
        """Commit offsets for a group whose members are stopped: running members commit their own again. See
        :meth:`reset_offsets`, which members follow."""
        await known_group(self._calls, group)
        before = await self.group_offsets(group)
        addresses: dict[str, dict[str, str]] = {}
        for queue, offset in offsets.items():
            if isinstance(offset, bool) or not isinstance(offset, int) or offset < 0:
                raise OptionError("offsets", offset, f"0 or more for queue {queue}")
            if queue.topic not in addresses:
                addresses[queue.topic] = await self._calls.brokers_of(queue.topic)
            if queue.broker not in addresses[queue.topic]:
                raise NotFound(
                    f"broker {queue.broker} does not serve topic {queue.topic}; these do: "
                    f"{', '.join(addresses[queue.topic])}"
                )
        for queue, offset in offsets.items():
            await self._set_offset(group, queue, addresses[queue.topic][queue.broker], offset)
        return [_change(queue, before, offset) for queue, offset in offsets.items()]

    async def _set_offset(self, group: str, queue: Queue, address: str, offset: int) -> None:
        commit = ask_commit(queue.topic, None, queue.queue_id, group, offset)
        await self._calls.ask(address, commit.code, commit.header)
        if await self._offset(group, queue, address) == offset:
            return
        # An earlier reset that no member has followed yet makes commits void: replace it.
        asked = ResetOffsetRequest(
            topic=queue.topic, group=group, queue_id=queue.queue_id, offset=offset, is_force=True
        )
        await self._calls.ask(address, RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, asked, timeout_s=10.0)

    async def reset_offsets(
        self, group: str, topic: str, to: str | int | datetime | timedelta, *, preview: bool = False
    ) -> list[OffsetChange]:
        """Move a group in a topic to ``"begin"``, ``"end"``, or the first messages stored at a time or later:
        a datetime, a timedelta ago, or milliseconds since 1970. Running members continue there. ``preview``
        changes nothing."""
        time_ms = place_ms(to)
        await known_group(self._calls, group)
        before = await self.group_offsets(group, topic)
        after = await (self._offsets_at(topic, time_ms) if preview else self._reset(group, topic, time_ms))
        return [_change(queue, before, offset) for queue, offset in after.items()]

    async def _reset(self, group: str, topic: str, time_ms: int) -> dict[Queue, int]:
        found = await self._calls.reset(group, topic, time_ms)
        return {Queue.of(queue): offset for queue, offset in found.items()}

    async def _offsets_at(self, topic: str, time_ms: int) -> dict[Queue, int]:
        queues = await self._calls.queues(topic)
        offsets = await asyncio.gather(
            *(self._calls.offset_at(queue.address, topic, queue.queue_id, time_ms) for queue in queues)
        )
        return {
            Queue(topic, queue.broker, queue.queue_id): offset
            for queue, offset in zip(queues, offsets, strict=True)
        }


def _changed(
    config: GroupConfig,
    retries: int | None,
    consume: bool | None,
    ordered: bool | None,
    broadcast: bool | None,
) -> GroupConfig:
    given: dict[str, Any] = {
        "retry_max_times": retries,
        "consume_enable": consume,
        "consume_message_orderly": ordered,
        "consume_broadcast_enable": broadcast,
    }
    return msgspec.structs.replace(
        config, **{name: value for name, value in given.items() if value is not None}
    )


def _group(group: str, configs: Mapping[str, GroupConfig]) -> Group:
    return Group(
        name=group,
        brokers=tuple(
            GroupAtBroker(
                broker=name,
                consume=config.consume_enable,
                ordered=config.consume_message_orderly,
                broadcast=config.consume_broadcast_enable,
                retries=config.retry_max_times,
                disabled=None if config.consume_enable else config.attributes.get(WHY_DISABLED),
            )
            for name, config in sorted(configs.items())
        ),
    )


def _progress(queue: MessageQueue, offsets: ConsumeOffsets) -> QueueProgress:
    return QueueProgress(
        queue=Queue.of(queue),
        committed=offsets.consumer_offset,
        end=offsets.broker_offset,
        in_flight=max(0, offsets.pull_offset - offsets.consumer_offset),
        consumed_ms=offsets.last_timestamp or None,
    )


def _change(queue: Queue, before: Mapping[Queue, int], after: int) -> OffsetChange:
    return OffsetChange(queue=queue, before=before.get(queue), after=after)
