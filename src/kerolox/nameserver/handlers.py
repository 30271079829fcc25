"""Handlers of requests to a name server, one method per request code.

Nearly all are plain functions that never wait. Changes that must be on disk before the answer wait for the
write, and are undone if it fails.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Any, cast

from kerolox.access.needs.kinds import CHANGES, CHANGES_OPTIONS, LOOKS
from kerolox.access.needs.names import GET, UPDATE
from kerolox.access.needs.nameserver import GET_KV, ROUTE, of_cluster
from kerolox.clock import Clock
from kerolox.front.needs import EVERYBODY
from kerolox.front.own_options import OwnOptions
from kerolox.front.requests import Answer, Handler, Later, Request
from kerolox.front.rows import Row, serves
from kerolox.nameserver import listings
from kerolox.nameserver.brokers import BrokerProcess, BrokerRegistration, MinIdNotice
from kerolox.nameserver.changes import Changes
from kerolox.nameserver.encoded_routes import encode_route, in_zone
from kerolox.nameserver.kv import ORDER_TOPIC_CONFIG, KvConfig
from kerolox.nameserver.options import NamesrvOptions
from kerolox.nameserver.routes import Routes
from kerolox.protocol.bodies.registration import Registration as RegistrationBody
from kerolox.protocol.bodies.registration import body_crc32, decode_registration
from kerolox.protocol.bodies.routes import BrokerMemberGroupAnswer, KVTable, QueueData, TopicList, TopicRoute
from kerolox.protocol.bodies.topics import DataVersion
from kerolox.protocol.codes import VERSION_STANDARD_JSON, RequestCode, ResponseCode
from kerolox.protocol.headers import registration, route
from kerolox.protocol.headers.kv import (
    DeleteKvRequest,
    GetKvAnswer,
    GetKvRequest,
    KvListRequest,
    PutKvRequest,
)

log = logging.getLogger(__name__)

TellNotices = Callable[[Iterable[MinIdNotice]], None]

LARGE_BODY_BYTES = 64 << 10  # larger registrations are decoded in a thread
_REGISTERING = "registering"  # key in ``caller.data``: lock of the connection's registrations

# Complete only when all brokers have registered.
_LISTS = (
    RequestCode.GET_BROKER_CLUSTER_INFO,
    RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER,
    RequestCode.GET_TOPICS_BY_CLUSTER,
)
_DISABLED = Answer(code=ResponseCode.SYSTEM_ERROR, remark="disable")
_NOT_READY = Answer(code=ResponseCode.SYSTEM_ERROR, remark=route.NOT_READY)


class StartUp:
    """Readiness of a name server after its start.

    ``brokers_awaited``: no route is answered before this many brokers have registered. Until then the answer
    "no such topic" could be wrong, and clients would believe it.
    """

    def __init__(self, routes: Routes, options: NamesrvOptions, clock: Clock, brokers_awaited: int) -> None:
        self._routes = routes
        self._options = options
        self._clock = clock
        self._started_s = clock.monotonic_s()
        self._brokers_awaited = brokers_awaited

    def awaits_brokers(self) -> bool:
        if not self._brokers_awaited:
            return False
        if len(self._routes.alive) < self._brokers_awaited:
            return True
        self._brokers_awaited = 0  # from now on a missing broker counts as down
        return False

    def awaits_routes(self) -> bool:
        """Return whether routes are incomplete: awaited brokers are missing, or RocketMQ's option gives
        brokers more time to register."""
        return self.awaits_brokers() or (self._options.need_wait_for_service and self._is_early())

    def _is_early(self) -> bool:
        return self._clock.monotonic_s() - self._started_s < self._options.wait_seconds_for_service

    def guarded(self, rows: Iterable[Row]) -> list[Row]:
        """Wrap the handlers of lists: they reject requests while :meth:`awaits_brokers`."""
        return [
            row._replace(handler=self._guarded(row.handler)) if row.code in _LISTS else row for row in rows
        ]

    def _guarded(self, handler: Handler) -> Handler:

        def answer(request: Request[Any]) -> Any:
            return _NOT_READY if self.awaits_brokers() else handler(request)

        async def answer_later(request: Request[Any]) -> Any:
            return _NOT_READY if self.awaits_brokers() else await cast(Awaitable[Any], handler(request))

        return answer_later if inspect.iscoroutinefunction(handler) else answer


class RouteHandlers:
    """Handler of GET_ROUTEINFO_BY_TOPIC (105), the most frequent request of clients."""

    def __init__(self, routes: Routes, opening: StartUp) -> None:
        self._routes = routes
        self._encoded = routes.encoded
        self._opening = opening

    @serves(RequestCode.GET_ROUTEINFO_BY_TOPIC, route.RouteRequest, ROUTE, lane="route")
    def route(self, request: Request[route.RouteRequest]) -> Answer:
        """Return the brokers and queues of a topic."""
        asked = request.header
        if self._opening.awaits_routes():
            return _NOT_READY
        standard = request.caller.version >= VERSION_STANDARD_JSON or bool(asked.standard_json_only)
        if asked.zone_mode and asked.zone_name and asked.zone_name.strip():
            found = self._routes.route(asked.topic)
            body = None if found is None else encode_route(in_zone(found, asked.zone_name), standard)
        else:
            body = self._encoded.get(asked.topic, standard)
        if body is None:
            return Answer(
                code=ResponseCode.TOPIC_NOT_EXIST,
                remark=f"No topic route info in name server for the topic: {asked.topic}. "
                "No broker that is alive has registered it.",
            )
        return Answer(body=body)


class BrokerHandlers:
    """Handlers of broker registrations and of changes of broker permissions."""

    def __init__(
        self,
        routes: Routes,
        changes: Changes,
        kv: KvConfig,
        options: NamesrvOptions,
        clock: Clock,
        tell: TellNotices,
    ) -> None:
        self._routes = routes
        self._changes = changes
        self._kv = kv
        self._options = options
        self._clock = clock
        self._tell = tell

    @serves(RequestCode.REGISTER_BROKER, registration.RegisterBrokerRequest, CHANGES, lane="registration")
    async def register(self, request: Request[registration.RegisterBrokerRequest]) -> Answer:
        # Registrations of one broker must be applied in order.
        """Register a broker and its topics."""
        async with request.caller.data.setdefault(_REGISTERING, asyncio.Lock()):
            return await self._register(request)

    async def _register(self, request: Request[registration.RegisterBrokerRequest]) -> Answer:
        told = request.header
        if told.body_crc32 and body_crc32(request.body) != told.body_crc32:
            log.warning(
                "registration_refused broker=%r peer=%s reason='crc32'",
                told.broker_name,
                request.caller.address,
            )
            return Answer(code=ResponseCode.SYSTEM_ERROR, remark="crc32 not match")
        if len(request.body) > LARGE_BODY_BYTES:
            wanted = await asyncio.to_thread(_registration, request)
        else:
            wanted = _registration(request)
        result = await self._changes.run(self._routes.registering(wanted, self._clock.monotonic_s()))
        if request.caller.is_closed:  # closed meanwhile: its close event came before the registration
            _, notices = await self._changes.run(self._routes.losing_connection(request.caller))
            self._tell(notices)
        if result.refused is not None:
            log.warning(
                "registration_refused broker=%r id=%d address=%r reason=%r next='an update that "
                "arrived before the first complete registration is repeated automatically'",
                told.broker_name,
                told.broker_id,
                told.broker_addr,
                result.refused,
            )
            return Answer(code=ResponseCode.SYSTEM_ERROR, remark=result.refused)
        if result.ignored is not None:
            log.warning(
                "registration_ignored broker=%r id=%d address=%r reason=%r next='two brokers claim one id: "
                "stop one of them'",
                told.broker_name,
                told.broker_id,
                told.broker_addr,
                result.ignored,
            )
        elif result.is_new:
            log.info(
                "broker_registered broker=%r id=%d address=%r cluster=%r",
                told.broker_name,
                told.broker_id,
                told.broker_addr,
                told.cluster_name,
            )
        self._tell(result.notices)
        body = b""
        if self._options.return_order_topic_config_to_broker:
            ordered = self._kv.values(ORDER_TOPIC_CONFIG)
            body = b"" if ordered is None else KVTable(table=ordered).encode()
        return Answer(
            header=registration.RegisterBrokerAnswer(
                ha_server_addr=result.ha_address, master_addr=result.master_address
            ),
            body=body,
        )

    @serves(RequestCode.UNREGISTER_BROKER, registration.UnregisterBrokerRequest, CHANGES, lane="default")
    async def unregister(self, request: Request[registration.UnregisterBrokerRequest]) -> Answer:
        """Remove a broker."""
        told = request.header
        self._tell(
            await self._changes.run(
                self._routes.unregistering(
                    told.cluster_name, told.broker_name, told.broker_id, told.broker_addr
                )
            )
        )
        log.info(
            "broker_unregistered broker=%r id=%d address=%r cluster=%r reason='requested by the broker'",
            told.broker_name,
            told.broker_id,
            told.broker_addr,
            told.cluster_name,
        )
        return Answer()

    @serves(RequestCode.QUERY_DATA_VERSION, registration.DataVersionRequest, LOOKS, lane="default")
    def query_version(self, request: Request[registration.DataVersionRequest]) -> Answer:
        """Return whether the registered topics of a broker are out of date."""
        told = request.header
        theirs = DataVersion.decode(request.body) if request.body else None
        ours = self._routes.version_of(told.cluster_name, told.broker_addr)
        self._routes.refresh(told.cluster_name, told.broker_addr, self._clock.monotonic_s())
        return Answer(
            header=registration.DataVersionAnswer(changed=ours is None or ours != theirs),
            body=b"" if ours is None else ours.encode(),
        )

    @serves(RequestCode.BROKER_HEARTBEAT, registration.BrokerHeartbeatRequest, CHANGES, lane="default")
    def heartbeat(self, request: Request[registration.BrokerHeartbeatRequest]) -> Answer:
        """Extend the registration of a broker."""
        told = request.header
        self._routes.refresh(told.cluster_name, told.broker_addr, self._clock.monotonic_s())
        return Answer()

    @serves(
        RequestCode.GET_BROKER_MEMBER_GROUP,
        registration.BrokerMemberGroupRequest,
        of_cluster("cluster_name", GET),
        lane="default",
    )
    def members(self, request: Request[registration.BrokerMemberGroupRequest]) -> Answer:
        """Return the brokers of a group."""
        asked = request.header
        group = listings.member_group(self._routes, asked.cluster_name, asked.broker_name)
        return Answer(body=BrokerMemberGroupAnswer(broker_member_group=group).encode())

    @serves(RequestCode.GET_BROKER_CLUSTER_INFO, None, EVERYBODY, lane="default")
    def clusters(self, request: Request[None]) -> Answer:
        """Return the clusters and the addresses of their brokers."""
        return Answer(body=listings.cluster_info(self._routes).encode())

    @serves(RequestCode.WIPE_WRITE_PERM_OF_BROKER, registration.WipeWritePermRequest, CHANGES, lane="default")
    async def wipe_write_perm(self, request: Request[registration.WipeWritePermRequest]) -> Answer:
        """Remove the write permission from the topics of a broker."""
        name = request.header.broker_name
        count = await self._changes.run(self._routes.wiping_write_perm(name))
        log.info("write_perm_wiped broker=%r topics=%d by=%s", name, count, request.caller.address)
        return Answer(header=registration.WipeWritePermAnswer(wipe_topic_count=count))

    @serves(RequestCode.ADD_WRITE_PERM_OF_BROKER, registration.AddWritePermRequest, CHANGES, lane="default")
    async def add_write_perm(self, request: Request[registration.AddWritePermRequest]) -> Answer:
        """Give the topics of a broker their write permission back."""
        name = request.header.broker_name
        count = await self._changes.run(self._routes.adding_write_perm(name))
        log.info("write_perm_added broker=%r topics=%d by=%s", name, count, request.caller.address)
        return Answer(header=registration.AddWritePermAnswer(add_topic_count=count))


class TopicHandlers:
    """Handlers that list topics, and that add or delete one topic."""

    def __init__(self, routes: Routes, changes: Changes, options: NamesrvOptions) -> None:
        self._routes = routes
        self._changes = changes
        self._options = options

    @serves(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER, None, LOOKS, lane="default")
    async def all_topics(self, request: Request[None]) -> Answer:
        """Return the names of all topics."""
        if not self._options.enable_all_topic_list:
            return _DISABLED
        return await _listed(listings.all_topics(self._routes))

    @serves(
        RequestCode.GET_TOPICS_BY_CLUSTER,
        route.ClusterTopicsRequest,
        of_cluster("cluster", GET),
        lane="default",
    )
    async def cluster_topics(self, request: Request[route.ClusterTopicsRequest]) -> Answer:
        """Return the names of the topics of a cluster."""
        if not self._options.enable_topic_list:
            return _DISABLED
        return await _listed(listings.cluster_topics(self._routes, request.header.cluster))

    @serves(RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS, None, LOOKS, lane="default")
    def system_topics(self, request: Request[None]) -> Answer:
        """Return the names of clusters and brokers, which are system topics."""
        return Answer(body=listings.system_topics(self._routes).encode())

    @serves(RequestCode.GET_UNIT_TOPIC_LIST, None, LOOKS, lane="default")
    async def unit_topics(self, request: Request[None]) -> Answer:
        """Return the names of the topics with the unit flag."""
        if not self._options.enable_topic_list:
            return _DISABLED
        return await _listed(listings.unit_topics(self._routes))

    @serves(RequestCode.GET_HAS_UNIT_SUB_TOPIC_LIST, None, LOOKS, lane="default")
    async def unit_subscribed(self, request: Request[None]) -> Answer:
        """Return the names of the topics with the unit subscription flag."""
        if not self._options.enable_topic_list:
            return _DISABLED
        return await _listed(listings.unit_subscribed_topics(self._routes))

    @serves(RequestCode.GET_HAS_UNIT_SUB_UNUNIT_TOPIC_LIST, None, LOOKS, lane="default")
    async def unit_subscribed_not_unit(self, request: Request[None]) -> Answer:
        """Return the names of the topics with the unit subscription flag only."""
        if not self._options.enable_topic_list:
            return _DISABLED
        return await _listed(listings.unit_subscribed_not_unit_topics(self._routes))

    @serves(
        RequestCode.DELETE_TOPIC_IN_NAMESRV,
        route.DeleteTopicAtNameServerRequest,
        of_cluster("cluster_name", UPDATE, administers=True),
        lane="default",
    )
    async def delete(self, request: Request[route.DeleteTopicAtNameServerRequest]) -> Answer:
        """Remove a topic from the routes."""
        asked = request.header
        async with self._changes.turn:
            self._routes.delete_topic(asked.topic, asked.cluster_name)
        log.info(
            "topic_deleted topic=%r cluster=%r by=%s",
            asked.topic,
            asked.cluster_name or "all",
            request.caller.address,
        )
        return Answer()

    @serves(RequestCode.REGISTER_TOPIC_IN_NAMESRV, route.RegisterTopicRequest, CHANGES, lane="default")
    def register(self, request: Request[route.RegisterTopicRequest]) -> Later:
        """Add the queues of a topic to the routes."""
        queues = TopicRoute.decode(request.body).queue_datas if request.body else ()
        return lambda: self._register(request.header.topic, queues)

    async def _register(self, topic: str, queues: Sequence[QueueData]) -> Answer:
        async with self._changes.turn:
            unknown = self._routes.register_topic(topic, queues)
        if unknown is not None:
            log.warning("topic_not_added topic=%r broker=%r next='register the broker first'", topic, unknown)
        return Answer()


class OptionHandlers(OwnOptions):
    """Handlers of requests about the name server's options."""

    @serves(RequestCode.UPDATE_NAMESRV_CONFIG, None, CHANGES_OPTIONS, lane="default")
    async def update(self, request: Request[None]) -> Answer:
        """Change options that are changeable at run time, all or none, and write them to the configuration
        file."""
        return await super().update(request)

    @serves(RequestCode.GET_NAMESRV_CONFIG, None, LOOKS, lane="default")
    def show(self, request: Request[None]) -> Answer:
        """Return the options of the name server."""
        return super().show(request)


