"""Heartbeats of clients, leaving clients, and queries for the members of a group."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterable

import msgspec

from kerolox.access.needs.consuming import CHECK_CLIENT, HEARTBEAT, UNREGISTER
from kerolox.access.needs.kinds import on
from kerolox.access.needs.names import SUB_OR_GET
from kerolox.broker.bounds import (
    CLIENT_ID_LENGTH_MAX,
    GROUPS_OF_CLIENT_MAX,
    PRODUCER_GROUP_LENGTH_MAX,
    too_many,
)
from kerolox.broker.members.compiled_filters import CompiledFilters, key_of, no_property_filter, shown
from kerolox.broker.members.groups import Groups
from kerolox.broker.members.members import ConnectedClient, Members
from kerolox.broker.names import retry_topic
from kerolox.broker.options import BrokerOptions
from kerolox.broker.tables.topics import Topics
from kerolox.errors import InvalidRequest, KeroloxError
from kerolox.front.requests import Answer, Later, Request
from kerolox.front.rows import serves
from kerolox.protocol.bodies.groups import GroupConfig
from kerolox.protocol.bodies.heartbeat import CheckClient, ConsumerData, HeartbeatData, SubscriptionData
from kerolox.protocol.bodies.members import ConsumerIds
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.headers.heartbeat import ConsumerListRequest, HeartbeatAnswer, UnregisterClientRequest
from kerolox.protocol.subscription import is_tag_type

log = logging.getLogger(__name__)

ANNOUNCE_S = 2.0  # longest wait of a heartbeat for name servers: Java's clients wait 3 s for the answer


class Heartbeats:
    """Requests by which clients join and leave groups, check subscriptions, and ask for a group's members.

    The first heartbeats of a group are answered when the name servers know its retry topic, as RocketMQ's
    broker does: tools find a group by that route.

    ``filters`` are the compiled SQL92 filters. ``announced`` waits until a new topic is registered at the
    name servers; None if there are none.
    """

    def __init__(
        self,
        members: Members,
        groups: Groups,
        topics: Topics,
        options: BrokerOptions,
        filters: CompiledFilters,
        announced: Callable[[str], Awaitable[None]] | None,
    ) -> None:
        self._members = members
        self._groups = groups
        self._topics = topics
        self._options = options
        self._filters = filters
        self._announced = announced
        self._announcing: dict[str, asyncio.Task[None]] = {}  # retry topics that name servers may not know
        self._fingerprints: dict[str, int] = {}  # fingerprint of the last heartbeat that named the group
        members.on_deserted.append(lambda group: self._fingerprints.pop(group, None))

    @serves(RequestCode.HEART_BEAT, None, HEARTBEAT, lane="heartbeat")
    def heartbeat(self, request: Request[None]) -> Answer | Later:
        """Register the producers and consumers of a client, or extend their registration."""
        sent = HeartbeatData.decode(request.body)
        _check_size(sent)
        wanted = [one for data in sent.consumer_data_set for one in data.subscription_data_set]
        return self._with_filters(wanted, lambda: self._joined(request, sent))

    def _joined(self, request: Request[None], sent: HeartbeatData) -> Answer | Later:
        client = ConnectedClient.of(request.caller, sent.client_id, request.identity)
        # A client without a fingerprint always sends everything; others ask whether they must.
        full_wanted = sent.heartbeat_fingerprint == 0
        announcing: list[asyncio.Task[None]] = []
        for data in sent.consumer_data_set:
            config = self._groups.config(data.group_name)
            if config is None:
                continue  # the group may not be created: handled as if the heartbeat did not name it
            full_wanted |= self._note_fingerprint(data.group_name, sent.heartbeat_fingerprint)
            self._make_retry_topic(config, data)
            if (task := self._announcing.get(retry_topic(data.group_name))) is not None:
                announcing.append(task)
            self._members.join(
                client,
                data,
                notify=config.notify_consumer_ids_changed_enable,
                with_subscriptions=not sent.without_sub,
            )
            if sent.without_sub and not self._subscriptions(data.group_name):
                full_wanted = True  # its subscriptions are unknown: this broker may have just started
        for producer in sent.producer_data_set:
            self._members.join_producers(producer.group_name, client)
        answer = Answer(header=HeartbeatAnswer(supports_v2=True, subscription_changed=full_wanted))
        if not announcing:
            return answer

        async def later() -> Answer:
            await asyncio.wait(announcing, timeout=ANNOUNCE_S)
            return answer

        return later

    @serves(RequestCode.UNREGISTER_CLIENT, UnregisterClientRequest, UNREGISTER, lane="client_manager")
    def unregister(self, request: Request[UnregisterClientRequest]) -> Answer:
        """Remove a client from its groups."""
        sent = request.header
        if sent.producer_group is not None:
            self._members.leave_producers(sent.producer_group, request.caller)
        if sent.consumer_group is not None:
            self._members.leave(sent.consumer_group, request.caller)
        return Answer()

    @serves(
        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
        ConsumerListRequest,
        on(SUB_OR_GET, group="consumer_group"),
        lane="client_manager",
    )
    def consumer_list(self, request: Request[ConsumerListRequest]) -> Answer:
        """Return the client ids of a consumer group."""
        group = request.header.consumer_group
        found = self._members.online(group, f"no consumer for this group, {group}", ResponseCode.SYSTEM_ERROR)
        return Answer(body=ConsumerIds(consumer_id_list=found.client_ids).encode())

    @serves(RequestCode.CHECK_CLIENT_CONFIG, None, CHECK_CLIENT, lane="client_manager")
    def check_client(self, request: Request[None]) -> Answer | Later:
        """Check a subscription of a client, such as its SQL expression."""
        sent = CheckClient.decode(request.body) if request.body else CheckClient()
        wanted = () if sent.subscription_data is None else (sent.subscription_data,)
        return self._with_filters(wanted, lambda: self._checked(sent))

    def _checked(self, sent: CheckClient) -> Answer:
        wanted = sent.subscription_data
        if wanted is None or is_tag_type(wanted):
            return Answer()
        if not self._options.property_filter:
            return Answer(code=ResponseCode.SYSTEM_ERROR, remark=no_property_filter(wanted))
        try:
            self._filters.get(key_of(wanted))
        except KeroloxError as error:
            log.warning(
                "filter_refused group=%r client=%r topic=%r expression=%r error=%r",
                sent.group, sent.client_id, wanted.topic, shown(wanted.sub_string), str(error),
            )  # fmt: skip
            return Answer(code=ResponseCode.SUBSCRIPTION_PARSE_FAILED, remark=str(error))
        return Answer()

    def _with_filters(
        self, wanted: Iterable[SubscriptionData], handled: Callable[[], Answer | Later]
    ) -> Answer | Later:
        """Handle a request whose conditions are compiled: at once, or after a thread has compiled the long
        ones."""
        filters = self._filters
        unknown = filters.unknown(wanted)
        if not unknown:
            return handled()

        async def later() -> Answer | None:
            await filters.prepare(unknown)
            result = handled()
            return result if isinstance(result, Answer) else await result()

        return later

    def _note_fingerprint(self, group: str, fingerprint: int) -> bool:
        before = self._fingerprints.get(group)
        self._fingerprints[group] = fingerprint
        return before is not None and before != fingerprint

    def _subscriptions(self, group: str) -> dict[str, SubscriptionData]:
        found = self._members.members(group)
        return {} if found is None else found.subscriptions

    def _make_retry_topic(self, config: GroupConfig, data: ConsumerData) -> None:
        """Create the retry topic before the first message fails, so that members find its route."""
        name = retry_topic(config.group_name)
        is_new = self._topics.find(name) is None
        topic = self._topics.for_group(name, config.retry_queue_nums, unit=data.unit_mode)
        if is_new and self._announced is not None:
            self._announcing[name] = asyncio.get_running_loop().create_task(self._announce(name))
        wanted = [self._topics.find(subscribed.topic) for subscribed in data.subscription_data_set]
        ordered = any(found is not None and found.order for found in wanted)
        if topic.order != ordered and data.subscription_data_set:
            self._topics.put(msgspec.structs.replace(topic, order=ordered))

    async def _announce(self, topic: str) -> None:
        try:
            if self._announced is not None:
                await self._announced(topic)
        except KeroloxError as error:
            # The topic was not saved, so it is not there: the next heartbeat creates it again.
            log.warning("retry_topic_not_announced topic=%r error=%r", topic, str(error))
        finally:
            self._announcing.pop(topic, None)


def _check_size(sent: HeartbeatData) -> None:
    """Reject a heartbeat that is too large, before any of its groups is created."""
    for named in (sent.consumer_data_set, sent.producer_data_set):
        if len(named) > GROUPS_OF_CLIENT_MAX:
            raise too_many(
                f"groups of client {sent.client_id[:CLIENT_ID_LENGTH_MAX]!r}, {len(named)}",
                "GROUPS_OF_CLIENT_MAX",
                GROUPS_OF_CLIENT_MAX,
            )
    if len(sent.client_id) > CLIENT_ID_LENGTH_MAX:
        raise InvalidRequest(
            f"the client id has {len(sent.client_id)} characters, the limit is {CLIENT_ID_LENGTH_MAX} "
            "(CLIENT_ID_LENGTH_MAX)"
        )
    for producer in sent.producer_data_set:
        if len(producer.group_name) > PRODUCER_GROUP_LENGTH_MAX:
            raise InvalidRequest(
                f"a producer group has {len(producer.group_name)} characters, the limit is "
                f"{PRODUCER_GROUP_LENGTH_MAX} (PRODUCER_GROUP_LENGTH_MAX)"
            )
