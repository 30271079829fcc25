"""Load for a server that speaks the remoting protocol: the twin of load.c, where there is no compiler.

One thread, one epoll loop over raw sockets, frames built beforehand. Each frame carries
``"opaque":1000000``, whose seven digits are replaced for each request. Of an answer only the frame's
length, a code of 0 and the opaque are looked at.
"""

from __future__ import annotations

import json
import select
import socket
import struct
import sys
import time

from bench.machine import cpu_s
from bench.rounds import percentile

MARK = b'"opaque":'
OPAQUE_FIRST = 1_000_000
_prefix = struct.Struct(">iI").unpack_from


class Load:
    """Keeps ``depth`` requests in flight on each of ``connections``."""

    def __init__(self, port: int, connections: int, depth: int, frames: list[bytes]) -> None:
        self._parts = [frame.split(b"%b%d" % (MARK, OPAQUE_FIRST)) for frame in frames]
        assert all(len(parts) == 2 for parts in self._parts), "a frame has no opaque to replace"
        self._next = 0
        self._poll = select.epoll()
        self._sockets: dict[int, socket.socket] = {}
        self._rest: dict[int, bytes] = {}
        self._sent_ns: dict[int, int] = {}
        self._opaques: dict[int, list[int]] = {}
        for place in range(connections):
            sock = socket.create_connection(("127.0.0.1", port))
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setblocking(False)
            number = sock.fileno()
            self._sockets[number] = sock
            self._rest[number] = b""
            first = OPAQUE_FIRST + place * depth
            self._opaques[number] = list(range(first, first + depth))
            self._poll.register(number, select.EPOLLIN)
        self.answers = self.refusals = 0
        self.latency_ns: list[int] = []

    def start(self) -> None:
        for number, opaques in self._opaques.items():
            self._send(number, opaques)

    def run(self, seconds: float, *, measure: bool) -> None:
        end_ns = time.monotonic_ns() + int(seconds * 1e9)
        while time.monotonic_ns() < end_ns:
            for number, _ in self._poll.poll(0.1):
                self._send(number, self._read(number, measure))

    def _send(self, number: int, opaques: list[int]) -> None:
        if not opaques:
            return
        now_ns = time.monotonic_ns()
        out: list[bytes] = []
        for opaque in opaques:
            before, after = self._parts[self._next]
            self._next = (self._next + 1) % len(self._parts)
            out += (before, b'"opaque":%d' % opaque, after)
            self._sent_ns[opaque] = now_ns
        data = memoryview(b"".join(out))
        while data:
            try:
                data = data[self._sockets[number].send(data) :]
            except BlockingIOError:
                select.select([], [number], [], 1.0)

    def _read(self, number: int, measure: bool) -> list[int]:
        received = self._sockets[number].recv(1 << 18)
        if not received:
            raise ConnectionError("the server closed a connection")
        data = self._rest[number] + received
        now_ns = time.monotonic_ns()
        done = []
        at, end = 0, len(data)
        while end - at >= 8:
            length, mark = _prefix(data, at)
            stop = at + 4 + length
            if stop > end:
                break
            body = at + 8 + (mark & 0xFFFFFF)
            found = data.index(MARK, at, body) + len(MARK)
            opaque = int(data[found : found + 7])
            done.append(opaque)
            if measure:
                self.answers += 1
                self.refusals += data.find(b'"code":0,', at, body) < 0
                self.latency_ns.append(now_ns - self._sent_ns[opaque])
            at = stop
        self._rest[number] = data[at:]
        return done


def split(data: bytes) -> list[bytes]:
    frames = []
    while data:
        length = 4 + _prefix(data)[0]
        frames.append(data[:length])
        data = data[length:]
    return frames


def main() -> None:
    port, connections, depth = (int(word) for word in sys.argv[1:4])
    warm_s, seconds = (float(word) for word in sys.argv[4:6])
    server, *others = (int(word) for word in sys.argv[6:])
    load = Load(port, connections, depth, split(sys.stdin.buffer.read()))
    load.start()
    load.run(warm_s, measure=False)
    began_s, server_s, own_s = time.monotonic(), cpu_s(server), time.process_time()
    other_s = sum(map(cpu_s, others))
    load.run(seconds, measure=True)
    report = {
        "answers": load.answers,
        "refusals": load.refusals,
        "server_cpu_s": cpu_s(server) - server_s,
        "other_cpu_s": sum(map(cpu_s, others)) - other_s,
        "load_cpu_s": time.process_time() - own_s,
        "wall_s": time.monotonic() - began_s,
        "p50_us": percentile(load.latency_ns or [0], 0.5) / 1000,
        "p99_us": percentile(load.latency_ns or [0], 0.99) / 1000,
    }
    print(json.dumps(report))


if __name__ == "__main__":
    main()
