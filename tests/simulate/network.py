"""A network in memory: hosts, listeners, and connections that are slow, cut, reset, or lead nowhere.

It behaves as TCP looks from a process. Bytes arrive in order, in other pieces than they were written, after
a while. While the way to a host is cut they wait and are sent again when it is not; nobody is told. A
process that ends resets its connections; a host that loses power says nothing, and who goes on sending to
it hears of it once it is back. Ways are cut in one direction: connections live on half of them for a
moment, and none is made.
"""

from __future__ import annotations

import asyncio
import errno
import random
import socket
from collections import deque
from collections.abc import Callable, Iterable
from contextvars import Context, copy_context
from typing import Any

from .loop import OUTSIDE, Process, SimulatedLoop, current

KERNEL_BYTES = 128 * 1024  # what both kernels take before a writer has to wait
UNANSWERED_BYTES = 8 * 1024  # so much is sent on while the way of the answers is cut
LATENCY_S = 0.0005
CONNECT_TRIES = 6  # after 1, 2, 4 ... seconds
EPHEMERAL = 40_000

Way = tuple[str, str]  # from one address to another


class Network:
    """All hosts, and what of the ways between them is cut."""

    def __init__(self, loop: SimulatedLoop, seed: object) -> None:
        self.loop = loop
        self.chance = random.Random(f"network-{seed}")
        self.latency_s: dict[Way, float] = {}
        self.bytes_per_s = 50_000_000.0
        self.cut: set[Way] = set()
        self.down: set[str] = set()
        self.trace: Callable[[str], None] = lambda text: None
        self.moved = 0  # bytes that arrived
        self._listeners: dict[tuple[str, int], Listener] = {}
        self._readers: dict[int, tuple[Callable[..., object], tuple[Any, ...], Context]] = {}
        self._ends: dict[int, End] = {}  # in the order they were made
        self._numbers = 3
        self._ports: dict[str, int] = {}
        loop.network = self

    # --- what goes wrong --------------------------------------------------------------------------------

    def cut_ways(self, ways: Iterable[Way]) -> None:
        self.cut.update(ways)

    def heal(self, ways: Iterable[Way] | None = None) -> None:
        """Let bytes through again; all of them, if nothing is named."""
        self.cut.difference_update(list(self.cut) if ways is None else ways)
        self._send_again()

    def power_off(self, ip: str) -> None:
        """The host is gone. Nobody is told."""
        self.down.add(ip)
        for end in list(self._ends.values()):
            if end.ip == ip:
                end.vanish()
        for key, listener in list(self._listeners.items()):
            if key[0] == ip:
                listener.close()

    def power_on(self, ip: str) -> None:
        self.down.discard(ip)
        self._send_again()

    def reset(self, ip: str, other: str) -> int:
        """Break the connections between two hosts, as a router that has forgotten them does. How many."""
        broken = [end for end in self._ends.values() if (end.ip, end.peer.ip) == (ip, other)]
        for end in broken:
            end.broken(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
            end.peer.broken(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))
        return len(broken)

    def process_died(self, process: Process) -> None:
        """Its host is there: the kernel closes what it had open."""
        for end in list(self._ends.values()):
            if end.process is process:
                end.die()
        for listener in list(self._listeners.values()):
            if listener.process is process:
                listener.close()

    def _send_again(self) -> None:
        for end in list(self._ends.values()):
            end.send_again()

    # --- ways -------------------------------------------------------------------------------------------

    def passes(self, source: str, target: str) -> bool:
        if source == target:
            return source not in self.down
        return (source, target) not in self.cut and source not in self.down and target not in self.down

    def delay_s(self, source: str, target: str, size: int = 0) -> float:
        base_s = 0.00002 if source == target else self.latency_s.get((source, target), LATENCY_S)
        return base_s * (0.5 + self.chance.random()) + size / self.bytes_per_s

    # --- connections ------------------------------------------------------------------------------------

    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> tuple[End, Any]:
        process = current()
        ip = process.ip
        for attempt in range(CONNECT_TRIES):
            await asyncio.sleep(self.delay_s(ip, host))
            if self.passes(ip, host) and self.passes(host, ip):
                listener = self._listeners.get((host, port))
                await asyncio.sleep(self.delay_s(host, ip))
                if listener is None or not listener.accepts:
                    raise ConnectionRefusedError(
                        errno.ECONNREFUSED, f"Connect call failed ({host!r}, {port})"
                    )
                own, other = self._pair(process, listener, (ip, self._port(ip)), (host, port))
                listener.arrived(other)
                protocol = factory()
                own.attach(protocol)
                return own, protocol
            await asyncio.sleep(2.0**attempt)
        raise TimeoutError(errno.ETIMEDOUT, f"Connect call failed ({host!r}, {port})")

    def _pair(
        self, process: Process, listener: Listener, own: tuple[str, int], other: tuple[str, int]
    ) -> tuple[End, End]:
        near, far = End(self, process, own), End(self, listener.process, other)
        near.peer, far.peer = far, near
        for end in (near, far):
            self._numbers += 1
            end.number = self._numbers
            self._ends[end.number] = end
        return near, far

    def adopt(self, accepted: Accepted, protocol: Any) -> End:
        accepted.end.attach(protocol)
        return accepted.end

    def forget(self, end: End) -> None:
        self._ends.pop(end.number, None)

    def _port(self, ip: str) -> int:
        self._ports[ip] = port = self._ports.get(ip, EPHEMERAL) + 1
        return port

    # --- listeners --------------------------------------------------------------------------------------

    def bind(self, listener: Listener, port: int) -> tuple[str, int]:
        ip = listener.process.ip
        if port == 0:
            port = self._port(ip)
        if (ip, port) in self._listeners:
            raise OSError(errno.EADDRINUSE, "Address already in use")
        self._listeners[ip, port] = listener
        self._numbers += 1
        listener.number = self._numbers
        return ip, port

    def unbind(self, listener: Listener) -> None:
        if self._listeners.get(listener.name) is listener:
            del self._listeners[listener.name]
        self._readers.pop(listener.number, None)

    def watch(self, fd: int, callback: Callable[..., object], args: tuple[Any, ...]) -> None:
        self._readers[fd] = (callback, args, copy_context())

    def unwatch(self, fd: int) -> bool:
        return self._readers.pop(fd, None) is not None

    def readable(self, fd: int) -> None:
        reader = self._readers.get(fd)
        if reader is not None:
            callback, args, context = reader
            self.loop.call_soon(callback, *args, context=context)


