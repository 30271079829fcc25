"""Administration of topics, groups and brokers. Works with Apache's servers, too."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable, Collection, Coroutine, Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

import msgspec

from kerolox.client.calls.offsets import ask_commit, ask_end, read_edge
from kerolox.client.calls.pull_answers import PULL_CODES
from kerolox.client.calls.routes import address_of, cluster_info, fetch_route, masters_of
from kerolox.client.calls.steps import awaited
from kerolox.client.calls.time_search import time_search
from kerolox.client.errors import NotFound, TopicNotFound, failure
from kerolox.client.nameservers import NameServers
from kerolox.errors import KeroloxError, nearest
from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.body import MessageQueue
from kerolox.protocol.bodies.clients import ConsumerConnection
from kerolox.protocol.bodies.groups import GroupConfig, GroupConfigTable
from kerolox.protocol.bodies.members import GroupList
from kerolox.protocol.bodies.offsets import ResetOffsets
from kerolox.protocol.bodies.routes import ClusterInfo, KVTable, TopicList, TopicRoute
from kerolox.protocol.bodies.stats import ConsumeOffsets, ConsumeStats, HaStatus, QueueBounds, TopicStats
from kerolox.protocol.bodies.topics import TopicConfig, TopicConfigTable
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import Command
from kerolox.protocol.flags import PERM_WRITE
from kerolox.protocol.header import Header
from kerolox.protocol.headers import group as group_headers
from kerolox.protocol.headers import offset as offset_headers
from kerolox.protocol.headers import topic as topic_headers
from kerolox.protocol.headers.route import (
    ClusterTopicsRequest,
    DeleteTopicAtNameServerRequest,
)
from kerolox.protocol.limits import INT64_MAX
from kerolox.protocol.reserved import TEMPLATE_TOPIC, TOOLS_GROUP, is_of_system

LATEST_MS = -1  # as a time: the end of every queue

T = TypeVar("T")


class NoSuchTopic(TopicNotFound):
    """TopicNotFound of a tool: its text suggests a topic of nearly this name instead of creating one."""

    def __init__(self, topic: str, nameserver: str, near: str = "") -> None:
        super().__init__(topic, nameserver)
        self.args = (f"topic {topic!r} does not exist at name server {nameserver}.{near}",)


class BrokerQueue(NamedTuple):
    """A queue, and the broker that has it."""

    broker: str
    queue_id: int
    address: str


class AdminCalls:
    """Administrative requests to name servers and to the brokers they know."""

    def __init__(self, nameservers: NameServers, dialer: Dialer, timeout_s: float = 5.0) -> None:
        self.nameservers = nameservers
        self.dialer = dialer
        self.timeout_s = timeout_s

    # --- finding and asking ---------------------------------------------------------------------------

    async def ask(
        self,
        address: str,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        ok: Collection[int] = (0,),
        timeout_s: float | None = None,
    ) -> Command:
        """Send a request to a broker and return its response.

        Raises a subclass of RequestFailed if the response code is not in ``ok``.
        """
        answer = await self.dialer.call(address, code, header, body, timeout_s=timeout_s or self.timeout_s)
        if answer.code not in ok:
            raise failure(answer, address=address, code=code)
        return answer

    async def cluster_info(self) -> ClusterInfo:
        return await self.nameservers.patiently(lambda: cluster_info(self.nameservers.order))

    async def masters(self, *, cluster: str | None = None, broker: str | None = None) -> dict[str, str]:
        """Return broker name → address of its master: for all clusters, one cluster, or one broker."""
        info = await self.cluster_info()
        if cluster is not None and cluster not in info.cluster_addr_table:
            known = ", ".join(sorted(info.cluster_addr_table)) or "none"
            near = nearest(cluster, info.cluster_addr_table)
            raise NotFound(f"cluster {cluster!r} does not exist. Registered: {known}.{near}")
        wanted = set(info.broker_addr_table if cluster is None else info.cluster_addr_table[cluster])
        if broker is not None:
            wanted &= {broker}
        found = {name: address for name, address in masters_of(info).items() if name in wanted}
        if not found:
            raise NotFound(
                f"no master found{'' if broker is None else f' of broker {broker!r}'}. Registered: "
                f"{', '.join(sorted(info.broker_addr_table)) or 'none'}."
                f"{'' if broker is None else nearest(broker, info.broker_addr_table)}"
            )
        return found

    async def route(self, topic: str) -> TopicRoute:
        try:
            return await self.nameservers.patiently(lambda: fetch_route(self.nameservers.order, topic))
        except TopicNotFound as error:
            raise NoSuchTopic(topic, error.nameserver, await self.near_topic(topic)) from None

    async def near_topic(self, topic: str) -> str:
        """Return a suggestion of a topic with a similar name; an empty text if topics cannot be listed."""
        try:
            return nearest(topic, await self.topics())
        except KeroloxError:
            return ""

    async def brokers_of(self, topic: str) -> dict[str, str]:
        """Return broker name → address for the brokers of a topic: the master, else another replica."""
        route = await self.route(topic)
        return {
            data.broker_name: address
            for data in sorted(route.broker_datas, key=lambda data: data.broker_name)
            if (address := address_of(data.broker_addrs)) is not None
        }

    async def queues(self, topic: str, *, for_sending: bool = False) -> list[BrokerQueue]:
        """Return the readable queues of a topic; ``for_sending``: the writable ones.

        For a topic that does not exist yet, the writable queues are those of the template topic.
        """
        try:
            route = await self.route(topic)
        except NoSuchTopic as error:
            if not for_sending:
                raise
            try:
                route = await self.route(TEMPLATE_TOPIC)
            except NoSuchTopic:
                raise error from None
        brokers = {data.broker_name: data.broker_addrs for data in route.broker_datas}
        found: list[BrokerQueue] = []
        for data in sorted(route.queue_datas, key=lambda data: data.broker_name):
            address = address_of(brokers.get(data.broker_name) or {}, exact=for_sending)
            if address is None or (for_sending and not data.perm & PERM_WRITE):
                continue
            count = data.write_queue_nums if for_sending else data.read_queue_nums
            found += [BrokerQueue(data.broker_name, queue_id, address) for queue_id in range(count)]
        return found

    async def topics(self, cluster: str | None = None) -> list[str]:
        """Return all topics, or those of a cluster, including system topics."""
        if cluster is None:
            answer = await self.nameservers.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        else:
            await self.masters(cluster=cluster)  # raises for an unknown cluster
            asked = ClusterTopicsRequest(cluster=cluster)
            answer = await self.nameservers.ask(RequestCode.GET_TOPICS_BY_CLUSTER, asked)
        return sorted(TopicList.decode(answer.body).topic_list)

    async def made_by_people(self, topics: Iterable[str]) -> list[str]:
        """Return the topics created by users, without those that brokers create for themselves."""
        info = await self.cluster_info()
        servers = {*info.cluster_addr_table, *info.broker_addr_table}
        return [topic for topic in topics if not is_of_system(topic, servers)]

    async def runtime_info(self, address: str, timeout_s: float | None = None) -> dict[str, str]:
        answer = await self.ask(address, RequestCode.GET_BROKER_RUNTIME_INFO, timeout_s=timeout_s)
        return KVTable.decode(answer.body).table

    async def ha_status(self, address: str, timeout_s: float | None = None) -> HaStatus | None:
        """Return the replication status of a broker; None from RocketMQ 4, which does not report it."""
        no = ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        answer = await self.ask(address, RequestCode.GET_BROKER_HA_STATUS, ok=(0, no), timeout_s=timeout_s)
        return None if answer.code == no else HaStatus.decode(answer.body)

    # --- topics ---------------------------------------------------------------------------------------

    async def topic_config(self, address: str, topic: str) -> TopicConfig | None:
        """Return a broker's settings of a topic; None if the topic does not exist there."""
        answer = await self.ask(
            address,
            RequestCode.GET_TOPIC_CONFIG,
            topic_headers.TopicConfigRequest(topic=topic),
            ok=(0, ResponseCode.TOPIC_NOT_EXIST, ResponseCode.REQUEST_CODE_NOT_SUPPORTED),
        )
        if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:  # before 5.0
            answer = await self.ask(address, RequestCode.GET_ALL_TOPIC_CONFIG)
            return TopicConfigTable.decode(answer.body).topic_config_table.get(topic)
        return TopicConfig.decode(answer.body) if answer.code == 0 else None

    async def put_topic(self, address: str, config: TopicConfig, attributes: str = "") -> None:
        """Create or change a topic on one broker. ``attributes``: ``+key=value,-key``."""
        asked = topic_headers.CreateTopicRequest(
            topic=config.topic_name,
            default_topic=TEMPLATE_TOPIC,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm,
            topic_filter_type=config.topic_filter_type,
            topic_sys_flag=config.topic_sys_flag,
            order=config.order,
            attributes=attributes or None,
        )
        await self.ask(address, RequestCode.UPDATE_AND_CREATE_TOPIC, asked, timeout_s=30.0)

    async def delete_topic(self, topic: str, *, cluster: str | None = None) -> list[str]:
        """Delete a topic at every broker, then at every name server. Return the brokers that had it."""
        deleted: list[str] = []
        for name, address in (await self.masters(cluster=cluster)).items():
            if await self.topic_config(address, topic) is not None:
                deleted.append(name)
            asked = topic_headers.DeleteTopicRequest(topic=topic)
            await self.ask(address, RequestCode.DELETE_TOPIC_IN_BROKER, asked, timeout_s=30.0)
        await self.nameservers.tell_all(
            RequestCode.DELETE_TOPIC_IN_NAMESRV,
            DeleteTopicAtNameServerRequest(topic=topic, cluster_name=cluster),
        )
        return deleted

    async def topic_stats(self, topic: str) -> dict[MessageQueue, QueueBounds]:
        found: dict[MessageQueue, QueueBounds] = {}
        asked = topic_headers.TopicStatsRequest(topic=topic)
        for address in (await self.brokers_of(topic)).values():
            answer = await self.ask(address, RequestCode.GET_TOPIC_STATS_INFO, asked)
            found |= TopicStats.decode(answer.body).offset_table
        return dict(sorted(found.items()))

    async def consumers_of(self, topic: str) -> list[str]:
        """Return the groups that are connected to a topic's brokers for it, or have progress in it."""
        asked = topic_headers.TopicConsumersRequest(topic=topic)

        async def one(address: str) -> Collection[str]:
            answer = await self.ask(address, RequestCode.QUERY_TOPIC_CONSUME_BY_WHO, asked)
            return GroupList.decode(answer.body).group_list

        return sorted({*itertools.chain(*(await at_all(await self.brokers_of(topic), one)).values())})

    # --- groups ---------------------------------------------------------------------------------------

    async def groups(self, address: str) -> dict[str, GroupConfig]:
        answer = await self.ask(address, RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG)
        return GroupConfigTable.decode(answer.body).subscription_group_table

    async def group(self, group: str) -> dict[str, GroupConfig]:
        """Return broker name → settings of a group, for brokers that have it. Raises NotFound if none has."""
        tables = await at_all(await self.masters(), self.groups)
        found = {name: table[group] for name, table in sorted(tables.items()) if group in table}
        if not found:
            near = nearest(group, {known for table in tables.values() for known in table})
            raise NotFound(f"group {group!r} does not exist at {', '.join(sorted(tables))}.{near}")
        return found

    async def put_group(self, address: str, config: GroupConfig) -> None:
        # Attributes are sent as changes; this request changes none.
        body = msgspec.structs.replace(config, attributes={}).encode()
        await self.ask(address, RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, body=body)

    async def delete_group(self, address: str, group: str, *, clean_offsets: bool) -> None:
        asked = group_headers.DeleteGroupRequest(group_name=group, clean_offset=clean_offsets)
        await self.ask(address, RequestCode.DELETE_SUBSCRIPTIONGROUP, asked)

    async def progress(self, group: str, topic: str | None = None) -> dict[MessageQueue, ConsumeOffsets]:
        """Return the progress of a group in every queue, at all brokers."""
        asked = group_headers.ConsumeStatsRequest(consumer_group=group, topic=topic)

        async def one(address: str) -> dict[MessageQueue, ConsumeOffsets]:
            answer = await self.ask(address, RequestCode.GET_CONSUME_STATS, asked)
            return ConsumeStats.decode(answer.body).offset_table

        found: dict[MessageQueue, ConsumeOffsets] = {}
        for table in (await at_all((await self.masters()), one)).values():
            found |= table
        return dict(sorted(found.items()))

    async def members(self, group: str) -> dict[str, ConsumerConnection]:
        """Return broker name → connected members of a group. Brokers without members are omitted."""
        asked = group_headers.ConsumerConnectionRequest(consumer_group=group)
        offline = ResponseCode.CONSUMER_NOT_ONLINE

        async def one(address: str) -> ConsumerConnection | None:
            code = RequestCode.GET_CONSUMER_CONNECTION_LIST
            answer = await self.ask(address, code, asked, ok=(0, offline))
            return ConsumerConnection.decode(answer.body) if answer.code == 0 else None

        answers = await at_all(await self.masters(), one)
        return {name: found for name, found in answers.items() if found is not None}

    async def reset(self, group: str, topic: str, time_ms: int) -> dict[MessageQueue, int]:
        """Move a group to the messages stored at a time, or with LATEST_MS to the end.

        Return the new offsets.
        """
        asked = offset_headers.ResetOffsetRequest(topic=topic, group=group, timestamp=time_ms, is_force=True)
        found: dict[MessageQueue, int] = {}
        for name, address in (await self.brokers_of(topic)).items():
            code = RequestCode.INVOKE_BROKER_TO_RESET_OFFSET
            ok: tuple[int, ...] = (0, ResponseCode.CONSUMER_NOT_ONLINE)
            answer = await self.ask(address, code, asked, ok=(*ok, ResponseCode.SYSTEM_ERROR), timeout_s=10.0)
            if answer.code == ResponseCode.SYSTEM_ERROR:
                # Brokers before 5.0 order members to reset themselves, and report a group without progress in
                # some queue as "does not exist".
                if "not exist" not in (answer.remark or "") or group not in await self.groups(address):
                    raise failure(answer, address=address, code=code)
                await self._commit_by_time(name, address, group, topic, time_ms)
                answer = await self.ask(address, code, asked, ok=ok, timeout_s=10.0)
            if answer.code == 0 and answer.body:
                found |= ResetOffsets.decode(answer.body).offset_table
            else:  # a broker before 5.0 and no connected member: commit for the group
                found |= await self._commit_by_time(name, address, group, topic, time_ms)
        return dict(sorted(found.items()))

    async def _commit_by_time(
        self, broker: str, address: str, group: str, topic: str, time_ms: int
    ) -> dict[MessageQueue, int]:
        found: dict[MessageQueue, int] = {}
        for queue in await self.queues(topic):
            if queue.broker != broker:
                continue
            offset = await self.offset_at(address, topic, queue.queue_id, time_ms)
            commit = ask_commit(topic, None, queue.queue_id, group, offset)
            await self.ask(address, commit.code, commit.header)
            found[MessageQueue(topic, broker, queue.queue_id)] = offset
        return found

    async def offset_at(self, address: str, topic: str, queue_id: int, time_ms: int) -> int:
        """Return the offset of the first message stored at or after ``time_ms``; LATEST_MS: the end."""
        if time_ms == LATEST_MS or time_ms >= INT64_MAX:
            asked = ask_end(topic, None, queue_id)
            return read_edge(await self.ask(address, asked.code, asked.header))
        return await awaited(
            time_search(topic, None, queue_id, time_ms, TOOLS_GROUP),
            lambda asked: self.ask(address, asked.code, asked.header, ok=PULL_CODES),
        )


async def at_all(brokers: Mapping[str, str], ask: Callable[[str], Coroutine[Any, Any, T]]) -> dict[str, T]:
    """Ask all brokers concurrently, and return broker name → answer. Raises the first error."""
    answers = await asyncio.gather(*(ask(address) for address in brokers.values()))
    return dict(zip(brokers, answers, strict=True))
