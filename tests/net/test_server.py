"""The server against good, bad, slow and silent peers, over real sockets."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import pytest

from kerolox.errors import Refused
from kerolox.front.requests import Answer, Request
from kerolox.net.dialer import Dialer
from kerolox.net.listener import ListenFailed
from kerolox.net.peer import Peer, PeerLimits
from kerolox.net.server import Server
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.command import Command, decode_command, request
from kerolox.protocol.frame import BINARY, JSON, Frame, FrameSplitter
from kerolox.testing.clock import ManualClock

from .conftest import BIG, BROKEN, ECHO, LATER, SLOW, Echo, Recorder, Word, until


async def read_commands(reader: asyncio.StreamReader, count: int) -> list[Command]:
    splitter, got = FrameSplitter(), []
    async with asyncio.timeout(10):
        while len(got) < count:
            data = await reader.read(1 << 16)
            if not data:
                break
            got += [decode_command(*frame) for frame in splitter.feed(data)]
    return got


async def still_serves(server: Server) -> bool:
    async with Dialer() as dialer:
        answer = await dialer.call(server.address, ECHO, Word(word="ok"))
        return answer.code == 0


async def test_many_frames_of_one_write_are_all_answered_in_both_encodings(server: Server) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    for opaque in range(200):
        encoding = BINARY if opaque % 2 else JSON
        writer.write(request(ECHO, Word(word=f"w{opaque}"), b"b", opaque=opaque, encoding=encoding).encode())
    got = await read_commands(reader, 200)
    assert [command.opaque for command in got] == list(range(200))
    assert [command.encoding for command in got] == [JSON, BINARY] * 100
    assert all(command.is_answer and command.code == 0 for command in got)
    assert got[7].header(Word).word == "w7"
    writer.close()


async def test_unknown_codes_are_said_to_be_unsupported(server: Server) -> None:
    async with Dialer() as dialer:
        answer = await dialer.call(server.address, 777)
    assert answer.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    assert "777" in (answer.remark or "")


async def test_a_flood_of_unknown_codes_leaves_others_served(server: Server) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"".join(request(777, opaque=n).encode() for n in range(5000)))
    assert await still_serves(server)
    got = await read_commands(reader, 5000)
    assert {command.code for command in got} == {ResponseCode.REQUEST_CODE_NOT_SUPPORTED}
    writer.close()


async def test_a_handler_that_raises_answers_and_the_connection_goes_on(server: Server) -> None:
    async with Dialer() as dialer:
        answer = await dialer.call(server.address, BROKEN)
        assert answer.code == ResponseCode.SYSTEM_ERROR
        assert "ZeroDivisionError: one over nothing" in (answer.remark or "")
        assert "conftest.py:" in (answer.remark or "")
        peer = dialer.connected_peer(server.address)
        assert (await dialer.call(server.address, ECHO, Word(word="x"))).code == 0
        assert dialer.connected_peer(server.address) is peer


async def test_a_missing_field_is_named_and_the_connection_goes_on(server: Server) -> None:
    async with Dialer() as dialer:
        answer = await dialer.call(server.address, ECHO, fields={"other": "1"})
        assert answer.code == ResponseCode.INVALID_PARAMETER
        assert "word" in (answer.remark or "")
        assert (await dialer.call(server.address, ECHO, Word(word="x"))).code == 0


async def test_one_way_requests_are_never_answered(server: Server) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    for code in (ECHO, BROKEN, 777):
        writer.write(request(code, opaque=1, one_way=True, fields={"word": "x"}).encode())
    writer.write(request(ECHO, Word(word="end"), opaque=2).encode())
    (only,) = await read_commands(reader, 1)
    assert only.opaque == 2
    writer.close()


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
        struct.pack(">iI", 1 << 30, 10),
        struct.pack(">iI", 8, 4) + b"nope",
        struct.pack(">iI", 8, 1 << 24 | 4) + b"nope",
        struct.pack(">iI", 8, 9 << 24 | 4) + b"nope",
        bytes.fromhex("160301020001000"[:14] + "00"),
        b"\xff" * 64,
    ],
)
async def test_garbage_closes_only_its_own_connection(
    server: Server, recorder: Recorder, garbage: bytes
) -> None:
    good_reader, good = await asyncio.open_connection("127.0.0.1", server.port)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(request(ECHO, Word(word="before"), opaque=1).encode() + garbage)
    (before,) = await read_commands(reader, 1)
    assert before.opaque == 1
    assert await asyncio.wait_for(reader.read(), 10) == b""
    await until(lambda: recorder.closed_peers)
    assert "malformed frame" in recorder.closed_peers[0][1]
    good.write(request(ECHO, Word(word="still"), opaque=2).encode())
    assert (await read_commands(good_reader, 1))[0].opaque == 2
    writer.close()
    good.close()


async def test_a_truncated_frame_waits_and_a_half_close_ends_it(server: Server, recorder: Recorder) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    whole = request(ECHO, Word(word="x"), opaque=1).encode()
    writer.write(whole + whole[:-3])
    assert len(await read_commands(reader, 1)) == 1
    writer.write_eof()
    assert await asyncio.wait_for(reader.read(), 10) == b""
    await until(lambda: recorder.closed_peers)
    assert await still_serves(server)
    writer.close()


async def test_a_peer_that_does_not_read_is_bounded_then_closed(echo: Echo, recorder: Recorder) -> None:
    limits = PeerLimits(write_bytes_high=64 * 1024, write_bytes_max=8 * 1024 * 1024, write_stall_s_max=0.2)
    async with Server(echo.handlers, host="127.0.0.1", events=recorder, limits=limits) as server:
        sock = socket.create_connection(("127.0.0.1", server.port))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        sock.setblocking(False)
        question = request(BIG, Word(word="x", number=256 * 1024), opaque=1).encode()
        loop = asyncio.get_running_loop()
        try:
            await asyncio.wait_for(loop.sock_sendall(sock, question * 2000), 20)
        except (TimeoutError, OSError):
            pass  # the server stopped reading, or closed: both are what we want
        await until(lambda: recorder.closed_peers)
        assert "slow reader" in recorder.closed_peers[0][1]
        assert await still_serves(server)
        sock.close()


async def test_a_slow_reader_gets_everything_in_the_end(echo: Echo) -> None:
    limits = PeerLimits(write_bytes_high=64 * 1024)
    async with Server(echo.handlers, host="127.0.0.1", limits=limits) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1 << 16)
        for opaque in range(100):
            writer.write(request(BIG, Word(word="x", number=128 * 1024), opaque=opaque).encode())
        got = await read_commands(reader, 100)
        assert [command.opaque for command in got] == list(range(100))
        assert {len(command.body) for command in got} == {128 * 1024}
        writer.close()


async def test_two_thousand_idle_connections(server: Server) -> None:
    idle = []
    for _ in range(2000):
        sock = socket.socket()
        sock.setblocking(False)
        try:
            sock.connect(("127.0.0.1", server.port))
        except BlockingIOError:
            pass
        idle.append(sock)
        if len(idle) % 200 == 0:
            await until(lambda: len(server.peers) >= len(idle) - 50)
    await until(lambda: len(server.peers) == 2000)
    assert await still_serves(server)
    for sock in idle:
        sock.close()
    await until(lambda: not server.peers)


async def test_idle_connections_are_closed_by_the_clock(echo: Echo, recorder: Recorder) -> None:
    clock = ManualClock()
    async with Server(echo.handlers, host="127.0.0.1", events=recorder, clock=clock) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        await until(lambda: server.peers)
        await clock.advance(119)
        assert not recorder.closed_peers
        await clock.advance(3)
        assert await asyncio.wait_for(reader.read(), 10) == b""
        await until(lambda: recorder.closed_peers)
        assert recorder.closed_peers[0][1] == "idle for 120 s"
        writer.close()


async def test_a_full_lane_refuses_and_says_so(server: Server, echo: Echo) -> None:
    async with Dialer() as dialer:
        calls = [asyncio.create_task(dialer.call(server.address, SLOW, timeout_s=20)) for _ in range(6)]
        done, _ = await asyncio.wait(calls, return_when=asyncio.FIRST_COMPLETED, timeout=10)
        (refused,) = [task.result() for task in done]
        assert refused.code == ResponseCode.SYSTEM_BUSY
        assert (refused.remark or "").startswith("[OVERLOAD]")
        assert echo.started == 2  # running_max
        assert (await dialer.call(server.address, ECHO, Word(word="other lane"))).code == 0
        echo.release.set()
        answers = [await task for task in calls]
        assert sorted(answer.code for answer in answers) == [0, 0, 0, 0, 0, 2]
        assert echo.lane.refused_full == 1


async def test_a_held_lane_begins_nothing_until_it_is_released(server: Server, echo: Echo) -> None:
    """Neither plain functions nor coroutines; other lanes go on."""
    echo.release.set()
    async with Dialer() as dialer:
        echo.quick.hold()
        quick = [asyncio.create_task(dialer.call(server.address, ECHO, Word(word="x"))) for _ in range(3)]
        await until(lambda: echo.quick.waiting == 3)
        assert (await dialer.call(server.address, SLOW)).code == 0
        assert not any(task.done() for task in quick)
        echo.quick.release()
        assert [(await task).header(Word).word for task in quick] == ["x"] * 3
        echo.lane.hold()
        slow = asyncio.create_task(dialer.call(server.address, SLOW))
        await until(lambda: echo.lane.waiting == 1)
        echo.lane.release()
        assert (await slow).code == 0


async def test_requests_that_waited_too_long_are_refused(recorder: Recorder) -> None:
    clock = ManualClock()
    echo = Echo()
    echo.lane._clock = clock
    echo.lane.age_s_max = 0.2
    async with (
        Server(echo.handlers, host="127.0.0.1", clock=clock) as server,
        Dialer() as dialer,
    ):
        calls = [asyncio.create_task(dialer.call(server.address, SLOW, timeout_s=20)) for _ in range(4)]
        await until(lambda: echo.lane.waiting == 2)
        await clock.advance(0.15)
        assert not any(task.done() for task in calls)
        await clock.advance(0.1)
        await until(lambda: sum(task.done() for task in calls) == 2)
        refused = [task.result() for task in calls if task.done()]
        assert {answer.code for answer in refused} == {ResponseCode.SYSTEM_BUSY}
        assert all("[TIMEOUT_CLEAN_QUEUE]" in (answer.remark or "") for answer in refused)
        assert "period in queue: 2" in (refused[0].remark or "")
        echo.release.set()
        assert sum([(await task).code == 0 for task in calls]) == 2


async def test_answers_may_come_later_and_out_of_order(server: Server, echo: Echo) -> None:
    async with Dialer() as dialer:
        calls = [asyncio.create_task(dialer.call(server.address, LATER, timeout_s=10)) for _ in range(3)]
        await until(lambda: len(echo.later) == 3)
        for number, asked in reversed(list(enumerate(echo.later))):
            asked.answer(Answer(remark=str(number)))
        assert [(await task).remark for task in calls] == ["0", "1", "2"]


async def test_an_answer_to_a_closed_peer_is_dropped(server: Server, echo: Echo, recorder: Recorder) -> None:
    async with Dialer() as dialer:
        call = asyncio.create_task(dialer.call(server.address, LATER, timeout_s=10))
        await until(lambda: echo.later)
        call.cancel()
    await until(lambda: recorder.closed_peers)
    echo.later[0].answer(Answer())
    assert await still_serves(server)


async def test_gates_see_requests_and_may_refuse(server: Server, echo: Echo) -> None:
    seen: list[object] = []

    def gate(request: Request[Any]) -> None:
        seen.append(request.header)
        if request.header == Word(word="forbidden"):
            raise Refused(ResponseCode.NO_PERMISSION, "not for you")

    echo.handlers.add_gate(gate)
    echo.handlers.add_gate(lambda request: seen.append(request.code))
    async with Dialer() as dialer:
        assert (await dialer.call(server.address, ECHO, Word(word="fine"))).code == 0
        refused = await dialer.call(server.address, ECHO, Word(word="forbidden"))
        slow = asyncio.create_task(dialer.call(server.address, SLOW))
        await until(lambda: echo.started)
        echo.release.set()
        assert (await slow).code == 0
    assert (refused.code, refused.remark) == (ResponseCode.NO_PERMISSION, "not for you")
    assert seen == [Word(word="fine"), ECHO, Word(word="forbidden"), None, SLOW]


async def test_nothing_goes_past_a_gate_in_runs(server: Server, echo: Echo) -> None:
    start = b'{"code":9001'
    taken: list[int] = []

    def take(peer: Peer, frames: list[Frame], at: int) -> int:
        taken.append(at)
        return 0

    echo.handlers.add_run(start, take, echo.quick)
    async with Dialer() as dialer:
        await dialer.call(server.address, ECHO, Word(word="x"))
        assert taken == [0]
        echo.handlers.add_gate(lambda request: None)
        await dialer.call(server.address, ECHO, Word(word="x"))
        assert taken == [0]
    with pytest.raises(ValueError, match="would bypass 1 gates"):
        echo.handlers.add_run(start, take, echo.quick)


async def test_a_taken_port_is_said_so(server: Server, echo: Echo) -> None:
    with pytest.raises(ListenFailed, match=str(server.port)):
        await Server(echo.handlers, host="127.0.0.1", port=server.port).start()


async def test_ipv6(echo: Echo) -> None:
    try:
        probe = socket.socket(socket.AF_INET6)
        probe.bind(("::1", 0))
        probe.close()
    except OSError:
        pytest.skip("no IPv6 here")
    async with Server(echo.handlers, host="::1") as server, Dialer() as dialer:
        assert server.address == f"[::1]:{server.port}"
        assert (await dialer.call(server.address, ECHO, Word(word="six"))).header(Word).word == "six"


async def test_what_is_done_after_a_pass_is_done_once_and_before_the_answers(
    server: Server, echo: Echo
) -> None:
    passes: list[int] = []

    def finish() -> None:
        if echo.later:
            passes.append(len(echo.later))
            for asked in echo.later:
                asked.answer(Answer(remark="together"))
            echo.later.clear()

    echo.handlers.after_pass.append(finish)
    reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
    writer.write(b"".join(request(LATER, opaque=n).encode() for n in range(50)))
    got = await read_commands(reader, 50)
    assert [command.opaque for command in got] == list(range(50))
    assert sum(passes) == 50
    assert len(passes) < 10
    writer.close()
