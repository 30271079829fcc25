"""A broker that only registers: enough for a name server to have routes to give."""

from __future__ import annotations

import socket
import struct

from kerolox.protocol.bodies.registration import Registration, body_crc32, encode_registration
from kerolox.protocol.bodies.topics import DataVersion, TopicConfig, TopicConfigTable
from kerolox.protocol.codes import Language, RequestCode
from kerolox.protocol.command import Command, decode_command, request
from kerolox.protocol.frame import JSON
from kerolox.protocol.header import Header
from kerolox.protocol.headers.registration import RegisterBrokerRequest
from kerolox.protocol.headers.route import RouteRequest


def topic_names(count: int) -> list[str]:
    return [f"bench-topic-{number:04d}" for number in range(count)]


def question(
    code: int, header: Header | None = None, body: bytes = b"", *, opaque: int = 1, encoding: int = JSON
) -> bytes:
    """The frame of a request as a Java client or broker would send it."""
    command = request(code, header, body, opaque=opaque, encoding=encoding)
    command.language = Language.JAVA
    return command.encode()


def route_question(topic: str, opaque: int) -> bytes:
    return question(RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteRequest(topic=topic), opaque=opaque)


def registration(topics: list[str]) -> Registration:
    return Registration(
        topic_config_serialize_wrapper=TopicConfigTable(
            data_version=DataVersion(counter=1, timestamp=1_700_000_000_000),
            topic_config_table={
                name: TopicConfig(topic_name=name, read_queue_nums=8, write_queue_nums=8) for name in topics
            },
        )
    )


def registration_question(topics: list[str], opaque: int = 1) -> bytes:
    body = encode_registration(registration(topics))
    header = RegisterBrokerRequest(
        broker_name="bench-broker",
        broker_addr="10.0.0.1:10911",
        cluster_name="DefaultCluster",
        broker_id=0,
        ha_server_addr="10.0.0.1:10912",
        body_crc32=body_crc32(body),
    )
    return question(RequestCode.REGISTER_BROKER, header, body, opaque=opaque)


class PretendBroker:
    """Registers its topics over one connection and keeps that open: closing it takes the routes away."""

    def __init__(self, connection: socket.socket, topics: list[str]) -> None:
        self._connection = connection
        self._registration = registration_question(topics)

    def register(self) -> None:
        """Again every two minutes at the latest, or the name server forgets the broker."""
        self._ask(self._registration)

    def route(self, topic: str) -> bytes:
        """The body of the answer to a route query."""
        return self._ask(route_question(topic, 1)).body

    def _ask(self, frame: bytes) -> Command:
        self._connection.sendall(frame)
        (length,) = struct.unpack(">i", self._exactly(4))
        data = self._exactly(length)
        mark = int.from_bytes(data[:4], "big")
        header = 4 + (mark & 0xFFFFFF)
        answer = decode_command(mark >> 24, data[4:header], data[header:])
        if answer.code != 0:
            raise RuntimeError(f"refused: {answer}")
        return answer

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            received = self._connection.recv(count - len(data))
            if not received:
                raise ConnectionError("the name server closed the connection")
            data += received
        return data

    def close(self) -> None:
        self._connection.close()
