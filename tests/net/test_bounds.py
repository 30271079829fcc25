"""What connections may take from each other: memory, the loop, and the files of the process."""

from __future__ import annotations

import asyncio
import socket
import struct

import pytest

from kerolox.front import lanes
from kerolox.front.requests import Answer, Request
from kerolox.net.dialer import Dialer
from kerolox.net.memory_budget import MemoryBudget
from kerolox.net.peer import PASS_S_MAX, Budgets, PeerLimits
from kerolox.net.server import Server
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.command import request
from kerolox.testing.clock import ManualClock

from .conftest import BIG, ECHO, SLOW, Echo, Recorder, Word, until

MIB = 1 << 20


def budgets(unfinished: int = 4 * MIB, unread: int = 64 * MIB) -> Budgets:
    return Budgets(
        unfinished=MemoryBudget("frames that are not whole", unfinished),
        unread=MemoryBudget("answers that are not read", unread),
    )


async def begun(server: Server, size_bytes: int) -> asyncio.StreamWriter:
    """A connection that has sent so much of a frame of 8 MiB."""
    _, writer = await asyncio.open_connection("127.0.0.1", server.port)
    before = server._budgets.unfinished.used
    writer.write(struct.pack(">iI", 8 * MIB, 100) + bytes(size_bytes - 8))
    await writer.drain()
    await until(lambda: server._budgets.unfinished.used != before)
    return writer


async def test_unfinished_frames_have_one_budget_and_the_oldest_goes(echo: Echo, recorder: Recorder) -> None:
    async with Server(echo.handlers, host="127.0.0.1", events=recorder, budgets=budgets()) as server:
        used = server._budgets.unfinished
        first = await begun(server, MIB)
        await until(lambda: used.used == MIB)
        others = [await begun(server, MIB) for _ in range(3)]
        await until(lambda: used.used == 4 * MIB)
        assert not recorder.closed_peers
        async with Dialer() as dialer:  # an honest one is served, whatever its size
            answer = await dialer.call(server.address, ECHO, Word(word="x"), bytes(2 * MIB), timeout_s=30)
            assert len(answer.body) == 2 * MIB
        await until(lambda: recorder.closed_peers)
        assert "this connection has held its bytes the longest" in recorder.closed_peers[0][1]
        await until(lambda: used.used <= 3 * MIB)
        for writer in (first, *others):
            writer.close()
        await until(lambda: used.used == 0)


async def test_answers_that_nobody_reads_have_one_budget(echo: Echo, recorder: Recorder) -> None:
    limits = PeerLimits(write_bytes_high=MIB)
    shared = budgets(unread=3 * MIB)
    async with Server(
        echo.handlers, host="127.0.0.1", events=recorder, limits=limits, budgets=shared
    ) as server:
        socks: list[socket.socket] = []
        for _ in range(3):
            sock = socket.create_connection(("127.0.0.1", server.port))
            sock.sendall(request(BIG, Word(word="x", number=12 * MIB), opaque=1).encode())
            socks.append(sock)
            await asyncio.sleep(0)
        await until(lambda: recorder.closed_peers)
        assert "answers that are not read" in recorder.closed_peers[0][1]
        await until(lambda: shared.unread.used <= 3 * MIB)
        for sock in socks:
            sock.close()
        await until(lambda: shared.unread.used == 0)


async def test_a_long_body_of_a_short_conversation_is_refused(echo: Echo) -> None:
    echo.quick.body_bytes_max = 1000
    async with Server(echo.handlers, host="127.0.0.1") as server, Dialer() as dialer:
        assert (await dialer.call(server.address, ECHO, Word(word="x"), bytes(1000))).code == 0
        refused = await dialer.call(server.address, ECHO, Word(word="x"), bytes(1001))
        assert refused.code == ResponseCode.SYSTEM_ERROR
        assert refused.remark is not None
        assert refused.remark.startswith("the body has 1001 bytes, the limit for this request is 1000")
        assert (await dialer.call(server.address, ECHO, Word(word="x"))).code == 0


async def test_what_waits_in_a_lane_is_bounded_in_bytes(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "WAITING_BYTES_MAX", 10_000)
    echo.lane.waiting_max = 1_000_000
    async with Server(echo.handlers, host="127.0.0.1") as server, Dialer() as dialer:
        asked = [
            asyncio.ensure_future(dialer.call(server.address, SLOW, None, bytes(4000), timeout_s=60))
            for _ in range(8)
        ]
        await until(lambda: echo.lane.refused_full == 3)  # two run, three wait
        echo.release.set()
        answers = await asyncio.gather(*asked)
    refused = [answer for answer in answers if answer.code]
    assert {answer.code for answer in refused} == {ResponseCode.SYSTEM_BUSY}
    assert "3 requests of 12000 bytes waiting" in (refused[0].remark or "")
    assert echo.lane._waiting_bytes == 0


async def test_connections_above_the_limit_are_closed_and_others_served(echo: Echo) -> None:
    async with Server(echo.handlers, host="127.0.0.1") as server, Dialer() as dialer:
        assert (await dialer.call(server.address, ECHO, Word(word="x"))).code == 0
        server.listener.connections_max = 1
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
        assert (await dialer.call(server.address, ECHO, Word(word="x"))).code == 0
        server.listener.connections_max = 2
        async with Dialer() as other:
            assert (await other.call(server.address, ECHO, Word(word="x"))).code == 0


async def test_others_are_heard_before_all_of_a_flood_is_done(echo: Echo) -> None:
    """Each request of the flood moves the clock as if it took long; the other one comes behind all of it."""
    clock = ManualClock()
    done: list[str] = []

    def slow(asked: Request[Word]) -> Answer:
        done.append(asked.header.word)
        clock._move_to(clock.monotonic_s() + PASS_S_MAX / 2)
        return Answer()

    echo.handlers.add(9100, slow, Word, echo.quick)
    echo.quick.age_s_max = 1000
    async with Server(echo.handlers, host="127.0.0.1", clock=clock) as server:
        flood = b"".join(request(9100, Word(word="flood"), opaque=n).encode() for n in range(2000))
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        _, other = await asyncio.open_connection("127.0.0.1", server.port)
        await until(lambda: len(server.peers) == 2)
        writer.write(flood)
        await until(lambda: done)
        other.write(request(9100, Word(word="other"), opaque=1).encode())
        await until(lambda: "other" in done)
        assert done.index("other") < 1000
        await until(lambda: len(done) == 2001)
        writer.close()
        other.close()


async def test_what_runs_in_a_lane_is_bounded_in_bytes(echo: Echo, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "RUNNING_BYTES_MAX", 5000)
    echo.lane.running_max = echo.lane.waiting_max = 100
    async with Server(echo.handlers, host="127.0.0.1") as server, Dialer() as dialer:
        asked = [
            asyncio.ensure_future(dialer.call(server.address, SLOW, None, bytes(4000), timeout_s=60))
            for _ in range(6)
        ]
        await until(lambda: echo.lane.waiting == 4)
        assert echo.started == 2
        echo.release.set()
        assert {answer.code for answer in await asyncio.gather(*asked)} == {0}
    assert echo.lane._running_bytes == 0
