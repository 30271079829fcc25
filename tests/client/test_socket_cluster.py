"""Reading over plain sockets, against a real broker on another loop's thread."""

from __future__ import annotations

import asyncio
import socket

import pytest

from kerolox import ClientOptions, Message, Producer, Queue
from kerolox.client.errors import NameServerUnreachable, TopicNotFound
from kerolox.client.sockets import lines
from kerolox.client.sockets.socket_cluster import OffsetGone, SocketCluster
from kerolox.errors import ConnectFailed
from kerolox.net.tls import ClientTls
from kerolox.testing.broker import running_broker
from tests.client.kit import create


async def test_a_range_is_read_completely_and_exactly() -> None:
    async with running_broker() as running:
        await create(running, "orders", queues=1)
        async with Producer(running.nameserver_address, group="shop") as producer:
            await producer.send_batch([Message("orders", f"m{n}", tags="ab"[n % 2]) for n in range(500)])

        def read() -> None:
            with SocketCluster(running.nameserver_address) as cluster:
                (queue,) = cluster.route("orders").readable
                assert (cluster.min_offset(queue), cluster.max_offset(queue)) == (0, 500)
                bodies = [message.text for message in cluster.read(queue, 3, 451, group="g")]
                assert bodies == [f"m{n}" for n in range(3, 451)]
                tagged = [each.text for each in cluster.read(queue, 0, 500, group="g", expression="b")]
                assert tagged == [f"m{n}" for n in range(1, 500, 2)]
                for ahead in (1, 2, 5):
                    blocks = list(cluster.blocks(queue, 0, 500, group="g", ahead=ahead))
                    assert blocks[-1].next_offset == 500
                assert cluster.committed(queue, "g") in (None, 0)
                cluster.commit(queue, "g", 77)
                assert cluster.committed(queue, "g") == 77
                with pytest.raises(OffsetGone, match="0 to 500"):
                    list(cluster.blocks(queue, 600, 700, group="g"))

        await asyncio.to_thread(read)


async def test_it_goes_on_after_the_broker_was_away() -> None:
    async with running_broker() as running:
        await create(running, "orders", queues=1)
        async with Producer(running.nameserver_address, group="shop") as producer:
            await producer.send_batch([Message("orders", f"m{n}") for n in range(300)])

        def read() -> None:
            with SocketCluster(running.nameserver_address) as cluster:
                (queue,) = cluster.route("orders").readable
                found = []
                for number, message in enumerate(cluster.read(queue, 0, 300, group="g")):
                    if number == 100:
                        for line in cluster._lines.values():
                            line._socket.shutdown(2)
                    found.append(message.text)
                assert found == [f"m{n}" for n in range(300)]

        await asyncio.to_thread(read)


async def test_errors_say_what_is_missing() -> None:
    async with running_broker() as running:

        def ask() -> None:
            with SocketCluster(running.nameserver_address) as cluster, pytest.raises(TopicNotFound):
                cluster.route("nothing")
            with (
                SocketCluster("127.0.0.1:1", tries=2) as cluster,
                pytest.raises(NameServerUnreachable, match=r"127\.0\.0\.1:1"),
            ):
                cluster.min_offset(Queue("orders", "broker-a", 0))

        await asyncio.to_thread(ask)


def test_a_connection_without_a_usable_tls_context_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    def unusable(*_: object) -> None:
        raise OSError("no such certificate")

    monkeypatch.setattr(lines, "client_context", unusable)
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(10)
        with pytest.raises(ConnectFailed, match="no such certificate") as failed:
            lines.Line(f"127.0.0.1:{server.getsockname()[1]}", ClientOptions(tls=ClientTls()))
        with server.accept()[0] as accepted:
            accepted.settimeout(10)
            assert accepted.recv(1) == b""  # while the error, and so the line, is still referenced
        assert failed.value.__traceback__ is not None
