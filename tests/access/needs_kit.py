"""Requests as a server sees them, and what their rules say of them."""

from __future__ import annotations

from typing import Any, cast

from kerolox.front.caller import Caller
from kerolox.front.requests import Request
from kerolox.protocol.command import decode_command, request
from kerolox.protocol.frame import BINARY, JSON
from kerolox.protocol.header import Header, decode_fields
from tests.attack.requests import Names, fields_of
from tests.served import BROKER, REQUEST_HEADERS, Rules

CLUSTER = "DefaultCluster"


class SmallView:
    """A server with a few topics and groups."""

    cluster = CLUSTER
    dead_letters_are_topics = False

    def __init__(self, topics: tuple[str, ...] = (), groups: tuple[str, ...] = ()) -> None:
        self._topics = topics
        self._groups = groups

    def has_topic(self, name: str) -> bool:
        return name in self._topics

    def has_group(self, name: str) -> bool:
        return name in self._groups


EMPTY = SmallView()


def asked(
    code: int,
    header: Header | None = None,
    body: bytes = b"",
    *,
    fields: dict[str, str] | None = None,
    read: bool = True,
) -> Request[Any]:
    """A request that has been on the wire; its header is read unless nobody serves its code."""
    encoding = JSON if code > 0x7FFF else BINARY
    frame = request(code, header, body, opaque=1, fields=fields, encoding=encoding).encode()
    length = int.from_bytes(frame[5:8])
    command = decode_command(encoding, frame[8 : 8 + length], frame[8 + length :])
    kind = REQUEST_HEADERS.get(code) if read else None
    typed = None if kind is None or header is None else command.header(kind)
    return Request(cast(Caller, None), code, typed, command.body, 0.0, command)


def needs_of_all_fields(code: int, rules: Rules) -> set[str]:
    """The needs of a request whose header has all fields, about topic T and group G."""
    kind = REQUEST_HEADERS.get(code)
    fields = fields_of(code, Names("T", "G", "alice"))
    return needs(code, None if kind is None else decode_fields(fields, kind), rules=rules)


def needs(
    code: int,
    header: Header | None = None,
    body: bytes = b"",
    *,
    rules: Rules = BROKER,
    view: SmallView = EMPTY,
    fields: dict[str, str] | None = None,
    read: bool = True,
) -> set[str]:
    """What a request needs, as ``Pub on Topic:T``."""
    return {
        str(need) for need in rules[code].needs(asked(code, header, body, fields=fields, read=read), view)
    }
