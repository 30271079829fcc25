"""Network between clients and brokers that fails on command.

::

    async with running_broker() as running, unreliable_network(running.nameserver_address) as network:
        async with Producer(network.nameserver_address, group="shop") as producer:
            network.cut()        # close all connections; cut_in_frame(): in the middle of the next frame
            network.stall()      # hold all bytes, both ways
            network.resume()
            network.refuse()     # close connections as soon as they open, until accept()
            network.delay_s = 0.1
            network.reorder = True  # reverse the order of answers that arrive together

Clients get their routes from a name server that names a proxy in place of every broker.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import msgspec

from kerolox.front.lanes import Lane
from kerolox.front.requests import Answer, Request
from kerolox.net.dialer import Dialer, split_address
from kerolox.net.handlers import RemotingHandlers
from kerolox.net.server import Server
from kerolox.protocol.bodies.routes import BrokerData, ClusterInfo, TopicRoute
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.frame import FrameSplitter, pack_frame

CHUNK_BYTES = 64 * 1024
REORDER_S = 0.005  # time that answers are held so that others can overtake them


class Relay:
    """Relay of connections, with the faults that tests switch on."""

    def __init__(self) -> None:
        self.delay_s = 0.0
        self.bytes_per_s = 0  # limit of each direction of each connection; 0: none
        self.reorder = False
        self._flows = {answers: asyncio.Event() for answers in (False, True)}  # events by direction
        self.resume()
        self._refusing = False
        self._mid_frame = False
        self._proxies: dict[str, tuple[asyncio.Server, str]] = {}
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    # --- faults -------------------------------------------------------------------------------

    def cut(self) -> None:
        """Close all connections immediately, including data in transit."""
        for writer in list(self._writers):
            writer.transport.abort()

    def cut_in_frame(self) -> None:
        """Forward half of the next received bytes, then close the connection."""
        self._mid_frame = True

    def stall(self, *, answers: bool | None = None) -> None:
        """Hold all bytes back without closing a connection; or only those sent to the client (``answers``),
        or only those from it."""
        for direction, flowing in self._flows.items():
            if answers in (None, direction):
                flowing.clear()

    def resume(self) -> None:
        for flowing in self._flows.values():
            flowing.set()

    def refuse(self) -> None:
        """Close every connection, and every new one as soon as it opens."""
        self._refusing = True
        self.cut()

    def accept(self) -> None:
        self._refusing = False

    def _is_open(self) -> bool:
        return not self._refusing

    @property
    def connections(self) -> int:
        return len(self._writers) // 2

    # --- proxies ------------------------------------------------------------------------------

    async def proxy(self, target: str, change: Callable[[], Callable[[bytes], bytes]] | None = None) -> str:
        """Return the address of a proxy for ``target``. ``change`` is called for each connection and returns
        a function that changes the bytes sent to the client."""
        known = self._proxies.get(target)
        if known is not None:
            return known[1]

        async def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            if not self._is_open():
                writer.transport.abort()
                return
            try:
                to_reader, to_writer = await asyncio.open_connection(*split_address(target))
            except OSError:
                writer.transport.abort()
                return
            self._writers |= {writer, to_writer}
            try:
                if not self._is_open():  # checked again: it may have been closed meanwhile
                    return
                await asyncio.gather(
                    self._pump(reader, to_writer, answers=False),
                    self._pump(to_reader, writer, answers=True, change=change and change()),
                )
            finally:
                self._writers -= {writer, to_writer}
                writer.transport.abort()
                to_writer.transport.abort()

        def begin(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            task = asyncio.get_running_loop().create_task(accept(reader, writer))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

        server = await asyncio.start_server(begin, "127.0.0.1", 0)
        address = f"127.0.0.1:{server.sockets[0].getsockname()[1]}"
        self._proxies[target] = (server, address)
        return address

    async def _pump(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        *,
        answers: bool,
        change: Callable[[bytes], bytes] | None = None,
    ) -> None:
        try:
            while data := await reader.read(self._chunk_bytes):
                await self._flows[answers].wait()
                if self.delay_s:
                    await asyncio.sleep(self.delay_s)
                if self.bytes_per_s:
                    await asyncio.sleep(len(data) / self.bytes_per_s)
                if self._mid_frame:
                    self._mid_frame = False
                    writer.write(data[: len(data) // 2])
                    await writer.drain()
                    self.cut()
                    return
                if self.reorder and answers:
                    await asyncio.sleep(REORDER_S)
                    data = last_first(data)
                writer.write(data if change is None else change(data))
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            if not writer.is_closing():
                writer.close()

    @property
    def _chunk_bytes(self) -> int:
        return min(CHUNK_BYTES, 1 + self.bytes_per_s // 20) if self.bytes_per_s else CHUNK_BYTES

    async def close(self) -> None:
        for server, _ in self._proxies.values():
            server.close()
        self.cut()
        self.resume()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)


class Network(Relay):
    """Network between clients and all brokers of a name server."""

    nameserver_address = ""


def last_first(data: bytes) -> bytes:
    """Return the frames of ``data`` in reverse order; ``data`` itself unless it consists of whole frames."""
    splitter = FrameSplitter()
    frames = splitter.feed(data)
    if splitter.waiting_bytes or splitter.error is not None:
        return data
    return b"".join(pack_frame(*frame) for frame in reversed(frames))


class _Names:
    """Name server that routes clients through the network."""

    def __init__(self, network: Network, real: str, dialer: Dialer) -> None:
        self._network = network
        self._real = real
        self._dialer = dialer
        self.handlers = RemotingHandlers()
        lane = Lane("names")
        for code in (RequestCode.GET_ROUTEINFO_BY_TOPIC, RequestCode.GET_BROKER_CLUSTER_INFO):
            self.handlers.add(code, self.answer, None, lane)

    async def answer(self, request: Request[None]) -> Answer:
        told = await self._dialer.call(
            self._real, request.code, None, request.body, fields=dict(request.fields)
        )
        if told.code != 0:
            return Answer(code=told.code, remark=told.remark)
        if request.code == RequestCode.GET_ROUTEINFO_BY_TOPIC:
            route = TopicRoute.decode(told.body)
            brokers = [await self._behind_proxies(data) for data in route.broker_datas]
            return Answer(body=msgspec.structs.replace(route, broker_datas=tuple(brokers)).encode())
        info = ClusterInfo.decode(told.body)
        table = {name: await self._behind_proxies(data) for name, data in info.broker_addr_table.items()}
        return Answer(body=msgspec.structs.replace(info, broker_addr_table=table).encode())

    async def _behind_proxies(self, data: BrokerData) -> BrokerData:
        addresses = {number: await self._network.proxy(real) for number, real in data.broker_addrs.items()}
        return msgspec.structs.replace(data, broker_addrs=addresses)


@asynccontextmanager
async def unreliable_network(nameserver: str) -> AsyncIterator[Network]:
    """Run a network through which clients reach the brokers of a name server, and which tests can make
    fail."""
    network = Network()
    async with (
        Dialer() as dialer,
        Server(_Names(network, nameserver, dialer).handlers, host="127.0.0.1") as names,
    ):
        network.nameserver_address = names.address
        try:
            yield network
        finally:
            await network.close()
