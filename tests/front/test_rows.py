"""Rows are declared at handlers, and collected from the parts of a server."""

from __future__ import annotations

import asyncio

import pytest

from kerolox.front.handlers import Handlers
from kerolox.front.lanes import Lane
from kerolox.front.needs import EVERYBODY
from kerolox.front.requests import Answer, Request
from kerolox.front.rows import declared, rejected, rows_of, serves
from kerolox.protocol.codes import RequestCode as Code
from kerolox.protocol.headers.route import RouteRequest


class Part:
    def __init__(self, text: bytes) -> None:
        self._text = text

    @serves(Code.SEND_MESSAGE, None, EVERYBODY, lane="send")
    @serves(Code.SEND_MESSAGE_V2, None, EVERYBODY, lane="send")
    def send(self, request: Request[None]) -> Answer:
        """Store a message. It may wait
        for others."""
        return Answer(body=self._text)

    @serves(Code.GET_ROUTEINFO_BY_TOPIC, RouteRequest, EVERYBODY)
    async def route(self, request: Request[RouteRequest]) -> Answer:
        """Return a route"""
        return Answer()


class Changed(Part):
    def send(self, request: Request[None]) -> Answer:
        return Answer(body=b"changed")


def test_rows_have_the_methods_of_the_part() -> None:
    rows = {row.code: row for row in rows_of(Part(b"one"))}
    assert set(rows) == {Code.SEND_MESSAGE, Code.SEND_MESSAGE_V2, Code.GET_ROUTEINFO_BY_TOPIC}
    send, route = rows[Code.SEND_MESSAGE], rows[Code.GET_ROUTEINFO_BY_TOPIC]
    assert (send.lane, send.header, send.rule) == ("send", None, EVERYBODY)
    assert (route.lane, route.header) == ("admin", RouteRequest)
    assert (send.description, route.description) == ("Store a message.", "Return a route.")
    assert asyncio.iscoroutinefunction(route.handler)
    answer = send.handler(None)  # type: ignore[arg-type]
    assert isinstance(answer, Answer)
    assert answer.body == b"one"


def test_a_class_declares_without_an_instance_and_an_override_declares_anew() -> None:
    assert len(declared(Part)) == 3
    assert [row.code for row in declared(Changed)] == [Code.GET_ROUTEINFO_BY_TOPIC]


def test_handlers_take_rows_with_their_lanes() -> None:
    handlers = Handlers()
    lanes = {"send": Lane("send"), "admin": Lane("admin")}
    handlers.serve(rows_of(Part(b"")), lanes)
    assert handlers.routes[Code.SEND_MESSAGE].lane is lanes["send"]
    assert handlers.routes[Code.SEND_MESSAGE].rule is EVERYBODY
    with pytest.raises(ValueError, match="has a handler already"):
        handlers.serve(rows_of(Part(b"")), lanes)


def test_what_is_not_supported_says_why() -> None:
    row = rejected(Code.SWITCH_TIMER_ENGINE, EVERYBODY, "there is one engine")
    answer = row.handler(None)  # type: ignore[arg-type]
    assert isinstance(answer, Answer)
    assert (answer.code, answer.reason) == (3, "not_supported")
    assert "(SWITCH_TIMER_ENGINE) not supported: there is one engine" in (answer.remark or "")
    assert row.description == "there is one engine"