class Listener:
    """A socket that listens, as far as servers use one."""

    def __init__(self, network: Network) -> None:
        self.process = current()
        self.name = ("", 0)
        self.number = -1
        self.accepts = False
        self._network = network
        self._arrived: deque[End] = deque()
        self._serve: tuple[Callable[[Accepted], object], Context] | None = None

    def bind(self, address: tuple[str, int]) -> None:
        self.name = self._network.bind(self, address[1])

    def listen(self, backlog: int) -> None:
        self.accepts = True

    def getsockname(self) -> tuple[str, int]:
        return self.name

    def fileno(self) -> int:
        return self.number

    def setsockopt(self, *args: Any) -> None:
        return

    def setblocking(self, flag: bool) -> None:
        return

    def serve(self, accept: Callable[[Accepted], object]) -> None:
        self._serve = (accept, copy_context())

    def arrived(self, end: End) -> None:
        if self._serve is not None:
            accept, context = self._serve
            self._network.loop.call_soon(accept, Accepted(end), context=context)
        else:
            self._arrived.append(end)
            self._network.readable(self.number)

    def accept(self) -> tuple[Accepted, tuple[str, int]]:
        if not self._arrived:
            raise BlockingIOError
        end = self._arrived.popleft()
        return Accepted(end), end.peer.name

    def close(self) -> None:
        self.accepts = False
        self._network.unbind(self)
        while self._arrived:
            self._arrived.popleft().abort()

    async def wait_closed(self) -> None:
        return


