"""Silent connections give their places to new ones; one address never has all places of a port."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from kerolox.net.dialer import Dialer
from kerolox.net.http_pages import Page
from kerolox.net.http_server import AT_ONCE_MAX, HttpServer
from kerolox.net.places import IDLE_S, KNOWN, LOOK_AGAIN_S, SPOKE, STRANGER, Places
from kerolox.net.server import Server
from kerolox.net.tls import ServerTls
from kerolox.testing.clock import ManualClock

from .conftest import ECHO, Echo, Recorder, Word, until


class Holder:
    def __init__(self, source: str, rank: int, since_s: float) -> None:
        self.source = source
        self.rank = rank
        self.silent_since_s = since_s
        self.reason = ""

    def close(self, reason: str, /, *, at_once: bool = False) -> None:
        self.reason = reason


async def silent(server: Server | HttpServer, count: int) -> list[asyncio.StreamWriter]:
    pairs = [await asyncio.open_connection("127.0.0.1", server.port) for _ in range(count)]
    return [writer for _, writer in pairs]


async def test_silent_connections_make_room_for_one_that_speaks(echo: Echo, recorder: Recorder) -> None:
    """10,000 silent connections once took all places of a port."""
    async with Server(echo.handlers, host="127.0.0.1", events=recorder) as server, Dialer() as first:
        server.listener.connections_max = 8
        writers = await silent(server, 3)
        assert (await first.call(server.address, ECHO, Word(word="x"))).code == 0
        writers += await silent(server, 20)
        for _ in range(3):
            async with Dialer() as dialer:
                assert (await dialer.call(server.address, ECHO, Word(word="x"))).code == 0
        assert (await first.call(server.address, ECHO, Word(word="x"))).code == 0
        assert server.listener.places.refused == 0
        assert server.listener.places.closed >= 1 + 23 - 6
        assert len(server.listener.places) <= server.listener.places.for_each_max == 6
        assert any("silent for" in reason for _, reason in recorder.closed_peers)
        for writer in writers:
            writer.close()


async def test_silent_connections_on_a_port_with_tls_make_room(echo: Echo, tmp_path: Path) -> None:
    """There a connection has no protocol before its first byte."""
    async with Server(
        echo.handlers, host="127.0.0.1", tls=ServerTls(self_signed=str(tmp_path / "own.pem"))
    ) as server:
        assert server.listener.tls is not None
        assert server.listener.tls.speaks_tls
        server.listener.connections_max = 8
        writers = await silent(server, 30)
        await until(lambda: server.listener.places.closed >= 24)
        async with Dialer() as dialer:
            assert (await dialer.call(server.address, ECHO, Word(word="x"))).code == 0
        assert len(server.listener.unknown) <= 6
        for writer in writers:
            writer.close()


async def test_a_connection_that_has_sent_a_request_stays(echo: Echo, recorder: Recorder) -> None:
    async with Server(echo.handlers, host="127.0.0.1", events=recorder) as server:
        server.listener.connections_max = 4
        dialers = [Dialer() for _ in range(3)]
        for dialer in dialers:
            assert (await dialer.call(server.address, ECHO, Word(word="x"))).code == 0
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        assert await asyncio.wait_for(reader.read(), 10) == b""  # refused: three of one address are there
        writer.close()
        for dialer in dialers:
            assert (await dialer.call(server.address, ECHO, Word(word="x"))).code == 0
            await dialer.close()
        assert len(recorder.connected_peers) == 3


def test_the_longest_silent_goes_first_and_strangers_before_others() -> None:
    places = Places(lambda: 8, for_each=4)
    now_s = 1000.0
    strangers = [Holder("a", STRANGER, now_s - age) for age in (1, 3, 2)]
    spoke = Holder("b", SPOKE, now_s - IDLE_S - 50)
    known = Holder("b", KNOWN, now_s - IDLE_S - 90)
    lively = [Holder("b", SPOKE, now_s - IDLE_S + 1), Holder("b", STRANGER, now_s)]
    for holder in (*strangers, known, spoke, *lively):
        assert places.take(holder, now_s)
    gone: list[Holder] = []
    while places.make_room(now_s):
        gone += [one for one in (*strangers, spoke, known, *lively) if one.reason and one not in gone]
    assert gone == [strangers[1], strangers[2], strangers[0], lively[1], spoke, known]
    assert len(places) == 1
    assert not places.make_room(now_s)


def test_one_address_has_its_part_and_takes_it_from_itself_only() -> None:
    places = Places(lambda: 8)
    others = [Holder("b", STRANGER, 1.0) for _ in range(2)]
    mine = [Holder("a", SPOKE, 10.0) for _ in range(6)]
    for holder in (*others, *mine):
        assert places.take(holder, 10.0)
    assert not places.take(Holder("a", STRANGER, 10.0), 10.0)
    assert places.refused == 1
    assert not any(one.reason for one in others)
    assert places.take(Holder("c", STRANGER, 10.0), 10.0)  # the port is full: a stranger goes
    assert sum(bool(one.reason) for one in others) == 1


def test_a_connection_that_has_spoken_meanwhile_stays() -> None:
    places = Places(lambda: 2, for_each=2)
    first, second = Holder("a", STRANGER, 1.0), Holder("a", STRANGER, 2.0)
    for holder in (first, second):
        assert places.take(holder, 3.0)
    assert places.make_room(3.0)
    assert first.reason
    second.rank = SPOKE
    assert not places.make_room(3.0)
    assert not second.reason


def test_a_large_full_port_is_not_looked_through_for_each_new_connection() -> None:
    places = Places(lambda: 1000)
    for _ in range(1000):
        places.add(Holder("a", SPOKE, 100.0))
    assert not places.make_room(100.0)
    places.add(Holder("b", STRANGER, 100.0))
    assert not places.make_room(100.0)
    assert places.make_room(100.0 + 1000 * LOOK_AGAIN_S)


async def test_silent_visitors_do_not_stop_the_metrics() -> None:
    """40 silent connections once took all places of the HTTP port for ten seconds."""

    async def page() -> Page:
        return Page("figures\n")

    async with HttpServer({"/metrics": page}, host="127.0.0.1", port=0, clock=ManualClock()) as server:
        writers = await silent(server, AT_ONCE_MAX + 8)
        for _ in range(3):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(b"GET /metrics HTTP/1.1\r\n\r\n")
            assert (await asyncio.wait_for(reader.read(), 10)).endswith(b"figures\n")
            writer.close()
        for writer in writers:
            writer.close()


@pytest.mark.parametrize("limit", [0, 3])
async def test_the_limit_of_one_address_is_an_option(echo: Echo, limit: int) -> None:
    async with Server(echo.handlers, host="127.0.0.1", for_each_address=limit) as server:
        places = server.listener.places
        assert places.for_each_max == (limit or places.places_max - places.places_max // 4)
