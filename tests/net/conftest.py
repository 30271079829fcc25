"""A small real server with one handler of each kind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from kerolox.front.lanes import Lane
from kerolox.front.requests import Answer, Request
from kerolox.net.handlers import RemotingHandlers
from kerolox.net.peer import Peer, PeerEvents
from kerolox.net.server import Server
from kerolox.protocol.header import Header

ECHO, SLOW, BROKEN, LATER, FIELDS, BIG = 9001, 9002, 9003, 9004, 9005, 9006


class Word(Header, frozen=True, kw_only=True):
    word: str
    number: int | None = None


class Recorder(PeerEvents):
    def __init__(self) -> None:
        self.connected_peers: list[Peer] = []
        self.closed_peers: list[tuple[Peer, str]] = []

    def connected(self, peer: Peer) -> None:
        self.connected_peers.append(peer)

    def closed(self, peer: Peer, reason: str) -> None:
        self.closed_peers.append((peer, reason))


class Echo:
    """The handlers, and what they were asked."""

    def __init__(self) -> None:
        self.release = asyncio.Event()
        self.started = 0
        self.later: list[Request[Any]] = []
        self.lane = Lane("test", running_max=2, waiting_max=3, age_s_max=30)
        self.quick = Lane("quick")
        self.handlers = RemotingHandlers()
        self.handlers.add(ECHO, self.echo, Word, self.quick)
        self.handlers.add(SLOW, self.slow, None, self.lane)
        self.handlers.add(BROKEN, self.broken, None, self.quick)
        self.handlers.add(LATER, self.later.append, None, self.quick)
        self.handlers.add(BIG, self.big, Word, self.quick)

    def echo(self, request: Request[Word]) -> Answer:
        return Answer(header=request.header, body=request.body)

    def big(self, request: Request[Word]) -> Answer:
        return Answer(body=bytes(request.header.number or 0))

    async def slow(self, request: Request[None]) -> Answer:
        self.started += 1
        await self.release.wait()
        return Answer(remark="released")

    def broken(self, request: Request[None]) -> Answer:
        raise ZeroDivisionError("one over nothing")


@pytest.fixture
async def echo() -> Echo:
    return Echo()


@pytest.fixture
async def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
async def server(echo: Echo, recorder: Recorder) -> AsyncIterator[Server]:
    async with Server(echo.handlers, host="127.0.0.1", events=recorder) as running:
        yield running


async def until(condition: Callable[[], object], timeout_s: float = 10.0) -> None:
    """Wait for something to become true."""
    async with asyncio.timeout(timeout_s):
        while not condition():  # noqa: ASYNC110 — the conditions of tests have no event to wait for
            await asyncio.sleep(0.002)
