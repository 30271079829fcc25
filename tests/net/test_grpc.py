"""The gRPC port with gRPC's own client (grpcio), whose messages are bytes here."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import grpc.aio
import pytest
import trustme

from kerolox.net.grpc_peer import Call, CallHandler, GrpcLimits, GrpcPeer
from kerolox.net.grpc_server import GrpcServer
from kerolox.net.tls import ServerTls
from kerolox.protocol.grpc.calls import CallFailed, GrpcStatus, pack
from kerolox.protocol.http2.frames import (
    DATA,
    END_STREAM,
    INITIAL_WINDOW_SIZE,
    PREFACE,
    settings,
    window_update,
)
from tests.net.conftest import until
from tests.protocol.http2.wire import REQUEST, Wire, frame


class EchoHandler:
    """Answers with the message it was sent, as often as the path says; holds back if the path says so."""

    def __init__(self, service: EchoService, call: Call) -> None:
        self._service = service
        self._call = call

    def message(self, data: bytes) -> None:
        path = self._call.head.path
        if path == "/echo/Fail":
            raise CallFailed(GrpcStatus.INVALID_ARGUMENT, f"no: {data.decode()} 100 % ü")
        if path == "/echo/Hold":
            self._service.held.append(self._call)
            return
        for _ in range(1000 if path == "/echo/Many" else 1):
            self._call.send(data)

    def half_closed(self) -> None:
        if self._call.head.path != "/echo/Hold":
            self._call.finish()

    def cancelled(self) -> None:
        self._service.cancelled.append(self._call.head.path)


class EchoService:
    def __init__(self) -> None:
        self.held: list[Call] = []
        self.cancelled: list[str] = []
        self.peers: list[GrpcPeer] = []
        self.heads: list[dict[str, str]] = []

    def begin(self, call: Call) -> CallHandler:
        self.heads.append(call.head.metadata)
        if not call.head.path.startswith("/echo/"):
            raise CallFailed(GrpcStatus.UNIMPLEMENTED, f"no service has the path {call.head.path}")
        return EchoHandler(self, call)

    def connected(self, peer: GrpcPeer) -> None:
        self.peers.append(peer)

    def closed(self, peer: GrpcPeer, reason: str) -> None:
        self.peers.remove(peer)


@asynccontextmanager
async def served(
    limits: GrpcLimits | None = None, tls: ServerTls | None = None
) -> AsyncIterator[tuple[EchoService, GrpcServer]]:
    service = EchoService()
    async with GrpcServer(
        service, host="127.0.0.1", limits=limits or GrpcLimits(), tls=tls or ServerTls()
    ) as server:
        yield service, server


@asynccontextmanager
async def channel(
    server: GrpcServer, credentials: grpc.ChannelCredentials | None = None
) -> AsyncIterator[grpc.aio.Channel]:
    options = [("grpc.max_receive_message_length", -1), ("grpc.use_local_subchannel_pool", 1)]
    if credentials is None:
        made = grpc.aio.insecure_channel(f"127.0.0.1:{server.port}", options=options)
    else:
        made = grpc.aio.secure_channel(f"localhost:{server.port}", credentials, options=options)
    async with made:
        yield made


def call_of(path: str, message: bytes) -> bytes:
    """Return the frames of a call on stream 1."""
    fields = [(name, path.encode() if name == b":path" else value) for name, value in REQUEST]
    head = Wire().headers(1, 0, [*fields, (b"content-type", b"application/grpc")])
    return head + frame(DATA, END_STREAM, 1, pack(message))


async def test_unary_calls_side_by_side() -> None:
    async with served() as (service, server), channel(server) as client:
        echo = client.unary_unary("/echo/Once")
        answers = await asyncio.gather(*(echo(b"%d" % number) for number in range(300)))
        assert answers == [b"%d" % number for number in range(300)]
        assert await echo(b"", metadata=[("x-mq-client-id", "c1")]) == b""
        assert service.heads[-1]["x-mq-client-id"] == "c1"
        assert len(service.peers) == 1
    assert service.peers == []


async def test_long_messages_pass_the_windows_both_ways() -> None:
    async with served() as (_, server), channel(server) as client:
        body = bytes(range(256)) * 40_000  # 10 MiB: more than a stream's window
        assert await client.unary_unary("/echo/Once")(body) == body


async def test_a_stream_of_answers() -> None:
    async with served() as (_, server), channel(server) as client:
        got = [message async for message in client.unary_stream("/echo/Many")(b"x" * 5000)]
        assert got == [b"x" * 5000] * 1000


async def test_a_call_with_streams_both_ways() -> None:
    async with served() as (_, server), channel(server) as client:
        call = client.stream_stream("/echo/Once")()
        for number in range(5):
            await call.write(b"%d" % number)
            assert await call.read() == b"%d" % number
        await call.done_writing()
        assert await call.read() is grpc.aio.EOF
        assert await call.code() is grpc.StatusCode.OK


async def test_failures_carry_their_status_and_text() -> None:
    async with served() as (_, server), channel(server) as client:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await client.unary_unary("/echo/Fail")(b"why")
        assert failed.value.code() is grpc.StatusCode.INVALID_ARGUMENT
        assert failed.value.details() == "no: why 100 % ü"
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await client.unary_unary("/other/Once")(b"")
        assert failed.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert "/other/Once" in failed.value.details()


async def test_a_message_over_the_limit_is_refused() -> None:
    async with served(GrpcLimits(message_bytes_max=1000)) as (service, server), channel(server) as client:
        echo = client.unary_unary("/echo/Once")
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await echo(b"x" * 1001)
        assert failed.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
        assert "1001 bytes, the limit is 1000" in failed.value.details()
        assert await echo(b"x" * 1000) == b"x" * 1000
        assert len(service.peers) == 1


async def test_compressed_messages_are_refused_by_name() -> None:
    async with served() as (_, server), channel(server) as client:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await client.unary_unary("/echo/Once")(b"x" * 1000, compression=grpc.Compression.Gzip)
        assert failed.value.code() is grpc.StatusCode.UNIMPLEMENTED
        assert "gzip" in failed.value.details()


async def test_a_cancelled_call_and_a_deadline_reach_the_handler() -> None:
    async with served() as (service, server), channel(server) as client:
        call = client.unary_unary("/echo/Hold")(b"x")
        await until(lambda: service.held)
        assert service.held[0].deadline_s is None
        call.cancel()
        await until(lambda: service.cancelled == ["/echo/Hold"])
        assert not service.held[0].is_open
        service.held[0].send(b"late")  # goes nowhere
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await client.unary_unary("/echo/Hold")(b"x", timeout=0.2)
        assert failed.value.code() is grpc.StatusCode.DEADLINE_EXCEEDED
        await until(lambda: len(service.cancelled) == 2)
        deadline_s = service.held[1].deadline_s
        assert deadline_s is not None
        assert deadline_s - service.held[1].received_s <= 0.25


async def test_calls_of_a_lost_connection_are_cancelled() -> None:
    async with served() as (service, server):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(PREFACE + settings([]) + call_of("/echo/Hold", b"x"))
        await until(lambda: service.held)
        writer.transport.abort()
        await until(lambda: not service.peers)
        assert service.cancelled == ["/echo/Hold"]


async def test_a_stopping_server_is_told_and_retried_elsewhere() -> None:
    async with served() as (service, server), channel(server) as client:
        call = client.unary_unary("/echo/Hold")(b"x")
        await until(lambda: service.held)
        closing = asyncio.create_task(server.close())
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await call
        assert failed.value.code() in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)
        await closing


async def test_tls_and_plaintext_on_one_port(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost", "127.0.0.1")
    certificate, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    certificate.write_bytes(b"".join(part.bytes() for part in issued.cert_chain_pems))
    key.write_bytes(issued.private_key_pem.bytes())
    tls = ServerTls(certificate=str(certificate), key=str(key))
    credentials = grpc.ssl_channel_credentials(authority.cert_pem.bytes())
    async with (
        served(tls=tls) as (service, server),
        channel(server) as plain,
        channel(server, credentials) as secret,
    ):
        assert await secret.unary_unary("/echo/Once")(b"a") == b"a"
        assert await plain.unary_unary("/echo/Once")(b"b") == b"b"
        assert len(service.peers) == 2


async def test_other_programs_at_the_port_are_closed() -> None:
    async with served() as (service, server):
        for greeting in (b"GET / HTTP/1.1\r\n\r\n", PREFACE + b"\0\0\x08\x06\0\0\0\0\0" + b"x" * 8):
            reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
            writer.write(greeting)
            assert b"PROTOCOL_ERROR" in await reader.read()
            writer.close()
            await writer.wait_closed()
        await until(lambda: not service.peers)


async def test_a_client_that_does_not_read_is_left() -> None:
    limits = GrpcLimits(write_bytes_high=64 * 1024, write_stall_s_max=0.5)
    async with served(limits) as (service, server):
        _, writer = await asyncio.open_connection("127.0.0.1", server.port, limit=1024)
        windows = settings([(INITIAL_WINDOW_SIZE, 2**31 - 1)]) + window_update(0, 2**30)
        writer.write(PREFACE + windows + call_of("/echo/Many", b"x" * 15_000))
        writer.transport.pause_reading()  # type: ignore[attr-defined]
        await until(lambda: service.peers)
        await until(lambda: not service.peers)
        writer.transport.abort()


def test_the_handshake_agrees_on_http2(tmp_path: Path) -> None:
    authority = trustme.CA()
    issued = authority.issue_cert("localhost")
    chain = tmp_path / "both.pem"
    issued.private_key_and_cert_chain_pem.write_to_path(chain)

    async def shaken() -> str | None:
        async with served(tls=ServerTls(certificate=str(chain), key=str(chain))) as (_, server):
            context = ssl.create_default_context(cadata=authority.cert_pem.bytes().decode())
            context.set_alpn_protocols(["http/1.1", "h2"])
            _, writer = await asyncio.open_connection(
                "127.0.0.1", server.port, ssl=context, server_hostname="localhost"
            )
            agreed: str | None = writer.get_extra_info("ssl_object").selected_alpn_protocol()
            writer.close()
            return agreed

    assert asyncio.run(shaken()) == "h2"
