"""Registration of the broker and its topics at the name servers.

Each name server has its own connection and task, so that none waits for another. All topics are registered at
the start, every 30 s, and after a lost connection, since a name server forgets a broker whose connection
closes. A changed topic is registered at once. Topics that a name server has not confirmed are registered
again.

A name server of RocketMQ 5 gets changed topics by one request for each, or by a registration of all topics.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Mapping

import msgspec

from kerolox.broker.base import Base
from kerolox.broker.role.elector import Elector
from kerolox.broker.role.value import LeaderAddress
from kerolox.broker.tables.topics import Topics
from kerolox.errors import KeroloxError, RequestFailed
from kerolox.front.caller import Caller, CallerEvents
from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.registration import Registration, body_crc32
from kerolox.protocol.bodies.routes import KVTable, QueueData, TopicRoute
from kerolox.protocol.bodies.topics import TopicConfig, TopicConfigTable
from kerolox.protocol.codes import VERSION_QUEUE_MAPPING, RequestCode, ResponseCode
from kerolox.protocol.flags import PERM_READ_WRITE
from kerolox.protocol.headers.registration import (
    RegisterBrokerAnswer,
    RegisterBrokerRequest,
    UnregisterBrokerRequest,
)
from kerolox.protocol.headers.route import RegisterTopicRequest

log = logging.getLogger(__name__)

RETRY_FIRST_S = 0.2
RETRY_MAX_S = 5.0
UNREGISTER_TIMEOUT_S = 3.0
READY_TIMEOUT_S = 3.0  # longest wait of a start for name servers
TELL_AGAIN_S = 0.02  # interval of checks whether name servers know a new leader
SINGLE_MAX = 16  # changed topics registered one by one; above that all are registered
LEADERLESS_S = 5.0  # interval of registrations of a follower without a leader; the answer names a leader


class NameServerLine:
    """State of one name server."""

    def __init__(self, address: str) -> None:
        self.address = address
        self.knows_us = False  # it has confirmed all topics over the current connection
        self.changed: dict[str, TopicConfig] = {}  # topics changed since, and not confirmed yet
        self.leader: LeaderAddress | None = None  # the leader it reports, while it knows this broker
        self.ordered: frozenset[str] = frozenset()  # topics listed as ordered by the last full answer
        self.takes_topics = False  # it supports REGISTER_TOPIC_IN_NAMESRV: RocketMQ's do since 5.0
        self.failures = 0
        self.last_error = ""
        self.wake = asyncio.Event()
        self.tried = asyncio.Event()
        self.settled = asyncio.Event()  # everything is registered, or the registration failed
        self.task: asyncio.Task[None] | None = None


class Registrations(CallerEvents):
    """Registrations at all name servers.

    They have connections of their own: a name server forgets a broker whose connection ends, so their end is
    an event here, and no other part may end them.
    """

    def __init__(self, base: Base, topics: Topics, nameservers: Iterable[str]) -> None:
        options, endpoints = base.options, base.endpoints
        self.lines = [NameServerLine(server) for server in nameservers]
        self._topics = topics
        self._leadership = base.leadership
        self._options = options
        self._address = endpoints.address  # for clients
        self._ha_address = endpoints.ha_address  # for followers
        self._clock = base.clock
        self._start = base.start
        self._dialer = Dialer(
            events=self, clock=base.clock, tls=options.own_tls, credentials=options.own_credentials
        )
        self._began = False
        self._closed = False

    def begin(self, elector: Elector) -> None:
        """Register at all name servers from now on, in the background. ``elector`` is asked before each
        registration, and notified of the leader that name servers report."""
        if self._began:
            self.register_all()
            return
        self._began = True
        if not self.lines:
            log.warning(
                "no_nameserver next='set namesrvAddr; until then clients find this broker only by its "
                "address'"
            )
            return
        loop = asyncio.get_running_loop()
        for line in self.lines:
            line.task = loop.create_task(self._run(line, elector))

    async def start(self, elector: Elector) -> None:
        """Begin to register, and wait until all name servers have answered or the time is over."""
        self.begin(elector)
        if not self.lines:
            return
        loop = asyncio.get_running_loop()
        waiting = [loop.create_task(line.tried.wait()) for line in self.lines]
        _, late = await asyncio.wait(waiting, timeout=READY_TIMEOUT_S)
        for task in late:
            task.cancel()

    async def close(self) -> None:
        """Unregister at all name servers and close the connections."""
        if self._closed:
            return
        self._closed = True
        tasks = [line.task for line in self.lines if line.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.gather(*(self._unregister(line) for line in self.lines))
        await self._dialer.close()

    def topic_changed(self, config: TopicConfig) -> None:
        """Register this topic now."""
        for line in self.lines:
            line.changed[config.topic_name] = config
            line.settled.clear()
            line.wake.set()

    async def settled(self) -> None:
        """Wait until the name servers that answer know all changes so far."""
        waiting = [asyncio.ensure_future(line.settled.wait()) for line in self.lines if line.task is not None]
        if waiting:
            _, late = await asyncio.wait(waiting, timeout=READY_TIMEOUT_S)
            for task in late:
                task.cancel()

    def register_all(self) -> None:
        """Register everything now: permissions of the broker or many topics have changed; or brokers of this
        name came or went, and the answer names the leader."""
        for line in self.lines:
            line.knows_us = False
            line.settled.clear()
            line.wake.set()

    async def tell_of(self, leader: str, timeout_s: float) -> bool:
        """Wait until name servers that know this broker report ``leader`` as the leader. Return False after
        the timeout."""
        until_s = self._clock.monotonic_s() + timeout_s
        while True:
            self.register_all()
            await self.settled()
            known = [line.leader for line in self.lines if line.knows_us]
            if all(one is not None and one.address == leader for one in known):
                return True
            if self._clock.monotonic_s() >= until_s:
                return False
            await self._clock.sleep(TELL_AGAIN_S)

    # --- events of connections -------------------------------------------------------------------------

    def closed(self, caller: Caller, reason: str, /) -> None:
        for line in self.lines:
            if line.knows_us and self._dialer.connected_peer(line.address) is None:
                line.knows_us = False
                line.wake.set()

    # --- one name server -------------------------------------------------------------------------------

    async def _run(self, line: NameServerLine, elector: Elector) -> None:
        while not self._closed:
            line.wake.clear()
            try:
                await self._tell(line, elector)
            except KeroloxError as error:
                wait_s = min(RETRY_MAX_S, RETRY_FIRST_S * 2 ** min(line.failures, 10))
                self._failed(line, error)
                line.tried.set()
                line.settled.set()
                # Further changes do not end this pause, so that an unreachable name server is not tried more
                # often because of them.
                await self._clock.sleep(wait_s)
                continue
            line.tried.set()
            if not line.changed and line.knows_us:
                line.settled.set()
                await self._woken(line, self._pause_s)
                if not line.wake.is_set():
                    line.knows_us = False  # time for the next full registration

    @property
    def _pause_s(self) -> float:
        leadership = self._leadership
        pause_s = self._options.register_interval_ms / 1000
        return pause_s if leadership.leads or leadership.leader else min(pause_s, LEADERLESS_S)

    async def _woken(self, line: NameServerLine, timeout_s: float) -> None:
        done = asyncio.Event()
        timer = self._clock.call_later(timeout_s, done.set)
        waits = [asyncio.ensure_future(done.wait()), asyncio.ensure_future(line.wake.wait())]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            timer.cancel()
            for wait in waits:
                wait.cancel()

    async def _tell(self, line: NameServerLine, elector: Elector) -> None:
        """Register all topics, or the changed ones."""
        pending, line.changed = line.changed, {}
        if line.knows_us and not pending:
            return
        # A name server of RocketMQ 5 may take a registration as the full list of topics, and remove this
        # broker's others (deleteTopicWithBrokerRegistration). So it gets one request for each topic, or all
        # topics.
        whole = not line.knows_us or (line.takes_topics and not self._are_single(pending))
        configs = self._topics.table.topics.values() if whole else pending.values()
        try:
            if whole:
                await elector.before_registering(line.address)
            if whole or not line.takes_topics or not await self._register_singly(line, pending.values()):
                line.leader = await self._register(line, configs, elector.place, whole=whole)
        except BaseException:
            line.knows_us = False
            line.changed = pending | line.changed
            raise
        if whole:
            if line.last_error or line.failures:
                log.info("registered nameserver=%s failures_before=%d", line.address, line.failures)
            elif not line.tried.is_set():
                log.info("registered nameserver=%s address=%r", line.address, self._address)
            line.failures = 0
            line.last_error = ""
            # The connection may have closed between the answer and now.
            line.knows_us = self._dialer.connected_peer(line.address) is not None
        # A name server that has just started may not know the leader yet, while others do.
        leaders = (one.leader for one in self.lines if one.knows_us and one.leader)
        elector.reported(next(leaders, None))

    def _are_single(self, changed: Mapping[str, TopicConfig]) -> bool:
        """True if these topics are few, and the name server accepts single topics from this broker."""
        return self._leadership.id == 0 and len(changed) <= SINGLE_MAX

    async def _register_singly(self, line: NameServerLine, topics: Iterable[TopicConfig]) -> bool:
        """Register each of these topics by one request. Return False if the name server does not support
        it."""
        timeout_s = self._options.register_timeout_ms / 1000
        for config in topics:
            registered = self._as_registered(config)
            queues = QueueData(
                broker_name=self._options.broker_name,
                read_queue_nums=registered.read_queue_nums,
                write_queue_nums=registered.write_queue_nums,
                perm=registered.perm,
                topic_sys_flag=registered.topic_sys_flag,
            )
            header = RegisterTopicRequest(topic=registered.topic_name)
            body = TopicRoute(queue_datas=(queues,)).encode()
            code = RequestCode.REGISTER_TOPIC_IN_NAMESRV
            answer = await self._dialer.call(line.address, code, header, body, timeout_s=timeout_s)
            if answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED:
                line.takes_topics = False
                return False
            if answer.code != 0:
                raise RequestFailed(answer.code, answer.remark, address=line.address, request=code.name)
        self._order(line.ordered)
        return True

    async def _register(
        self, line: NameServerLine, topics: Iterable[TopicConfig], place: str | None, *, whole: bool
    ) -> LeaderAddress | None:
        """Register these topics. Return the leader that the name server reports, if it is another broker."""
        nameserver, options = line.address, self._options
        table = TopicConfigTable(
            data_version=self._topics.table.version,
            mapping_data_version=self._topics.table.version,
            topic_config_table={config.topic_name: self._as_registered(config) for config in topics},
        )
        body = Registration(topic_config_serialize_wrapper=table).encode()
        header = RegisterBrokerRequest(
            broker_name=options.broker_name,
            broker_addr=self._address,
            cluster_name=options.cluster,
            broker_id=self._leadership.id,
            ha_server_addr=self._ha_address,
            heartbeat_timeout_millis=options.not_alive_ms if options.acting else None,
            enable_acting_master=options.acting,
            body_crc32=body_crc32(body),
            broker_identity=place,
            broker_start=self._start,
        )
        timeout_s = options.register_timeout_ms / 1000
        answer = await self._dialer.call(
            nameserver, RequestCode.REGISTER_BROKER, header, body, timeout_s=timeout_s
        )
        if answer.code != 0:
            raise RequestFailed(answer.code, answer.remark, address=nameserver, request="REGISTER_BROKER")
        if whole:
            line.takes_topics = answer.version >= VERSION_QUEUE_MAPPING
        if answer.body:
            line.ordered = frozenset(KVTable.decode(answer.body).table)
            self._order(line.ordered)
        found = answer.header(RegisterBrokerAnswer)
        if not found.master_addr or found.master_addr == self._address:
            return None
        return LeaderAddress(found.master_addr, found.ha_server_addr or "")

    def _as_registered(self, config: TopicConfig) -> TopicConfig:
        """Return a topic as clients see it: topics of a broker without write permission are not writable."""
        permission = self._options.permission
        if permission & PERM_READ_WRITE == PERM_READ_WRITE:
            return config
        return msgspec.structs.replace(config, perm=config.perm & permission)

    def _order(self, topics: Iterable[str]) -> None:
        """Mark the topics that the name server lists as ordered. As in RocketMQ, no mark is removed."""
        for topic in topics:
            config = self._topics.find(topic)
            if config is not None and not config.order:
                log.info("topic_ordered topic=%r reason='the name server lists it as ordered'", topic)
                self._topics.put(msgspec.structs.replace(config, order=True))

    async def _unregister(self, line: NameServerLine) -> None:
        peer = self._dialer.connected_peer(line.address)
        if peer is None:
            return
        options = self._options
        header = UnregisterBrokerRequest(
            broker_name=options.broker_name,
            broker_addr=self._address,
            cluster_name=options.cluster,
            broker_id=self._leadership.id,
        )
        try:
            await peer.call(RequestCode.UNREGISTER_BROKER, header, timeout_s=UNREGISTER_TIMEOUT_S)
        except KeroloxError as error:
            log.warning(
                "unregister_failed nameserver=%s error=%r next='nothing: the name server notices the closed "
                "connection'",
                line.address,
                str(error),
            )

    def _failed(self, line: NameServerLine, error: KeroloxError) -> None:
        line.failures += 1
        reason = str(error).partition("; failed ")[0]
        if reason != line.last_error or line.failures % 100 == 0:  # repeated errors are counted, not logged
            line.last_error = reason
            log.warning(
                "register_failed nameserver=%s failures=%d error=%r next='retried; until then clients "
                "of that name server do not see the latest state of this broker'",
                line.address, line.failures, reason,
            )  # fmt: skip
