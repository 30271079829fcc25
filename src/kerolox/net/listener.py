"""A listening port: accepts connections and creates the protocol of each, with or without TLS.

If the port accepts TLS, the first byte of a new connection is peeked: it tells TLS from plain. A peek needs
no task and no buffer, so thousands of silent connections cost only their sockets.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import socket
from collections.abc import Callable

from kerolox.clock import SYSTEM_CLOCK, Clock, TimerHandle
from kerolox.descriptors import PROCESS, Descriptors
from kerolox.errors import KeroloxError
from kerolox.net.address import address_text, source_of
from kerolox.net.places import SPOKE, STRANGER, Places
from kerolox.net.tls import CLIENT_HELLO, ServerContext, ServerTls, TlsMode

log = logging.getLogger(__name__)

BACKLOG = 1024  # as in RocketMQ
ACCEPTED_AT_ONCE = 64  # then the accepted ones are read, so that one with data does not count as silent
SCAN_S = 1.0  # interval of checks of silent connections and certificates
SILENT_S_MAX = 120.0  # until the first byte
REPORT_AGAIN_S = 60.0  # interval of warnings about plain connections on a TLS port


class ListenFailed(KeroloxError):
    """Error: the address cannot be listened on."""

    def __init__(self, address: str, reason: object) -> None:
        self.address = address
        super().__init__(f"cannot listen on {address}: {listen_failure(address, reason)}")


def listen_failure(address: str, reason: object) -> str:
    """Return the cause of a failed listen and the next step, by its errno."""
    host, _, port = address.partition(" ")[0].rpartition(":")
    number = reason.errno if isinstance(reason, OSError) else None
    if number == errno.EADDRNOTAVAIL:
        return (
            f"{host} is not an address of this machine. Next: listen on one that `ip address` shows, or on "
            "0.0.0.0; clients can be given another address (--advertised-host, brokerIP1)."
        )
    if number == errno.EADDRINUSE:
        return (
            f"another process uses port {port}. Next: find it (`ss -ltnp 'sport = :{port}'`) and stop it, or "
            "choose another port."
        )
    if number in (errno.EACCES, errno.EPERM):
        return (
            f"this user may not use port {port} ({reason}). Next: choose a port above 1023, or grant "
            "CAP_NET_BIND_SERVICE."
        )
    return f"{reason}. Next: check the address and the network of this machine."


class _Arrival:
    """An accepted connection that has no protocol yet."""

    def __init__(self, listener: Listener, sock: socket.socket, source: str, now_s: float) -> None:
        self.sock = sock
        self.source = source
        self.silent_since_s = now_s
        self.task: asyncio.Task[None] | None = None  # creates the protocol
        self._listener = listener

    @property
    def rank(self) -> int:
        """A connection whose first bytes wait to be read does not count as silent."""
        try:
            return SPOKE if self.sock.recv(1, socket.MSG_PEEK) else STRANGER
        except OSError:  # no data yet; or its protocol has read it
            return STRANGER

    def close(self, reason: str, /, *, at_once: bool = False) -> None:
        log.debug("arrival_closed peer=%s reason=%r", self.source, reason)
        if self.task is not None:
            self.task.cancel()
        else:
            self._listener.drop(self)


class Listener:
    """Listening port. ``accept`` creates the protocol of each connection; owners record connected ones in
    ``places``.

    All ports of the process share the connections of ``descriptors``; ``connections_max`` limits this port
    below that.
    """

    def __init__(
        self,
        accept: Callable[[], asyncio.BaseProtocol],
        *,
        host: str,
        port: int,
        tls: ServerTls = ServerTls(),
        for_each_address: int = 0,
        connections_max: int | None = None,
        silent_s_max: Callable[[], float] = lambda: SILENT_S_MAX,
        about: str = "",
        clock: Clock = SYSTEM_CLOCK,
        descriptors: Descriptors = PROCESS,
    ) -> None:
        self.host = host
        self.port = port
        self.address = ""
        self.tls: ServerContext | None = None
        self.unknown: dict[socket.socket, _Arrival] = {}  # accepted, no byte received yet
        self.connections_max = connections_max or descriptors.connections_max
        self.places = Places(self._places_max, for_each_address)
        self._descriptors = descriptors
        descriptors.add_port(self.places)
        self._accept_one = accept
        self._tls_options = tls
        self._silent_s_max = silent_s_max
        self._about = about  # for error texts
        self._clock = clock
        self._socket: socket.socket | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._scan: TimerHandle | None = None
        self._closing = False
        self._is_deaf = False  # accepts nothing until the next scan
        self._reported = 0, 0  # counts of rejected and closed connections in the last warning
        self._plaintext = 0  # plain connections rejected since the last warning
        self._plaintext_reported_s = -REPORT_AGAIN_S

    async def bind(self, *, fresh: bool = False) -> None:
        """Bind the port without accepting connections: for a server that must know its port before it can
        serve.

        ``fresh``: any free port would do, so the port must not be shared. (A requested port may be shared
        with connections of an earlier process, and so also with a process that has bound it and does not
        listen yet.)
        """
        loop = asyncio.get_running_loop()
        self.tls = await loop.run_in_executor(None, ServerContext, self._tls_options)
        try:
            self._socket = _bind(self.host, self.port, shared=self.port != 0 and not fresh)
        except (OSError, OverflowError) as error:
            raise self._failed(error) from error
        self.port = self._socket.getsockname()[1]
        self.address = address_text(self._socket.getsockname())

    async def start(self) -> None:
        if self._socket is None:
            await self.bind()
        assert self._socket is not None
        try:
            _let_share(self._socket)  # with connections of an earlier process
            self._socket.listen(BACKLOG)
        except OSError as error:
            self._socket.close()
            self._socket = None
            raise self._failed(error) from error
        asyncio.get_running_loop().add_reader(self._socket.fileno(), self._accept)
        self._scan = self._clock.beat(SCAN_S, self._look_at_all)

    def close(self) -> None:
        """Stop accepting connections. The owner closes those that have a protocol."""
        if self._closing:
            return
        self._closing = True
        if self._scan is not None:
            self._scan.cancel()
        if self._socket is not None:
            asyncio.get_running_loop().remove_reader(self._socket.fileno())
            self._socket.close()
        for arrival in list(self.unknown.values()):
            self.drop(arrival)
        for task in list(self._tasks):
            task.cancel()

    def _places_max(self) -> int:
        return max(0, min(self.connections_max, self._descriptors.connections_left(self.places)))

    def _failed(self, error: object) -> ListenFailed:
        return ListenFailed(f"{self.host}:{self.port}{self._about}", error)

    # --- accepting ---------------------------------------------------------------------------

    def _accept(self) -> None:
        assert self._socket is not None
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                sock, name = self._socket.accept()
            except (BlockingIOError, InterruptedError, ConnectionAbortedError):
                return
            except OSError as error:
                # Out of descriptors: close a silent connection, or else serve only the existing ones. The
                # port stays readable, so it is ignored until the next scan: polling it would use up the loop.
                self.places.make_room(self._clock.monotonic_s())
                log.warning(
                    "accept_failed error=%r next='raise the limit of open files (ulimit -n)'", str(error)
                )
                asyncio.get_running_loop().remove_reader(self._socket.fileno())
                self._is_deaf = True
                return
            arrival = _Arrival(self, sock, source_of(address_text(name)), self._clock.monotonic_s())
            crowded = sock.fileno() >= self._descriptors.ceiling
            if not self.places.take(arrival, arrival.silent_since_s, crowded=crowded):
                sock.close()
                continue
            sock.setblocking(False)
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            if self.tls is None or not self.tls.speaks_tls:
                self._adopt(arrival, is_tls=False)
            else:
                self.unknown[sock] = arrival
                asyncio.get_running_loop().add_reader(sock.fileno(), self._look, arrival)

    def _look(self, arrival: _Arrival) -> None:
        sock = arrival.sock
        try:
            first = sock.recv(1, socket.MSG_PEEK)
        except (BlockingIOError, InterruptedError):
            return
        except OSError:
            first = b""
        assert self.tls is not None
        is_tls = bool(first) and first[0] == CLIENT_HELLO
        if not first or (not is_tls and self.tls.options.mode is TlsMode.ENFORCING):
            if first:
                self._count_plaintext(sock)
            self.drop(arrival)
            return
        self._forget(sock)
        self._adopt(arrival, is_tls=is_tls)

    def _count_plaintext(self, sock: socket.socket) -> None:
        """Log that a plain connection was rejected; once a minute, because clients retry."""
        self._plaintext += 1
        now_s = self._clock.monotonic_s()
        if now_s - self._plaintext_reported_s < REPORT_AGAIN_S:
            return
        try:
            peer = address_text(sock.getpeername())
        except OSError:
            peer = ""
        log.warning(
            "plain_refused port=%d count=%d last=%r next='this port accepts only TLS: tls.server.mode is "
            "enforcing'",
            self.port, self._plaintext, peer,
        )  # fmt: skip
        self._plaintext, self._plaintext_reported_s = 0, now_s

    def _forget(self, sock: socket.socket) -> None:
        if self.unknown.pop(sock, None) is not None:
            asyncio.get_running_loop().remove_reader(sock.fileno())

    def drop(self, arrival: _Arrival) -> None:
        """Close a connection without a protocol."""
        self._forget(arrival.sock)
        self.places.leave(arrival)
        arrival.sock.close()

    def _adopt(self, arrival: _Arrival, *, is_tls: bool) -> None:
        task = asyncio.get_running_loop().create_task(self._serve(arrival.sock, is_tls))
        arrival.task = task
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._adopted(task, arrival))

    def _adopted(self, task: asyncio.Task[None], arrival: _Arrival) -> None:
        self._tasks.discard(task)
        self.places.leave(arrival)
        if task.cancelled():  # before it began
            arrival.sock.close()

    async def _serve(self, sock: socket.socket, is_tls: bool) -> None:
        loop = asyncio.get_running_loop()
        try:
            context = None
            if is_tls and self.tls is not None:
                context = self.tls.current or await loop.run_in_executor(None, self.tls.make)
                if context is None:
                    sock.close()
                    return
            await loop.connect_accepted_socket(self._accept_one, sock, ssl=context)
        except (OSError, asyncio.CancelledError) as error:  # SSLError is an OSError
            log.debug("handshake_failed error=%r", str(error))
            sock.close()

    # --- silent connections and certificates -------------------------------------------------

    def _look_at_all(self) -> None:
        now_s = self._clock.monotonic_s()
        for arrival in list(self.unknown.values()):
            if now_s - arrival.silent_since_s > self._silent_s_max():
                self.drop(arrival)
        if self.tls is not None and self.tls.current is not None:
            asyncio.get_running_loop().run_in_executor(None, self.tls.reload_if_changed)
        now = self.places.refused, self.places.closed
        if now != self._reported:
            log.warning(
                "connections_refused port=%d count=%d closed_for_others=%d limit=%d for_each_address=%d "
                "next='raise the limit of open files (ulimit -n): half of it is for connections "
                "of all ports; per address: connectionsPerAddressMax'",
                self.port, now[0] - self._reported[0], now[1] - self._reported[1], self.places.places_max,
                self.places.for_each_max,
            )  # fmt: skip
            self._reported = now
        if self._is_deaf and self._socket is not None and not self._closing:
            self._is_deaf = False
            asyncio.get_running_loop().add_reader(self._socket.fileno(), self._accept)
        self._scan = self._clock.beat(SCAN_S, self._look_at_all)


def _let_share(listener: socket.socket) -> None:
    if os.name == "posix":  # on Windows the option lets two processes bind one port
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)


def _bind(host: str, port: int, *, shared: bool) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    listener = socket.socket(family, socket.SOCK_STREAM)
    try:
        if shared:
            _let_share(listener)
        listener.setblocking(False)
        listener.bind((host, port))
    except BaseException:
        listener.close()
        raise
    return listener