class KvHandlers:
    """Handlers of the key-value table: PUT_KV_CONFIG (100), GET_KV_CONFIG (101), DELETE_KV_CONFIG (102) and
    GET_KVLIST_BY_NAMESPACE (219)."""

    def __init__(self, kv: KvConfig, routes: Routes) -> None:
        self._kv = kv
        self._routes = routes
        kv.on_change.append(self._order_changed)

    @serves(RequestCode.PUT_KV_CONFIG, PutKvRequest, CHANGES, lane="default")
    async def put(self, request: Request[PutKvRequest]) -> Answer:
        """Store a value by namespace and key."""
        asked = request.header
        if asked.namespace is None or asked.key is None:
            return Answer(code=ResponseCode.SYSTEM_ERROR, remark="namespace or key is null")
        # The compact header cannot carry an empty text, so a missing value is empty.
        await self._kv.put(asked.namespace, asked.key, asked.value or "")
        return Answer()

    @serves(RequestCode.GET_KV_CONFIG, GetKvRequest, GET_KV, lane="default")
    def get(self, request: Request[GetKvRequest]) -> Answer:
        """Return a value."""
        asked = request.header
        value = self._kv.value(asked.namespace, asked.key)
        if value is None:
            return Answer(
                code=ResponseCode.QUERY_NOT_FOUND,
                remark=f"No config item, Namespace: {asked.namespace} Key: {asked.key}",
            )
        return Answer(header=GetKvAnswer(value=value))

    @serves(RequestCode.DELETE_KV_CONFIG, DeleteKvRequest, CHANGES, lane="default")
    async def delete(self, request: Request[DeleteKvRequest]) -> Answer:
        """Delete a value."""
        asked = request.header
        if asked.namespace is not None and asked.key is not None:
            await self._kv.delete(asked.namespace, asked.key)
        return Answer()

    @serves(RequestCode.GET_KVLIST_BY_NAMESPACE, KvListRequest, LOOKS, lane="default")
    def list(self, request: Request[KvListRequest]) -> Answer:
        """Return the keys and values of a namespace."""
        namespace = request.header.namespace
        values = self._kv.values(namespace)
        if values is None:
            return Answer(code=ResponseCode.QUERY_NOT_FOUND, remark=f"No config item, Namespace: {namespace}")
        return Answer(body=KVTable(table=values).encode())

    def _order_changed(self, namespace: str, key: str) -> None:
        if namespace == ORDER_TOPIC_CONFIG:
            self._routes.order_changed(key)


async def _listed(topics: TopicList) -> Answer:
    """Encode a topic list in a thread: it may be long, and other requests must be served meanwhile."""
    return Answer(body=await asyncio.to_thread(topics.encode))


def _registration(request: Request[registration.RegisterBrokerRequest]) -> BrokerRegistration:
    told = request.header
    body = RegistrationBody()
    if request.body:
        body = decode_registration(request.body, compressed=told.compressed, version=request.caller.version)
    table = body.topic_config_serialize_wrapper
    timeout_ms = told.heartbeat_timeout_millis
    return BrokerRegistration(
        cluster=told.cluster_name,
        name=told.broker_name,
        id=told.broker_id,
        address=told.broker_addr,
        version=table.data_version,
        topics=table.topic_config_table,
        mappings=table.topic_queue_mapping_info_map,
        ha_address=told.ha_server_addr,
        zone=told.zone_name,
        timeout_s=None if timeout_ms is None else timeout_ms / 1000,
        acting_master=told.enable_acting_master,
        filter_servers=body.filter_server_list,
        connection=request.caller,
        process=None
        if told.broker_identity is None or told.broker_start is None
        else BrokerProcess(told.broker_identity, told.broker_start),
    )
