"""The network in memory behaves as TCP looks from a process."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest

from .loop import Process
from .network import End, Sockets
from .world import Host, World, world


class Noting(asyncio.Protocol):
    def __init__(self) -> None:
        self.got = b""
        self.lost: list[Exception | None] = []
        self.pauses = 0
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.got += data

    def pause_writing(self) -> None:
        self.pauses += 1

    def resume_writing(self) -> None:
        self.pauses -= 1

    def connection_lost(self, exc: Exception | None) -> None:
        self.lost.append(exc)


class Two:
    """Two hosts, and a server on the second that notes what it gets."""

    def __init__(self, made: World) -> None:
        self.made = made
        self.one: Host = made.host("one", "10.0.0.1")
        self.two: Host = made.host("two", "10.0.0.2")
        self.served: list[Noting] = []
        self.client = self.one.begin()
        self.serve()

    def serve(self) -> None:
        made, process = self.made, self.two.begin()

        def accept() -> Noting:
            self.served.append(Noting())
            return self.served[-1]

        async def listen() -> None:
            listener = Sockets.socket(0, 0)
            listener.bind(("10.0.0.2", 80))
            listener.listen(5)
            await made.loop.create_server(accept, sock=listener)

        made.loop.start(process, listen())
        made.run(asyncio.sleep(0.1))

    def connect(self, timeout_s: float = 1.0) -> Noting:
        async def dial() -> Noting:
            async with asyncio.timeout(timeout_s):
                _, protocol = await self.made.loop.create_connection(Noting, "10.0.0.2", 80)
                assert isinstance(protocol, Noting)
                return protocol

        async def wait() -> Noting:
            found = await self.made.loop.start(self.client, dial())
            assert isinstance(found, Noting)
            return found

        return self.made.run(wait())  # type: ignore[no-any-return]

    def pass_time(self, seconds: float = 1.0) -> None:
        self.made.run(asyncio.sleep(seconds))


@pytest.fixture
def two() -> Iterator[Two]:
    with world(3) as made:
        yield Two(made)


def test_bytes_arrive_in_order_and_in_other_pieces(two: Two) -> None:
    client = two.connect()
    sent = b""
    for number in range(500):
        sent += (piece := b"%d," % number)
        client.transport.write(piece)
    two.pass_time()
    assert two.served[0].got == sent
    client.transport.close()
    two.pass_time()
    assert two.served[0].lost == [None]
    assert client.lost == [None]


def test_nobody_listens(two: Two) -> None:
    two.two.end()
    with pytest.raises(ConnectionRefusedError):
        two.connect()


def test_a_cut_holds_bytes_back_until_it_is_over(two: Two) -> None:
    client = two.connect()
    two.made.network.cut_ways([("10.0.0.1", "10.0.0.2")])
    client.transport.write(b"late")
    two.pass_time(60)
    assert (two.served[0].got, client.lost) == (b"", [])
    with pytest.raises(TimeoutError):
        two.connect(5)
    two.made.network.heal()
    two.pass_time(5)
    assert two.served[0].got == b"late"


def test_one_direction_goes_on_for_a_moment(two: Two) -> None:
    client = two.connect()
    two.made.network.cut_ways([("10.0.0.2", "10.0.0.1")])
    client.transport.write(b"heard")
    two.served[0].transport.write(b"not heard")
    for _ in range(100):
        client.transport.write(bytes(1000))
        two.pass_time(0.01)
    assert two.served[0].got.startswith(b"heard")
    assert 5000 < len(two.served[0].got) < 20_000, "nothing is acknowledged, so not much more is sent"
    assert client.got == b""
    two.made.network.heal()
    two.pass_time(5)
    assert client.got == b"not heard"
    assert len(two.served[0].got) == 100_005


def test_a_killed_process_resets_its_connections(two: Two) -> None:
    client = two.connect()
    two.two.end()
    two.pass_time()
    assert isinstance(client.lost[0], ConnectionResetError)


def test_a_host_without_power_says_nothing_until_it_is_asked_when_it_is_back(two: Two) -> None:
    client = two.connect()
    two.two.power_off()
    client.transport.write(b"hello?")
    two.pass_time(100)
    assert client.lost == []
    two.two.power_on()
    two.serve()
    two.pass_time(5)
    assert isinstance(client.lost[0], ConnectionResetError)
    assert two.served[-1].got == b""


def test_a_paused_process_lets_bytes_pile_up_and_the_writer_wait(two: Two) -> None:
    client = two.connect()
    process = two.two.process
    assert process is not None
    two.made.loop.pause(process)
    for _ in range(40):
        client.transport.write(bytes(10_000))
    two.pass_time(10)
    assert client.pauses == 1
    assert client.transport.get_write_buffer_size() > 0
    again = two.connect()  # the kernel takes it
    again.transport.write(b"x")
    two.made.loop.resume(process)
    two.pass_time()
    assert len(two.served[0].got) == 400_000
    assert client.pauses == 0
    assert two.served[1].got == b"x"


def test_the_port_of_a_process_that_ended_is_free(two: Two) -> None:
    two.two.end()
    two.serve()
    client = two.connect()
    client.transport.write(b"new")
    two.pass_time()
    assert two.served[-1].got == b"new"


def test_a_dead_process_writes_nothing(two: Two) -> None:
    client = two.connect()
    end = client.transport
    assert isinstance(end, End)
    assert isinstance(two.client, Process)
    two.one.end()
    end.write(b"from the grave")
    two.pass_time()
    assert two.served[0].got == b""
