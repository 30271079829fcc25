"""Requests built by hand, and one connection of a benchmark's own to send them over."""

from __future__ import annotations

import json
import socket
import struct

from kerolox.protocol import properties as packed
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.frame import FrameSplitter
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.record import decode_records

BODY = b"x" * 128
_prefix = struct.Struct(">iI").pack


def frame(code: int, fields: dict[str, str], body: bytes = b"", opaque: int = 1_000_000) -> bytes:
    header = json.dumps(
        {"code": code, "language": "JAVA", "version": 0, "opaque": opaque, "flag": 0, "extFields": fields},
        separators=(",", ":"),
    ).encode()
    return _prefix(4 + len(header) + len(body), len(header)) + header + body


def send_frame(
    topic: str,
    queue_id: int,
    own: dict[str, str],
    body: bytes = BODY,
    *,
    batch: bool = False,
    opaque: int = 1_000_000,
) -> bytes:
    properties = "" if batch else packed.pack(own).decode()
    fields = {
        "a": "bench", "b": topic, "c": "TBW102", "d": "4", "e": str(queue_id), "f": "0", "g": "1", "h": "0",
        "i": properties, "j": "0", "k": "false", "m": "true" if batch else "false",
    }  # fmt: skip
    return frame(
        RequestCode.SEND_BATCH_MESSAGE if batch else RequestCode.SEND_MESSAGE_V2, fields, body, opaque
    )


def pull_frame(topic: str, queue_id: int, offset: int, expression: str = "*", kind: str = "TAG") -> bytes:
    fields = {
        "consumerGroup": "bench", "topic": topic, "queueId": str(queue_id), "queueOffset": str(offset),
        "maxMsgNums": "32", "sysFlag": "4", "commitOffset": "0", "suspendTimeoutMillis": "0",
        "subVersion": "0", "subscription": expression, "expressionType": kind,
    }  # fmt: skip
    return frame(RequestCode.PULL_MESSAGE, fields)


class Line:
    """One connection of the benchmark's own."""

    def __init__(self, port: int) -> None:
        self._socket = socket.create_connection(("127.0.0.1", port), 20.0)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._splitter = FrameSplitter()
        self._ready: list[tuple[int, bytes, bytes]] = []

    def send(self, frames: bytes) -> None:
        self._socket.sendall(frames)

    def answer(self) -> tuple[dict[str, object], bytes]:
        while not self._ready:
            data = self._socket.recv(1 << 18)
            if not data:
                raise ConnectionResetError("the broker closed the connection")
            self._ready = list(self._splitter.feed(data))
        _, header, body = self._ready.pop(0)
        return json.loads(header), body

    def ask(self, one: bytes) -> tuple[dict[str, object], bytes]:
        self.send(one)
        return self.answer()

    def expect(self, count: int) -> None:
        for _ in range(count):
            header, _ = self.answer()
            if header["code"] != 0:
                raise RuntimeError(f"refused: {header.get('remark')}")

    def deliver(self, frames: dict[int, bytes]) -> int:
        """Send frames, by their opaques, until all were taken; how often the broker was busy."""
        busy = 0
        while frames:
            self.send(b"".join(frames.values()))
            refused = {}
            for _ in range(len(frames)):
                header, _ = self.answer()
                if header["code"] == ResponseCode.SYSTEM_BUSY:
                    refused[int(header["opaque"])] = frames[int(header["opaque"])]  # type: ignore[call-overload]
                elif header["code"] != 0:
                    raise RuntimeError(f"refused: {header.get('remark')}")
            busy += len(refused)
            frames = refused
        return busy

    def records(self, topic: str, queue_id: int, offset: int = 0) -> list[StoredMessage]:
        """Everything of a queue from an offset on."""
        found: list[StoredMessage] = []
        while True:
            header, body = self.ask(pull_frame(topic, queue_id, offset))
            if header["code"] != 0:
                return found
            found += decode_records(body)
            offset = int(header["extFields"]["nextBeginOffset"])  # type: ignore[index]

    def close(self) -> None:
        self._socket.close()
