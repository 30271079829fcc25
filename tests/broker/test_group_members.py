"""Name servers that know who has a name, and such that never answer the question."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import pytest

from kerolox.broker.nameservers.group_members import ANSWER_S, GroupMembers
from kerolox.broker.options import BrokerOptions
from kerolox.front.lanes import Lane
from kerolox.front.requests import Answer, Request
from kerolox.net.dialer import Dialer
from kerolox.net.handlers import RemotingHandlers
from kerolox.net.server import Server
from kerolox.protocol.bodies.routes import BrokerData, TopicRoute
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.headers.registration import BrokerMemberGroupRequest
from kerolox.protocol.headers.route import RouteRequest
from kerolox.testing.clock import ManualClock

ROUTE = TopicRoute(
    broker_datas=(BrokerData(broker_name="broker-a", cluster="C", broker_addrs={0: "a:1", 1: "a:2"}),)
)


class OldNameServer:
    """RocketMQ 4.9's: what it does not know it never answers."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.questions = 0
        handlers, lane = RemotingHandlers(), Lane("one")
        handlers.add(RequestCode.GET_BROKER_MEMBER_GROUP, self._never, BrokerMemberGroupRequest, lane)
        handlers.add(RequestCode.GET_ROUTEINFO_BY_TOPIC, self._route, RouteRequest, lane)
        self.server = Server(handlers, host="127.0.0.1")

    async def _never(self, request: Request[BrokerMemberGroupRequest]) -> Answer:
        self.questions += 1
        self.asked.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError("not reached")

    def _route(self, request: Request[RouteRequest]) -> Answer:
        return Answer(body=ROUTE.encode())


@pytest.fixture
async def old() -> AsyncIterator[OldNameServer]:
    server = OldNameServer()
    await server.server.start()
    yield server
    await server.server.close()


async def test_one_that_never_answers_is_waited_for_once_and_asked_for_routes(
    old: OldNameServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    clock = ManualClock()
    options = BrokerOptions(broker_name="broker-a", cluster="C")
    async with Dialer(clock=clock) as dialer:
        members = GroupMembers(dialer, options)
        asking = asyncio.ensure_future(members.ask(old.server.address, 3.0))
        await old.asked.wait()
        await clock.advance(ANSWER_S)
        assert await asking == {0: "a:1", 1: "a:2"}
        # Whoever asks for this broker next does not wait.
        assert await members.ask(old.server.address, 3.0) == {0: "a:1", 1: "a:2"}
    assert old.questions == 1
    assert caplog.text.count("nameserver_is_old") == 1


async def test_without_leave_for_old_ones_nothing_is_known(old: OldNameServer) -> None:
    clock = ManualClock()
    options = BrokerOptions(broker_name="broker-a", cluster="C", old_nameservers=False)
    async with Dialer(clock=clock) as dialer:
        asking = asyncio.ensure_future(GroupMembers(dialer, options).ask(old.server.address, 3.0))
        await old.asked.wait()
        await clock.advance(ANSWER_S)
        assert await asking is None
