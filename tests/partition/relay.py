"""A slow, lossy or treacherous way between a follower and its leader.

The kernel here delays and drops nothing by itself, so bytes of the connection pass through this. What gets
lost on the way TCP sends again: whoever waits sees a pause, or the end of the connection.
"""

from __future__ import annotations

import asyncio
import random
import socket
import struct
from dataclasses import dataclass

CHUNK_BYTES = 16 << 10
AT_ONCE = struct.pack("ii", 1, 0)  # SO_LINGER: a closed connection is reset


@dataclass(frozen=True)
class Weather:
    """How bytes pass. The chances are those of each piece."""

    delay_s: float = 0.0
    bytes_per_s: float = 0.0  # 0: as fast as they come
    pause_chance: float = 0.0  # it is lost, and sent again
    pause_s: float = 0.0
    cut_chance: float = 0.0  # part of it arrives, then the connection is reset


FAIR = Weather()


class Relay:
    """Listens where followers connect, and leads to ``target``."""

    def __init__(self, host: str) -> None:
        self.target = ("", 0)
        self.weather = FAIR
        self.address = ""
        self.resets = 0
        self._host = host
        self._chance = random.Random()
        self._cut_next = False
        self._flowing = {True: asyncio.Event(), False: asyncio.Event()}
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self.clear()
        self._server = await asyncio.start_server(self._accept, self._host, 0)
        self.address = f"{self._host}:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
        self.clear()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # --- what can happen --------------------------------------------------------------------------------

    def seed(self, number: int) -> None:
        self._chance.seed(number)

    def clear(self) -> None:
        """All bytes pass at once."""
        self.weather = FAIR
        self._cut_next = False
        for flowing in self._flowing.values():
            flowing.set()

    def reset(self) -> None:
        """End all connections by a reset, whatever is on its way."""
        for writer in list(self._writers):
            self._reset(writer)

    def cut_in_frame(self) -> None:
        """A part of the next bytes from the leader arrives, then the connection is reset."""
        self._cut_next = True

    def hold(self, *, to_follower: bool) -> None:
        """No bytes pass in this direction, and no connection ends."""
        self._flowing[to_follower].clear()

    # --- bytes ------------------------------------------------------------------------------------------

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        try:
            async with asyncio.timeout(2):
                to_reader, to_writer = await asyncio.open_connection(*self.target)
        except (OSError, TimeoutError):
            self._reset(writer)
            return
        self._writers |= {writer, to_writer}
        ways = [
            asyncio.ensure_future(self._pass_on(reader, to_writer, to_follower=False)),
            asyncio.ensure_future(self._pass_on(to_reader, writer, to_follower=True)),
        ]
        try:  # when one way has ended, so does the other
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            self._writers -= {writer, to_writer}
            writer.transport.abort()
            to_writer.transport.abort()

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, to_follower: bool
    ) -> None:
        try:
            while data := await reader.read(CHUNK_BYTES):
                await self._flowing[to_follower].wait()
                weather = self.weather
                if weather.delay_s:
                    await asyncio.sleep(weather.delay_s)
                if weather.bytes_per_s:
                    await asyncio.sleep(len(data) / weather.bytes_per_s)
                if self._chance.random() < weather.pause_chance:
                    await asyncio.sleep(weather.pause_s)
                cut = self._cut_next and to_follower
                if cut or self._chance.random() < weather.cut_chance:
                    self._cut_next = self._cut_next and not cut
                    writer.write(data[: self._chance.randrange(len(data) + 1)])
                    await writer.drain()
                    self._reset(writer)
                    return
                writer.write(data)
                await writer.drain()
        except OSError:
            pass

    def _reset(self, writer: asyncio.StreamWriter) -> None:
        self.resets += 1
        sock = writer.get_extra_info("socket")
        if sock is not None and sock.fileno() >= 0:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, AT_ONCE)
        writer.transport.abort()
