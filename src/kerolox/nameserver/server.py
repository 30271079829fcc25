"""The name server: its parts, and their start and stop order.

Several name servers run independently: every broker registers with each of them.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Coroutine, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any

from kerolox.access.server_access import ServerAccess
from kerolox.clock import SYSTEM_CLOCK, Clock, TimerHandle
from kerolox.config_file import ConfigFile
from kerolox.errors import KeroloxError, OptionError
from kerolox.front.caller import Caller, CallerEvents
from kerolox.front.lanes import BODY_BYTES_MAX, Lane
from kerolox.front.needs import ClusterView
from kerolox.front.rows import rows_of
from kerolox.nameserver.brokers import BrokerKey, MinIdNotice
from kerolox.nameserver.changes import Changes
from kerolox.nameserver.handlers import (
    BrokerHandlers,
    KvHandlers,
    OptionHandlers,
    RouteHandlers,
    StartUp,
    TopicHandlers,
)
from kerolox.nameserver.kv import ORDER_TOPIC_CONFIG, KvConfig
from kerolox.nameserver.options import NamesrvOptions
from kerolox.nameserver.routes import Routes
from kerolox.net.dialer import Dialer
from kerolox.net.handlers import RemotingHandlers
from kerolox.net.listener import ListenFailed
from kerolox.net.peer import PeerLimits
from kerolox.net.server import Server
from kerolox.protocol import fast_codecs  # noqa: F401 — route queries are decoded in one pass
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers.registration import MinBrokerIdChanged

log = logging.getLogger(__name__)

FIRST_SCAN_S = 5.0
NOTICE_TIMEOUT_S = 0.3  # as in RocketMQ
NOTICES_MAX = 1000  # notices in flight


# Requests of tools for whole tables: before the brokers have registered, an empty list would be as wrong as
# "no such topic".
class NameServer(CallerEvents):
    """Serves topic routes. ``async with`` starts and stops it.

    ``brokers_awaited`` is the number of brokers that start together with it: before they have registered it
    does not answer that a topic does not exist. A ``controller`` starts and stops with it.
    """

    def __init__(
        self,
        options: NamesrvOptions | None = None,
        *,
        clock: Clock = SYSTEM_CLOCK,
        brokers_awaited: int = 0,
        controller: AbstractAsyncContextManager[object] | None = None,
    ) -> None:
        self.options = options or NamesrvOptions()
        self._controller = controller
        self.kv = KvConfig(self.options.kv_config_path)
        self.routes = Routes(self.options, lambda topic: self.kv.value(ORDER_TOPIC_CONFIG, topic))
        self.changes = Changes()
        self._config_file = ConfigFile(self.options.config_store_path)
        self._clock = clock
        self._brokers_awaited = brokers_awaited
        self._server: Server | None = None
        self._scan: TimerHandle | None = None
        self.access = ServerAccess(self.options, ClusterView(self.options.access_cluster), clock)
        self._dialer = Dialer(clock=clock, tls=self.options.own_tls, credentials=self.options.own_credentials)
        self._notices: set[asyncio.Task[None]] = set()
        self._tasks: set[asyncio.Task[None]] = set()  # changes that the server started itself
        self._closed = False

    async def start(self) -> None:
        if self.options.enable_controller_in_namesrv and self._controller is None:
            raise OptionError(
                "enableControllerInNamesrv",
                True,
                "the command kerolox nameserver, which starts the controller",
            )
        self.options.check_server()
        await self.kv.load()
        await self.access.open()
        self._server = Server(
            self._handlers(),
            host=await _resolve(self.options.bind_address),
            port=self.options.listen_port,
            events=self,
            limits=PeerLimits(idle_s_max=self.options.server_channel_max_idle_time_seconds),
            for_each_address=self.options.connections_for_each_address,
            tls=self.options.tls,
            clock=self._clock,
        )
        await self._server.start()
        if self._controller is not None:
            await self._controller.__aenter__()
        self._scan = self._clock.beat(FIRST_SCAN_S, self._forget_quiet)
        log.info("nameserver_started address=%s", self.address)

    async def close(self) -> None:
        """Stop accepting requests, then wait until accepted changes are on disk."""
        if self._closed:
            return
        self._closed = True
        if self._controller is not None:
            await self._controller.__aexit__(None, None, None)
        if self._scan is not None:
            self._scan.cancel()
        if self._server is not None:
            await self._server.close()
        for task in (*self._notices, *self._tasks):
            task.cancel()
        await self._dialer.close()
        await self.access.close()
        await self.kv.close()
        await self._config_file.close()
        log.info("nameserver_stopped address=%s", self.address)

    async def __aenter__(self) -> NameServer:
        try:
            await self.start()
        except BaseException:
            await self.close()
            raise
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    @property
    def address(self) -> str:
        """Listen address, as ``ip:port``."""
        return "" if self._server is None else self._server.address

    @property
    def port(self) -> int:
        return 0 if self._server is None else self._server.port

    def _handlers(self) -> RemotingHandlers:
        # When a broker fails, thousands of clients request routes: they have a separate lane.
        lanes = {
            "route": Lane("route", clock=self._clock),
            "default": Lane("default", body_bytes_max=BODY_BYTES_MAX, clock=self._clock),
            "registration": Lane("registration", running_max=4, waiting_max=1000, clock=self._clock),
        }
        opening = StartUp(self.routes, self.options, self._clock, self._brokers_awaited)
        own = OptionHandlers(
            self.options,
            self._config_file,
            lambda: self.port,
            self.options.black_listed,
            self.routes.options_changed,
        )
        handlers = RemotingHandlers(self.access.guard)
        for part in (
            RouteHandlers(self.routes, opening),
            BrokerHandlers(self.routes, self.changes, self.kv, self.options, self._clock, self._tell),
            TopicHandlers(self.routes, self.changes, self.options),
            KvHandlers(self.kv, self.routes),
            own,
        ):
            handlers.serve(opening.guarded(rows_of(part)), lanes)
        return handlers

    # --- lost brokers ------------------------------------------------------------------------

    def closed(self, caller: Caller, reason: str, /) -> None:
        if self._closed:
            return
        if self.routes.speaks(caller):
            self._start(self._lose(caller, reason))

    async def _lose(self, caller: Caller, reason: str) -> None:
        gone, notices = await self.changes.run(self.routes.losing_connection(caller))
        self._forgotten(gone, reason, notices)

    def _forget_quiet(self) -> None:
        self._start(self._forget_quiet_now())

    async def _forget_quiet_now(self) -> None:
        steps = self.routes.forgetting_quiet(self._clock.monotonic_s())
        connections, gone, notices = await self.changes.run(steps)
        self._forgotten(gone, "no heartbeat in time", notices)
        for caller in connections:
            caller.close("its broker sent no heartbeat in time")
        interval_s = self.options.scan_not_active_broker_interval / 1000
        self._scan = self._clock.beat(interval_s, self._forget_quiet)

    def _start(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _forgotten(self, gone: list[BrokerKey], reason: str, notices: list[MinIdNotice]) -> None:
        for cluster, address in gone:
            log.info("broker_forgotten address=%r cluster=%r reason=%r", address, cluster, reason)
        self._tell(notices)

    # --- notices of a new lowest id ----------------------------------------------------------

    def _tell(self, notices: Iterable[MinIdNotice]) -> None:
        for notice in notices:
            log.info("min_broker_id_changed id=%d address=%r", notice.min_id, notice.min_address)
            for address in notice.to:
                if len(self._notices) >= NOTICES_MAX:
                    log.warning(
                        "notice_dropped address=%r limit=%d next='check the brokers: too many do not answer'",
                        address,
                        NOTICES_MAX,
                    )
                    continue
                task = asyncio.get_running_loop().create_task(self._send(notice, address))
                self._notices.add(task)
                task.add_done_callback(self._notices.discard)

    async def _send(self, notice: MinIdNotice, address: str) -> None:
        header = MinBrokerIdChanged(
            min_broker_id=notice.min_id,
            min_broker_addr=notice.min_address,
            offline_broker_addr=notice.offline_address,
            ha_broker_addr=notice.ha_address,
        )
        try:
            await self._dialer.tell(
                address, RequestCode.NOTIFY_MIN_BROKER_ID_CHANGE, header, timeout_s=NOTICE_TIMEOUT_S
            )
        except KeroloxError as error:
            log.warning(
                "notice_failed address=%r error=%r next='the broker polls for it'", address, str(error)
            )


async def _resolve(host: str) -> str:
    """Return the IP address of a bind address; names are resolved in a thread."""
    try:
        ipaddress.ip_address(host)
    except ValueError:
        try:
            found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
        except OSError as error:
            raise ListenFailed(host, error) from error
        return str(found[0][4][0])
    return host
