"""A TCP proxy that forwards bytes unchanged and keeps what both sides said.

It stands between a Java peer and a server, so that real conversations can be looked at in a test
or kept as golden data.
"""

from __future__ import annotations

import socket
import struct
import threading
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Literal, Self

Side = Literal["client", "server"]
CHUNK = 65536


@dataclass(frozen=True)
class Frame:
    """One remoting frame as it went over the wire, its leading length included."""

    connection: int
    sender: Side
    data: bytes


@dataclass
class Conversation:
    """One connection through the proxy: the raw bytes of each direction."""

    number: int
    raw: dict[Side, bytearray] = field(default_factory=lambda: {"client": bytearray(), "server": bytearray()})
    taken: dict[Side, int] = field(default_factory=lambda: {"client": 0, "server": 0})

    def complete(self, side: Side) -> Iterator[bytes]:
        """Yield each frame that arrived in full since the last call."""
        data = self.raw[side]
        while len(data) - self.taken[side] >= 4:
            (length,) = struct.unpack_from(">I", data, self.taken[side])
            end = self.taken[side] + 4 + length
            if end > len(data):
                return
            yield bytes(data[self.taken[side] : end])
            self.taken[side] = end


class RecordingProxy:
    """Listens on ``host:port`` and forwards every connection to ``target``.

    With another loopback host than the target's, such as 127.0.0.2, it can have the target's own
    port, and so stand at the address a broker registers.
    """

    def __init__(self, target: str, *, host: str = "127.0.0.1", port: int = 0) -> None:
        name, _, number = target.rpartition(":")
        self._target = (name, int(number))
        self._listener = socket.create_server((host, port))
        self._lock = threading.Lock()
        self._sockets: set[socket.socket] = set()
        self._closed = False
        self.connections: list[Conversation] = []
        self.frames: list[Frame] = []
        threading.Thread(target=self._accept, name=f"proxy-{self.address}", daemon=True).start()

    @property
    def address(self) -> str:
        host, port = self._listener.getsockname()[:2]
        return f"{host}:{port}"

    def take_frames(self) -> list[Frame]:
        """Return the frames recorded since the last call, in the order they were seen."""
        with self._lock:
            taken, self.frames = self.frames, []
        return taken

    def close(self) -> None:
        with self._lock:
            self._closed = True
            sockets = [self._listener, *self._sockets]
        for each in sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            try:
                server = socket.create_connection(self._target)
            except OSError:
                client.close()  # as a server that is down would look
                continue
            with self._lock:
                if self._closed:
                    client.close()
                    server.close()
                    return
                self._sockets |= {client, server}
                conversation = Conversation(len(self.connections))
                self.connections.append(conversation)
            for sender, source, sink in (("client", client, server), ("server", server, client)):
                threading.Thread(
                    target=self._pump, args=(conversation, sender, source, sink), daemon=True
                ).start()

    def _pump(
        self, conversation: Conversation, sender: Side, source: socket.socket, sink: socket.socket
    ) -> None:
        with suppress(OSError):
            while chunk := source.recv(CHUNK):
                # Recorded before it is forwarded, so an answer never precedes its question.
                self._record(conversation, sender, chunk)
                sink.sendall(chunk)
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)

    def _record(self, conversation: Conversation, sender: Side, chunk: bytes) -> None:
        with self._lock:
            conversation.raw[sender] += chunk
            for data in conversation.complete(sender):
                self.frames.append(Frame(conversation.number, sender, data))
