"""Dialer: outgoing connections, one per address, shared by all callers.

Requests of the other side (transaction checks, membership notices) arrive on the same connections and go to
the dialer's handlers. After a failed connect the dialer waits for a growing time before it retries the
address, and calls fail at once meanwhile: the callers know other addresses to try.
"""

from __future__ import annotations

import asyncio
import logging
import ssl

from kerolox.clock import SYSTEM_CLOCK, Clock, TimerHandle
from kerolox.errors import Closed, ConnectFailed, RequestTimeout
from kerolox.front.caller import CallerEvents
from kerolox.net.handlers import RemotingHandlers
from kerolox.net.peer import Peer, PeerEvents, PeerLimits
from kerolox.net.signing import Credentials, Signing
from kerolox.net.tls import ClientContext, ClientTls
from kerolox.protocol.codes import ResponseCode, request_name
from kerolox.protocol.command import Command, request
from kerolox.protocol.exchange import OnAnswer
from kerolox.protocol.frame import JSON
from kerolox.protocol.header import Header

log = logging.getLogger(__name__)

BACK_OFF_FIRST_S = 0.05
BACK_OFF_MAX_S = 2.0
IDLE_SCAN_S = 1.0


class _Line:
    """Connection state of one address."""

    __slots__ = ("connecting", "failures", "last_error", "not_before_s", "peer")

    def __init__(self) -> None:
        self.peer: Peer | None = None
        self.connecting: asyncio.Task[Peer] | None = None
        self.failures = 0
        self.not_before_s = 0.0
        self.last_error: object = None


