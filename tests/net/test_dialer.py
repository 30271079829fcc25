"""Outgoing connections: shared, bounded, with deadlines, back-off and requests coming the other way."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from kerolox.errors import Closed, ConnectFailed, ConnectionLost, Overloaded, RequestTimeout
from kerolox.front.lanes import Lane
from kerolox.front.requests import Answer, Request
from kerolox.net.dialer import Dialer, split_address
from kerolox.net.handlers import Hook, RemotingHandlers
from kerolox.net.peer import PeerLimits
from kerolox.net.server import Server
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.command import Command
from kerolox.protocol.frame import BINARY
from kerolox.testing.clock import ManualClock
from tests.rig.ports import free_port

from .conftest import ECHO, LATER, SLOW, Echo, Recorder, Word, until


async def test_all_callers_share_one_connection(server: Server) -> None:
    async with Dialer() as dialer:
        answers = await asyncio.gather(
            *(dialer.call(server.address, ECHO, Word(word=str(n))) for n in range(100))
        )
        assert [answer.header(Word).word for answer in answers] == [str(n) for n in range(100)]
        assert len(server.peers) == 1


async def test_a_call_without_answer_ends_at_its_deadline(server: Server, echo: Echo) -> None:
    async with Dialer() as dialer:
        with pytest.raises(RequestTimeout, match=r"within 0\.\d+ s") as caught:
            await dialer.call(server.address, LATER, timeout_s=0.2)
        assert caught.value.retriable
        echo.later[0].answer(Answer())  # too late: dropped, and the connection goes on
        assert (await dialer.call(server.address, ECHO, Word(word="x"))).code == 0


async def test_callback_form(server: Server) -> None:
    got: list[Command | Exception] = []
    async with Dialer() as dialer:
        await dialer.ask(server.address, ECHO, Word(word="x"), b"", got.append)
        await dialer.ask(server.address, LATER, None, b"", got.append, timeout_s=0.1)
        await until(lambda: len(got) == 2)
    assert isinstance(got[0], Command)
    assert isinstance(got[1], RequestTimeout)


async def test_one_way(server: Server, echo: Echo) -> None:
    async with Dialer() as dialer:
        await dialer.tell(server.address, LATER, fields={"x": "1"})
        await until(lambda: echo.later)
        assert echo.later[0].is_one_way
        assert echo.later[0].fields == {"x": "1"}


async def test_waiting_calls_fail_when_the_connection_goes(server: Server, echo: Echo) -> None:
    async with Dialer() as dialer:
        call = asyncio.create_task(dialer.call(server.address, LATER, timeout_s=10))
        await until(lambda: echo.later)
        echo.later[0].caller.close("test", at_once=True)
        with pytest.raises(ConnectionLost):
            await call
        assert (await dialer.call(server.address, ECHO, Word(word="again"))).code == 0


async def test_the_number_in_flight_is_bounded(server: Server) -> None:
    async with Dialer(limits=PeerLimits(in_flight_max=2)) as dialer:
        calls = [asyncio.create_task(dialer.call(server.address, LATER, timeout_s=5)) for _ in range(2)]
        await until(lambda: (peer := dialer.connected_peer(server.address)) and peer.in_flight == 2)
        with pytest.raises(Overloaded):
            await dialer.call(server.address, ECHO, Word(word="x"))
        for call in calls:
            call.cancel()
        await asyncio.gather(*calls, return_exceptions=True)
        assert (await dialer.call(server.address, ECHO, Word(word="x"))).code == 0


async def test_a_failed_connect_backs_off_and_recovers(echo: Echo) -> None:
    clock = ManualClock()
    port = free_port()
    address = f"127.0.0.1:{port}"
    async with Dialer(clock=clock) as dialer:
        with pytest.raises(ConnectFailed, match="reachable"):
            await dialer.call(address, ECHO, Word(word="x"))
        with pytest.raises(ConnectFailed, match=r"next attempt in 0\.05 s"):
            await dialer.call(address, ECHO, Word(word="x"))
        await clock.advance(0.06)
        with pytest.raises(ConnectFailed):
            await dialer.call(address, ECHO, Word(word="x"))
        with pytest.raises(ConnectFailed, match=r"failed 2 times, next attempt in 0\.10 s"):
            await dialer.call(address, ECHO, Word(word="x"))
        await clock.advance(1)
        async with Server(echo.handlers, host="127.0.0.1", port=port):
            assert (await dialer.call(address, ECHO, Word(word="up"))).code == 0


async def test_requests_from_the_server_are_served_on_the_same_connection(
    server: Server, recorder: Recorder
) -> None:
    handlers = RemotingHandlers()
    lane = Lane("client")
    told: list[Request[Any]] = []
    handlers.add(39, told.append, None, lane)
    handlers.add(307, lambda request: Answer(body=b"running"), None, lane)
    async with Dialer(handlers) as dialer:
        await dialer.call(server.address, ECHO, Word(word="hello"))
        peer = recorder.connected_peers[0]
        assert (await peer.request(307)).body == b"running"
        assert (await peer.request(308)).code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
        peer.tell(39)
        await until(lambda: told)
        # The same opaque in both directions is not confused.
        both = await asyncio.gather(peer.call(307), dialer.call(server.address, ECHO, Word(word="x")))
        assert both[0].body == b"running"
        assert both[1].header(Word).word == "x"


async def test_go_away_is_followed_once_on_a_new_connection(echo: Echo) -> None:
    handlers, lane, seen = RemotingHandlers(), Lane("x"), []

    def leave(request: Request[Any]) -> Answer:
        seen.append(request.caller)
        return Answer(code=ResponseCode.GO_AWAY) if len(seen) == 1 else Answer(remark="here now")

    handlers.add(1, leave, None, lane)
    async with Server(handlers, host="127.0.0.1") as server, Dialer() as dialer:
        assert (await dialer.call(server.address, 1)).remark == "here now"
        assert seen[0] is not seen[1]


async def test_binary_headers_by_choice(server: Server, echo: Echo) -> None:
    async with Dialer(encoding=BINARY) as dialer:
        answer = await dialer.call(server.address, ECHO, Word(word="é", number=-1), b"body")
        assert answer.encoding == BINARY
        assert answer.header(Word) == Word(word="é", number=-1)


async def test_hooks_may_add_fields_to_outgoing_requests(server: Server, echo: Echo) -> None:
    class Sign(Hook):
        def before_request(self, peer: object, request: Command) -> None:
            request.fields["Signature"] = "abc"

    handlers = RemotingHandlers()
    handlers.hooks.append(Sign())
    async with Dialer(handlers) as dialer:
        await dialer.tell(server.address, LATER)
        await until(lambda: echo.later)
        assert echo.later[0].fields == {"Signature": "abc"}


async def test_cancelling_a_call_leaves_the_others(server: Server, echo: Echo) -> None:
    async with Dialer() as dialer:
        slow = asyncio.create_task(dialer.call(server.address, SLOW, timeout_s=10))
        await until(lambda: echo.started)
        slow.cancel()
        with pytest.raises(asyncio.CancelledError):
            await slow
        peer = dialer.connected_peer(server.address)
        assert peer is not None
        assert peer.in_flight == 0
        echo.release.set()
        assert (await dialer.call(server.address, ECHO, Word(word="x"))).code == 0


async def test_after_close_calls_are_refused(server: Server) -> None:
    dialer = Dialer()
    await dialer.call(server.address, ECHO, Word(word="x"))
    await dialer.close()
    await dialer.close()
    with pytest.raises(Closed):
        await dialer.call(server.address, ECHO, Word(word="x"))


@pytest.mark.parametrize("address", ["", "host", "host:", ":1", "host:port", "host:0", "host:70000"])
async def test_bad_addresses_are_explained(address: str) -> None:
    with pytest.raises(ConnectFailed, match="host:port"):
        split_address(address)
    assert split_address("[::1]:10911") == ("::1", 10911)