class Accepted:
    """A socket that was accepted, and has no protocol yet."""

    def __init__(self, end: End) -> None:
        self.end = end

    def setsockopt(self, *args: Any) -> None:
        return

    def setblocking(self, flag: bool) -> None:
        return

    def fileno(self) -> int:
        return self.end.number

    def close(self) -> None:
        self.end.abort()


class Sockets:
    """In place of the module ``socket`` where servers make their listeners."""

    AF_INET, AF_INET6, SOCK_STREAM = socket.AF_INET, socket.AF_INET6, socket.SOCK_STREAM
    SOL_SOCKET, SO_REUSEADDR = socket.SOL_SOCKET, socket.SO_REUSEADDR
    IPPROTO_TCP, TCP_NODELAY = socket.IPPROTO_TCP, socket.TCP_NODELAY

    @staticmethod
    def socket(family: int, kind: int) -> Listener:
        loop = asyncio.get_running_loop()
        assert isinstance(loop, SimulatedLoop)
        return Listener(loop.network)


class End(asyncio.Transport):
    """One end of a connection."""

    peer: End

    def __init__(self, network: Network, process: Process, name: tuple[str, int]) -> None:
        super().__init__()
        self.number = 0
        self.process = process
        self.name = name
        self.ip = name[0]
        self._network = network
        self._loop_ = network.loop
        self._protocol: Any = None
        self._unread: deque[bytes | None] = deque()  # None: the other end has ended
        self._reading = True
        self._consuming = False
        self._closing = False
        self._lost = False  # or about to be: the protocol is told once
        self._gone = False  # its host does not know it any more
        # What is on its way to the other end, in order.
        self._flights = 0
        self._due_s = 0.0
        self._held: deque[bytes | None] = deque()  # arrived at a cut
        self._unconsumed = 0  # bytes written that the other protocol has not got
        self._unanswered = 0  # bytes sent while the way back was cut
        self._drop = False  # what is on its way does not arrive
        self._high, self._low = 64 * 1024, 16 * 1024
        self._is_full = False

    # --- as protocols see it --------------------------------------------------------------------------------

    def attach(self, protocol: Any) -> None:
        self._protocol = protocol
        protocol.connection_made(self)
        self._consume_soon()

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return {"peername": self.peer.name, "sockname": self.name}.get(name, default)

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def is_closing(self) -> bool:
        return self._closing or self._lost

    def write(self, data: Any) -> None:
        if self._closing or self._lost or self.process.is_dead or not data:
            return
        data = bytes(data)
        self._unconsumed += len(data)
        self._send(data)
        if not self._is_full and self.get_write_buffer_size() > self._high:
            self._is_full = True
            self._protocol.pause_writing()

    def writelines(self, parts: Iterable[Any]) -> None:
        self.write(b"".join(parts))

    def get_write_buffer_size(self) -> int:
        return max(0, self._unconsumed - KERNEL_BYTES)

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low, self._high

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        self._high = 64 * 1024 if high is None else high
        self._low = self._high // 4 if low is None else low

    def pause_reading(self) -> None:
        self._reading = False

    def resume_reading(self) -> None:
        self._reading = True
        self._consume_soon()

    def is_reading(self) -> bool:
        return self._reading

    def close(self) -> None:
        if not self._closing and not self._lost:
            self._closing = True
            self._send(None)
            self._lose(None)

    def abort(self) -> None:
        if not self._lost:
            self._closing = True
            self._lose(None)
            self._tell_reset()

    # --- what happens to it ---------------------------------------------------------------------------------

    def broken(self, error: Exception | None) -> None:
        """It is not there any more, and its protocol hears of it."""
        if not self._gone:
            self._drop = True
            self._unread.clear()
            self._lose(error)

    def vanish(self) -> None:
        """The host lost power."""
        self._gone = self._lost = True
        self._drop = True
        self._held.clear()
        self._network.forget(self)

    def die(self) -> None:
        """The process ended: what the kernel had taken may arrive, then the other end hears that it is
        over."""
        if self._gone:
            return
        self._gone = self._lost = True
        self._network.forget(self)
        if self._network.chance.random() < 0.5:
            self._drop = True
        self._tell_reset()

    def _lose(self, error: Exception | None) -> None:
        if self._lost:
            return
        self._lost = True
        self._loop_.call_soon(self._say_lost, error, context=self.process.context)

    def _say_lost(self, error: Exception | None) -> None:
        self._gone = True
        self._network.forget(self)
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    def _tell_reset(self) -> None:
        """Let the other end know, once, that nobody is here."""
        network, peer = self._network, self.peer
        delay_s = max(0.0, self._due_s - self._loop_.time()) + network.delay_s(self.ip, peer.ip)
        self._loop_.call_later(delay_s, self._reset_arrives, context=OUTSIDE.context)

    def _reset_arrives(self) -> None:
        # One that is lost at a cut is not sent again, until the other end sends something and is told.
        if self._network.passes(self.ip, self.peer.ip):
            self.peer.broken(ConnectionResetError(errno.ECONNRESET, "Connection reset by peer"))

    # --- bytes ----------------------------------------------------------------------------------------------

    def _send(self, data: bytes | None) -> None:
        network, loop = self._network, self._loop_
        pieces = [data]
        if data is not None and len(data) > 1 and network.chance.random() < 0.05:
            at = network.chance.randrange(1, len(data))
            pieces = [data[:at], data[at:]]
        for piece in pieces:
            delay_s = network.delay_s(self.ip, self.peer.ip, len(piece or b""))
            self._due_s = max(self._due_s + 1e-9, loop.time() + delay_s)
            self._flights += 1
            loop.call_at(self._due_s, self._arrive, piece, context=OUTSIDE.context)

    def _arrive(self, piece: bytes | None) -> None:
        self._flights -= 1
        if self._drop:
            return
        network, peer = self._network, self.peer
        back = network.passes(peer.ip, self.ip)
        if back:
            self._unanswered = 0
        held = bool(self._held) or not network.passes(self.ip, peer.ip)
        if held or (not back and self._unanswered > UNANSWERED_BYTES):
            self._held.append(piece)
            return
        if not back and piece is not None:
            self._unanswered += len(piece)
        if peer._gone:
            if piece is not None and back and not self._gone:
                self._loop_.call_later(
                    network.delay_s(peer.ip, self.ip), peer._reset_arrives, context=OUTSIDE.context
                )
            return
        if piece is not None:
            network.moved += len(piece)
        peer._unread.append(piece)
        peer._consume_soon()

    def send_again(self) -> None:
        """The way may be free again: what was held arrives, after the time a sender waits before it tries."""
        if self._held:
            self._loop_.call_later(
                0.2 + self._network.chance.random(), self._flush_held, context=OUTSIDE.context
            )

    def _flush_held(self) -> None:
        held, self._held = self._held, deque()
        self._unanswered = 0
        self._flights += len(held)
        for piece in held:
            self._arrive(piece)

    def _consume_soon(self) -> None:
        if self._unread and self._reading and not self._consuming and self._protocol is not None:
            self._consuming = True
            self._loop_.call_soon(self._consume, context=self.process.context)

    def _consume(self) -> None:
        self._consuming = False
        while self._unread and self._reading and not self._lost:
            piece = self._unread.popleft()
            if piece is None:
                if not self._protocol.eof_received():
                    self.close()
                return
            self.peer._consumed(len(piece))
            self._protocol.data_received(piece)

    def _consumed(self, size: int) -> None:
        self._unconsumed -= size
        if self._is_full and self.get_write_buffer_size() <= self._low:
            self._is_full = False
            self._loop_.call_soon(self._room, context=self.process.context)

    def _room(self) -> None:
        if not self._lost:
            self._protocol.resume_writing()
