"""Frames that cost more than their bytes explain wait for their address; others are served meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import struct

import pytest

from kerolox.front.lanes import Lane
from kerolox.front.requests import Answer, Request
from kerolox.net.address import source_of
from kerolox.net.dialer import Dialer
from kerolox.net.handlers import RemotingHandlers
from kerolox.net.peer import Budgets
from kerolox.net.server import Server
from kerolox.net.work_budget import BURST_S, EXPLAINED_S, SOURCES_MAX, WAIT_S_MAX, WorkBudget
from kerolox.protocol.command import request
from kerolox.protocol.frame import JSON, pack_frame
from kerolox.protocol.json_dialect import loads
from kerolox.protocol.limits import JSON_SCAN_STEPS_MAX

from .conftest import ECHO, Echo, Recorder, Word, until

COSTLY = 9100
UNUSUAL = b"[" + b"'x'," * (JSON_SCAN_STEPS_MAX - 10) + b"]"  # a tenth of a second to read, and more


class Reads:
    """A handler that reads bodies as handlers of servers do, in the pass."""

    def __init__(self) -> None:
        self.count = 0
        self.handlers = RemotingHandlers()
        lane = Lane("reads", age_s_max=60)
        self.handlers.add(COSTLY, self.read, None, lane)
        self.handlers.add(ECHO, self.echo, Word, lane)

    def read(self, request: Request[None]) -> Answer:
        self.count += 1
        loads(request.body)
        return Answer()

    def echo(self, request: Request[Word]) -> Answer:
        return Answer(header=request.header, body=request.body)


async def sent(server: Server, frame: bytes) -> asyncio.StreamWriter:
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(frame)
    with contextlib.suppress(ConnectionError):
        await writer.drain()
    return writer


async def test_what_costs_much_waits_for_its_address_and_others_are_served() -> None:
    reads = Reads()
    frame = request(COSTLY, None, UNUSUAL, opaque=1).encode()
    async with Server(reads.handlers, host="127.0.0.1") as server, Dialer() as dialer:
        await dialer.call(server.address, ECHO, Word(word="x"))
        writers = await asyncio.gather(*(sent(server, frame * 3) for _ in range(8)))
        await until(lambda: reads.count)
        for _ in range(20):  # the second costly frame has to wait for a second
            await dialer.call(server.address, ECHO, Word(word="x"), bytes(512), timeout_s=30)
        assert reads.count <= 8
        for writer in writers:
            writer.close()


async def test_what_costs_as_much_as_its_bytes_explain_never_waits() -> None:
    strict = b"[" + b'"x",' * 200_000 + b'"x"]'
    waits_s = []
    for _ in range(5):  # on a busy machine the same work takes more processor time now and then
        reads = Reads()
        async with Server(reads.handlers, host="127.0.0.1") as server, Dialer() as dialer:
            for number in range(1, 9):
                assert (await dialer.call(server.address, COSTLY, None, strict, timeout_s=30)).code == 0
                assert reads.count == number
            waits_s.append(server._budgets.work.wait_s("127.0.0.1", 0.0))
        if not waits_s[-1]:
            return
    raise AssertionError(f"charged each time: {waits_s}")


async def test_requests_whose_sender_has_closed_are_dropped(recorder: Recorder) -> None:
    reads, budgets = Reads(), Budgets()
    async with Server(reads.handlers, host="127.0.0.1", events=recorder, budgets=budgets) as server:
        now_s = server._clock.monotonic_s()
        budgets.work.charge("127.0.0.1", BURST_S + 0.05, now_s)
        frame = request(COSTLY, None, bytes(5000), opaque=1).encode()
        gone = await sent(server, frame * 5)
        stays = await sent(server, request(COSTLY, None, b"[]" + b" " * 5000, opaque=2).encode())
        await until(lambda: server._budgets.unfinished.used > 29_000)  # what waits is counted
        gone.close()
        await until(lambda: recorder.closed_peers)
        await until(lambda: reads.count)
        assert reads.count == 1
        assert "before its requests were handled" in recorder.closed_peers[0][1]
        await until(lambda: server._budgets.unfinished.used == 0)
        stays.close()


async def test_a_header_in_an_unusual_spelling_is_short_or_refused(echo: Echo, recorder: Recorder) -> None:
    """619 kB of these took a fifth of a second, before anybody asked who sends them."""
    fields = b",".join(b"k%d:1" % (number % 10) for number in range(120_000))
    header = b"{code:%d,opaque:1,extFields:{%b}}" % (ECHO, fields)
    async with Server(echo.handlers, host="127.0.0.1", events=recorder) as server:
        writer = await sent(server, pack_frame(JSON, header) * 60)
        await until(lambda: recorder.closed_peers)
        writer.close()
        short = b"{code:%d,opaque:7,extFields:{word:'y'}}" % ECHO
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(pack_frame(JSON, short))
        (length,) = struct.unpack(">i", await reader.readexactly(4))
        assert b'"opaque":7' in await reader.readexactly(length)
        writer.close()
    assert "32768 bytes" in recorder.closed_peers[0][1]
    assert len(recorder.closed_peers[0][1]) < 400


async def test_short_headers_in_an_unusual_spelling_wait_for_their_address(echo: Echo) -> None:
    """A kilobyte of these takes half a millisecond to read: many hundred connections had the loop at once."""
    budgets = Budgets()
    unusual = pack_frame(JSON, b"{code:%d,opaque:7,extFields:{word:'y'}}" % ECHO)
    async with Server(echo.handlers, host="127.0.0.1", budgets=budgets) as server, Dialer() as dialer:
        await dialer.call(server.address, ECHO, Word(word="x"))
        now_s = server._clock.monotonic_s()
        budgets.work.charge("127.0.0.1", BURST_S + 0.02, now_s)
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(unusual)
        for _ in range(20):  # what is spelled as usual does not wait
            assert (await dialer.call(server.address, ECHO, Word(word="x"))).code == 0
        (length,) = struct.unpack(">i", await reader.readexactly(4))
        assert b'"opaque":7' in await reader.readexactly(length)
        assert server._clock.monotonic_s() - now_s > 0.39  # until the debt was paid back
        writer.close()


async def test_what_an_unusual_spelling_costs_is_charged(echo: Echo) -> None:
    budgets = Budgets()
    fields = b",".join(b"k%d:1" % (number % 10) for number in range(150))
    unusual = pack_frame(JSON, b"{code:%d,opaque:7,extFields:{word:'y',%b}}" % (ECHO, fields))
    async with Server(echo.handlers, host="127.0.0.1", budgets=budgets) as server:
        writer = await sent(server, unusual * 10_000)  # five seconds of the loop
        await until(lambda: budgets.work.wait_s("127.0.0.1", server._clock.monotonic_s()) > 0)
        await until(lambda: budgets.unfinished.used > 0)  # the others wait
        writer.close()


async def test_a_server_closes_whatever_is_queued() -> None:
    reads = Reads()
    frame = request(COSTLY, None, UNUSUAL, opaque=1).encode()
    async with Server(reads.handlers, host="127.0.0.1") as server:
        writers = await asyncio.gather(*(sent(server, frame * 3) for _ in range(8)))
        await until(lambda: reads.count)
    assert reads.count <= 2
    assert not server._budgets.turns
    assert not server._budgets.unfinished.used
    for writer in writers:
        writer.close()


def test_debts_are_bounded_and_forgotten() -> None:
    work = WorkBudget()
    work.charge_frame("a", 1 << 20, 0.02, 100.0)
    assert work.wait_s("a", 100.0) == 0.0  # a MiB explains it
    work.charge_frame("a", 0, EXPLAINED_S + BURST_S, 100.0)
    assert work.wait_s("a", 100.0) == pytest.approx(0.0)  # once is free
    work.charge_frame("a", 0, EXPLAINED_S + 0.1, 100.0)
    assert work.wait_s("a", 100.0) == pytest.approx(2.0)
    assert work.wait_s("a", 101.5) == pytest.approx(0.5)
    assert work.wait_s("b", 100.0) == 0.0
    work.charge_frame("a", 0, 100.0, 100.0)
    assert work.wait_s("a", 100.0) == WAIT_S_MAX
    for number in range(SOURCES_MAX + 10):
        work.charge(str(number), 0.001, 200.0 + number)
    assert len(work._paid_back_s) < SOURCES_MAX


def test_an_ipv6_host_has_half_of_its_address() -> None:
    assert source_of("10.0.0.7:4711") == "10.0.0.7"
    assert (
        source_of("[2001:db8:1:2:3:4:5:6]:80")
        == source_of("[2001:db8:1:2:ffff::1]:81")
        == "2001:db8:1:2::/64"
    )
    assert source_of("[fe80::1%eth0]:80") == "fe80::/64"
    assert source_of("") == ""


def test_a_socket_of_a_closed_sender_is_known() -> None:
    """The state that ``Peer._is_left`` reads."""
    if not hasattr(socket, "TCP_INFO"):
        pytest.skip("this system has no TCP_INFO")
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
        assert far.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == 1
        near.sendall(b"x")
        near.close()
        far.settimeout(5)
        far.recv(1)
        far.recv(1)  # the end has come
        assert far.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == 8
        far.close()


async def test_what_is_read_after_a_long_turn_of_the_loop_waits_for_its_turn(recorder: Recorder) -> None:
    """Twenty frames of 15 MiB that were whole in one turn of the loop were split and verified in it."""
    reads, budgets = Reads(), Budgets()
    frame = request(COSTLY, None, b"[]", opaque=1).encode()
    async with Server(reads.handlers, host="127.0.0.1", budgets=budgets, events=recorder) as server:
        writer = await sent(server, frame)
        await until(lambda: reads.count == 1)
        (peer,) = server.peers
        budgets.turns.ends_s = server._clock.monotonic_s() - 1  # this turn of the loop takes long
        peer.data_received(frame[:20])
        peer.data_received(frame[20:])
        assert (len(budgets.turns), reads.count) == (1, 1)
        await until(lambda: reads.count == 2)  # in order, and whole
        assert (len(budgets.turns), recorder.closed_peers) == (0, [])
        writer.close()


async def test_held_frames_count_as_unfinished(echo: Echo) -> None:
    budgets = Budgets()
    async with Server(echo.handlers, host="127.0.0.1", budgets=budgets) as server:
        now_s = server._clock.monotonic_s()
        budgets.work.charge("127.0.0.1", 100.0, now_s)
        writer = await sent(server, request(ECHO, Word(word="x"), bytes(100_000), opaque=1).encode() * 3)
        await until(lambda: budgets.unfinished.used > 100_000)
        writer.close()
