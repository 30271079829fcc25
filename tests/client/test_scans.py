"""Ranges read by large answers where the broker is ours, and as any consumer reads them elsewhere."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kerolox.client.calls.pulls import SCAN_COUNT_MAX, ScanPace
from kerolox.client.messages import Message
from kerolox.client.options import ClientOptions
from kerolox.client.send.producer import Producer
from kerolox.client.sockets import lines
from kerolox.client.sockets.socket_cluster import SocketCluster
from kerolox.protocol.codes import Language
from kerolox.protocol.frame import BINARY, JSON, FrameSplitter, pack_frame
from kerolox.testing.broker import RunningBroker, running_broker
from kerolox.testing.cluster import running_cluster
from kerolox.testing.network import unreliable_network
from tests.client.kit import create

COUNT = 3000


async def filled(running: RunningBroker, size: Callable[[int], int] = lambda number: 900) -> None:
    await create(running, "orders", queues=1)
    async with Producer(running.nameserver_address, group="shop") as producer:
        for low in range(0, COUNT, 500):
            await producer.send_batch(
                [
                    Message("orders", f"{n}".ljust(size(n), "."), tags="ab"[n % 2])
                    for n in range(low, low + 500)
                ]
            )


def watched(running: RunningBroker) -> list[tuple[int, int | None]]:
    """The pulls that come: how many messages each asks for, and how many bytes."""
    pulls, seen = running.broker.consuming.pulls, []
    check = pulls._check

    def look(request: Any) -> Any:
        seen.append((request.header.max_msg_nums, request.header.scan_bytes))
        return check(request)

    pulls._check = look  # type: ignore[method-assign]
    return seen


def read(where: str | ClientOptions, start: int = 0, end: int = COUNT, **how: Any) -> list[int]:
    with SocketCluster(where) as cluster:
        (queue,) = cluster.route("orders").readable
        asked = {"group": "g", "ahead": 8, "count": 1024, "scan_bytes": 1 << 20, **how}
        found = list(cluster.read(queue, start, end, **asked))
        return [int(message.text.rstrip(".")) for message in found]


@pytest.mark.parametrize("encoding", [JSON, BINARY])
async def test_a_range_comes_in_few_large_answers(encoding: int) -> None:
    async with running_broker() as running:
        await filled(running)
        seen = watched(running)
        options = ClientOptions(running.nameserver_address, encoding=encoding)
        assert await asyncio.to_thread(read, options, 3, 2900) == list(range(3, 2900))
        assert seen[0] == (1024, None)  # nobody knew yet whose broker it is
        assert len(seen) < 10
        assert all(scan_bytes == 1 << 20 for _, scan_bytes in seen[1:])


async def test_a_broker_of_somebody_else_is_asked_what_it_knows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lines, "language_of", lambda answer: Language.JAVA)
    async with running_broker() as running:
        await filled(running)
        seen = watched(running)
        assert await asyncio.to_thread(read, running.nameserver_address) == list(range(COUNT))
        assert len(seen) >= COUNT / 32
        assert {scan_bytes for _, scan_bytes in seen} == {None}


async def test_messages_that_grow_and_shrink() -> None:
    """Guesses of where an answer ends go wrong: then the rest is fetched, and nothing is missing."""
    async with running_broker() as running:
        await filled(running, lambda number: 30_000 if number % 1000 > 950 else 20 + number % 700)
        seen = watched(running)
        assert await asyncio.to_thread(read, running.nameserver_address) == list(range(COUNT))
        assert len(seen) < 40


@pytest.mark.parametrize("limit", [0, 40_000])
async def test_a_broker_that_gives_less(limit: int) -> None:
    async with running_broker(maxTransferBytesOfScan=limit) as running:
        await filled(running)
        assert await asyncio.to_thread(read, running.nameserver_address) == list(range(COUNT))


async def test_filters_and_limits() -> None:
    async with running_broker() as running:
        await filled(running)
        odd = list(range(1, COUNT, 2))
        where = running.nameserver_address
        assert await asyncio.to_thread(read, where, expression="b") == odd
        assert await asyncio.to_thread(read, where, expression="TAGS = 'b'", kind="SQL92") == odd
        seen = watched(running)
        assert await asyncio.to_thread(read, where, count=100, scan_count=100) == list(range(COUNT))
        assert max(asked for asked, _ in seen) == 100


async def test_over_connections_that_break_in_the_middle_of_an_answer() -> None:
    async with running_broker() as running, unreliable_network(running.nameserver_address) as network:
        await filled(running)
        loop = asyncio.get_running_loop()

        def broken() -> list[int]:
            with SocketCluster(network.nameserver_address) as cluster:
                (queue,) = cluster.route("orders").readable
                found = []
                for number, pulled in enumerate(
                    cluster.blocks(queue, 0, COUNT, group="g", ahead=3, scan_bytes=300_000)
                ):
                    found.append((pulled.next_offset, len(pulled.block)))
                    if number in (1, 3):
                        loop.call_soon_threadsafe(network.cut_in_frame)
                return [offset for offset, _ in found]

        ends = await asyncio.to_thread(broken)
        assert ends == sorted(set(ends))
        assert ends[-1] == COUNT
        assert await asyncio.to_thread(read, network.nameserver_address) == list(range(COUNT))


async def test_followers_are_scanned_too(tmp_path: Path) -> None:
    async with running_cluster(1, followers=1, directory=tmp_path) as cluster:
        await cluster.create_topic("orders", queues=1)
        async with Producer(cluster.nameserver_address, group="shop") as producer:
            for low in range(0, COUNT, 500):
                await producer.send_batch([Message("orders", f"{n}") for n in range(low, low + 500)])
        await cluster.caught_up()
        follower = cluster.followers("broker-a")[1]
        seen = watched(follower)

        def scan() -> list[int]:
            with SocketCluster(cluster.nameserver_address, read_from="follower") as reader:
                (queue,) = reader.route("orders").readable
                how: dict[str, Any] = {"group": "g", "scan_bytes": 1 << 20}
                return [int(message.text) for message in reader.read(queue, 0, COUNT, **how)]

        assert await asyncio.to_thread(scan) == list(range(COUNT))
        assert [scan_bytes for _, scan_bytes in seen][1:]
        assert {scan_bytes for _, scan_bytes in seen[1:]} == {1 << 20}


# --- how much is asked for -------------------------------------------------------------------------


def test_a_scan_asks_for_what_fills_an_answer() -> None:
    pace = ScanPace(1 << 20)
    assert not pace.is_known
    pace.saw(0, 32, 32 * 300)  # a pull, which was cut by another limit
    assert pace.is_known
    assert pace.ask == int((1 << 20) * 0.9) * 32 // (32 * 300)
    pace.saw(pace.ask, 1000, 200_000)  # the broker gives less
    assert pace.ask == 900
    for _ in range(200):
        pace.saw(pace.ask, pace.ask, pace.ask * 200)
    assert pace.ask == int((1 << 20) * 0.9) // 200  # but it was only the end of a file
    pace.saw(pace.ask, pace.ask, pace.ask)
    assert pace.ask == SCAN_COUNT_MAX
    pace.saw(pace.ask, 1, 4 << 20)  # one message longer than answers are
    assert pace.ask == 1
    pace.saw(1, 0, 0)
    assert pace.ask == 1


# --- long frames -----------------------------------------------------------------------------------


def room(size: int) -> memoryview:
    return memoryview(bytearray(size))


def test_memory_is_used_again_when_nobody_looks_at_it() -> None:
    rooms = lines.Rooms()
    first = rooms.take(100)
    first[:] = b"a" * 100
    kept = first[3:5]
    del first
    second = rooms.take(100)
    second[:] = b"b" * 100
    assert kept == b"aa"
    place = id(second.obj)
    del second
    assert id(rooms.take(5).obj) == place
    array = np.frombuffer(rooms.take(50), np.uint8)  # looks at it, too
    assert id(rooms.take(5).obj) != place
    del array
    held = [rooms.take(10 + n) for n in range(20)]
    assert len({id(each.obj) for each in held}) == 20
    assert len(rooms._rooms) == lines.ROOMS_MAX
    assert len(rooms.take(5 << 20)) == 5 << 20


def test_a_long_frame_is_taken_from_the_splitter() -> None:
    body = bytes(range(256)) * 1000
    stream = pack_frame(JSON, b"{1}", b"short") + pack_frame(BINARY, b"header", body)
    stream += pack_frame(JSON, b"{2}")
    for cut in (40, 5000):
        splitter = FrameSplitter()
        assert splitter.feed(stream[:cut]) == [(JSON, b"{1}", b"short")]
        assert splitter.take_long(len(body) * 2, room) is None
        long = splitter.take_long(1000, room)
        assert long is not None
        assert (long.encoding, long.header, len(long.body)) == (BINARY, b"header", len(body))
        assert splitter.waiting_bytes == 0
        left = len(body) - long.filled
        for low in range(cut, cut + left, 10_000):
            piece = stream[low : min(low + 10_000, cut + left)]
            long.room[: len(piece)] = piece
            long.filled += len(piece)
        assert long.is_whole
        assert long.body == body
        assert splitter.feed(stream[cut + left :]) == [(JSON, b"{2}", b"")]


def test_a_header_that_is_not_there_yet_is_waited_for() -> None:
    stream = pack_frame(JSON, b"h" * 100, b"b" * 100_000)
    splitter = FrameSplitter()
    for cut in range(0, 100, 7):
        assert splitter.feed(stream[cut : cut + 7]) == []
        assert splitter.take_long(1000, room) is None
    assert splitter.feed(stream[105:150]) == []
    long = splitter.take_long(1000, room)
    assert long is not None
    assert long.header == b"h" * 100