class Dialer:
    """Calls to many addresses over shared connections."""

    def __init__(
        self,
        handlers: RemotingHandlers | None = None,
        *,
        events: PeerEvents | None = None,
        limits: PeerLimits = PeerLimits(),
        connect_timeout_s: float = 3.0,
        tls: ClientTls | None = None,
        credentials: Credentials | None = None,
        encoding: int = JSON,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.handlers = handlers or RemotingHandlers()
        if credentials is not None:
            self.handlers.hooks.append(Signing(credentials, clock))
        self._events: PeerEvents = events or CallerEvents()
        self._limits = limits
        self._connect_timeout_s = connect_timeout_s
        self._tls = None if tls is None else ClientContext(tls)
        self._encoding = encoding
        self._clock = clock
        self._lines: dict[str, _Line] = {}
        self._retired: list[Peer] = []
        self._scan: TimerHandle | None = None
        self._closed = False

    async def call(
        self,
        address: str,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout_s: float = 3.0,
        fields: dict[str, str] | None = None,
    ) -> Command:
        """Send a request and wait for the answer. The deadline includes connecting."""
        deadline_s = self._clock.monotonic_s() + timeout_s
        peer = await self._peer(address, timeout_s, code)
        left_s = deadline_s - self._clock.monotonic_s()
        answer = await peer.request(code, header, body, timeout_s=left_s, fields=fields)
        if answer.code == ResponseCode.GO_AWAY:
            # The server is closing this connection: repeat once on a new one, within the time that is left.
            line = self._lines.get(address)
            if line is not None and line.peer is peer:
                line.peer = None
            peer.close("the server said go away")
            peer = await self._peer(address, deadline_s - self._clock.monotonic_s(), code)
            left_s = deadline_s - self._clock.monotonic_s()
            answer = await peer.request(code, header, body, timeout_s=left_s, fields=fields)
        return answer

    async def ask(
        self,
        address: str,
        code: int,
        header: Header | None,
        body: bytes,
        on_answer: OnAnswer,
        *,
        timeout_s: float = 3.0,
        fields: dict[str, str] | None = None,
    ) -> None:
        """Send a request; `on_answer` is called once with the answer or the error. Waits only for the
        connection."""
        peer = await self._peer(address, timeout_s, code)
        peer.ask(
            request(code, header, body, opaque=peer.next_opaque(), fields=fields, encoding=self._encoding),
            on_answer,
            timeout_s,
        )

    async def tell(
        self,
        address: str,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout_s: float = 3.0,
        fields: dict[str, str] | None = None,
    ) -> None:
        """Send a one-way request."""
        peer = await self._peer(address, timeout_s, code)
        peer.tell(code, header, body, fields=fields)

    async def connect(self, address: str, timeout_s: float = 3.0, code: int = 0) -> Peer:
        """Return the open connection to an address, and open it if necessary: for callers that send many
        requests at once."""
        return await self._peer(address, timeout_s, code)

    def retire(self, peer: Peer) -> None:
        """Stop using this connection, because the server is closing it: the next call opens a new one, and
        this one is closed after its last answer."""
        for line in self._lines.values():
            if line.peer is peer:
                line.peer = None
                self._retired.append(peer)

    def connected_peer(self, address: str) -> Peer | None:
        """Return the open connection to an address; None if there is none."""
        line = self._lines.get(address)
        if line is None or line.peer is None or line.peer.is_closed:
            return None
        return line.peer

    def hang_up(self, address: str, reason: str) -> None:
        """Close the connection to an address; the next call opens a new one."""
        line = self._lines.pop(address, None)
        if line is None:
            return
        if line.connecting is not None:
            line.connecting.cancel()
        if line.peer is not None:
            line.peer.close(reason)

    async def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self._scan is not None:
            self._scan.cancel()
        peers = [line.peer for line in self._lines.values() if line.peer is not None] + self._retired
        for address in list(self._lines):
            self.hang_up(address, "the client was closed")
        for peer in self._retired:
            peer.close("the client was closed")
        await asyncio.sleep(0)
        if self._tls is not None:
            await _good_bye(peers)

    async def __aenter__(self) -> Dialer:
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # --- events of peers ---------------------------------------------------------------------

    def connected(self, peer: Peer, /) -> None:
        self._events.connected(peer)

    def closed(self, peer: Peer, reason: str, /) -> None:
        for line in self._lines.values():
            if line.peer is peer:
                line.peer = None
        self._events.closed(peer, reason)

    # --- connecting --------------------------------------------------------------------------

    async def _peer(self, address: str, timeout_s: float, code: int) -> Peer:
        if self._closed:
            raise Closed("this client is closed")
        line = self._lines.get(address)
        if line is None:
            line = self._lines[address] = _Line()
        peer = line.peer
        if peer is not None and not peer.is_closed:
            return peer
        if line.connecting is None:
            wait_s = line.not_before_s - self._clock.monotonic_s()
            if wait_s > 0:
                raise ConnectFailed(
                    address,
                    f"{line.last_error}; failed {line.failures} times, next attempt in {wait_s:.2f} s",
                )
            line.connecting = asyncio.get_running_loop().create_task(self._connect(address, line))
            line.connecting.add_done_callback(_look_at_result)
        try:
            async with asyncio.timeout(max(0.0, timeout_s)):
                return await asyncio.shield(line.connecting)
        except TimeoutError:
            raise RequestTimeout(address, f"{request_name(code)} (while connecting)", timeout_s) from None

    async def _connect(self, address: str, line: _Line) -> Peer:
        loop = asyncio.get_running_loop()
        try:
            host, port = split_address(address)
            context: ssl.SSLContext | None = None
            if self._tls is not None:
                context = await loop.run_in_executor(None, self._tls.current)
            async with asyncio.timeout(self._connect_timeout_s):
                _, protocol = await loop.create_connection(
                    lambda: Peer(
                        self.handlers,
                        self,
                        limits=self._limits,
                        clock=self._clock,
                        server_side=False,
                        encoding=self._encoding,
                    ),
                    host,
                    port,
                    ssl=context,
                    server_hostname=None if context is None else host,
                )
        except (OSError, TimeoutError) as error:
            line.failures += 1
            back_off_s = min(BACK_OFF_MAX_S, BACK_OFF_FIRST_S * 2 ** min(line.failures - 1, 10))
            line.not_before_s = self._clock.monotonic_s() + back_off_s
            line.last_error = str(error) or f"no connection within {self._connect_timeout_s:g} s"
            raise ConnectFailed(address, line.last_error) from error
        finally:
            line.connecting = None
        line.peer = protocol
        line.failures = 0
        if self._scan is None:
            self._scan = self._clock.beat(IDLE_SCAN_S, self._check_peers)
        return protocol

    def _check_peers(self) -> None:
        now_s = self._clock.monotonic_s()
        for line in list(self._lines.values()):
            if line.peer is not None:
                line.peer.check_idle(now_s)
        for peer in self._retired:
            if not peer.in_flight:
                peer.close("the server said go away")
        self._retired = [peer for peer in self._retired if not peer.is_closed]
        self._scan = self._clock.beat(IDLE_SCAN_S, self._check_peers)


async def _good_bye(peers: list[Peer]) -> None:
    """Wait until TLS connections are closed on both sides: the event loop fails if it ends before."""
    for _ in range(100):
        if all(peer.is_gone for peer in peers):
            return
        await asyncio.sleep(0.01)
    for peer in peers:
        peer.abort()


def split_address(address: str) -> tuple[str, int]:
    """Split ``host:port`` or ``[v6]:port`` into host and port."""
    host, separator, port = address.strip().rpartition(":")
    if not separator or not host or not port.isdigit() or not 0 < int(port) < 65536:
        raise ConnectFailed(address, "expected host:port or [ipv6]:port")
    return host.removeprefix("[").removesuffix("]"), int(port)


def _look_at_result(task: asyncio.Task[Peer]) -> None:
    # If all callers have given up waiting, no other code retrieves the error.
    if not task.cancelled():
        task.exception()
