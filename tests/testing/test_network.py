"""The network that fails on command does what it is told."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

import pytest

from kerolox import Client
from kerolox.errors import ConnectFailed, ConnectionLost, RequestTimeout
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.frame import pack_frame
from kerolox.testing.broker import running_broker
from kerolox.testing.network import Network, last_first, unreliable_network

ASKED = RequestCode.GET_BROKER_RUNTIME_INFO


@pytest.fixture
async def network() -> AsyncIterator[Network]:
    async with running_broker() as running, unreliable_network(running.nameserver_address) as network:
        yield network


async def the_address(client: Client) -> str:
    (address,) = (await client.masters()).values()
    return address


async def test_it_passes_what_it_gets(network: Network) -> None:
    async with Client(network.nameserver_address) as client:
        address = await the_address(client)
        route = await client.routes.find_for_sending("t", "TBW102", 4)
        assert route.brokers["broker-a"][0] == address
        assert (await client.ask(address, ASKED)).body
        assert network.connections == 1


async def test_cut(network: Network) -> None:
    async with Client(network.nameserver_address) as client:
        address = await the_address(client)
        await client.ask(address, ASKED)
        network.cut_in_frame()
        with pytest.raises(ConnectionLost):
            await client.ask(address, ASKED)
        assert (await client.ask(address, ASKED)).body


async def test_stall_and_resume(network: Network) -> None:
    async with Client(network.nameserver_address) as client:
        address = await the_address(client)
        await client.ask(address, ASKED)
        network.stall()
        with pytest.raises(RequestTimeout):
            await client.ask(address, ASKED, timeout_s=0.2)
        network.resume()
        assert (await client.ask(address, ASKED)).body


async def test_refuse_and_accept(network: Network) -> None:
    async with Client(network.nameserver_address) as client:
        address = await the_address(client)
        await client.ask(address, ASKED)
        network.refuse()
        with pytest.raises((ConnectionLost, ConnectFailed)):
            await client.ask(address, ASKED)
        network.accept()
        assert (await client.ask(address, ASKED)).body


def test_frames_last_first() -> None:
    one, two = pack_frame(0, b"h1", b"b1"), pack_frame(0, b"h2", b"b2")
    assert last_first(one + two) == two + one
    assert last_first(one + two[:-1]) == one + two[:-1]
    assert last_first(b"") == b""


async def test_reordered_answers_find_their_questions(network: Network) -> None:
    network.reorder = True
    network.delay_s = 0.001
    async with Client(network.nameserver_address) as client:
        address = await the_address(client)
        answers = await asyncio.gather(*(client.ask(address, ASKED) for _ in range(20)))
        assert len(answers) == 20
