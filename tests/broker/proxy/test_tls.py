"""TLS at the gRPC port, by the options of the other ports: one port for clients of both defaults."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import grpc.aio
import pytest

from .grpc_kit import GrpcClient, Served, grpc_broker, ok


async def certificate_of(served: Served) -> str:
    """Return the certificate that the port shows."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    context.set_alpn_protocols(["h2"])
    host, _, port = served.broker.grpc_address.rpartition(":")
    _, writer = await asyncio.open_connection(host, int(port), ssl=context)
    found = writer.get_extra_info("ssl_object")
    assert found.selected_alpn_protocol() == "h2"
    writer.close()
    return ssl.DER_cert_to_PEM_cert(found.getpeercert(binary_form=True))


@asynccontextmanager
async def secret_client(served: Served) -> AsyncIterator[GrpcClient]:
    """Connect with TLS, trusting the certificate that the port shows."""
    trusted = await certificate_of(served)
    options = [("grpc.ssl_target_name_override", "localhost"), ("grpc.use_local_subchannel_pool", 1)]
    credentials = grpc.ssl_channel_credentials(trusted.encode())
    async with grpc.aio.secure_channel(served.broker.grpc_address, credentials, options=options) as channel:
        yield GrpcClient(channel)


async def test_clients_with_and_without_tls_use_one_port() -> None:
    """The defaults: a self-signed certificate is made when the first client asks for TLS."""
    async with grpc_broker() as served:
        topic = await served.topic("orders")
        ok(await served.client().send(topic, b"in plain text"))
        async with secret_client(served) as client:
            ok(await client.send(topic, b"in TLS"))
        ok(await served.client().send(topic))


async def test_plaintext_is_refused_if_tls_is_enforced() -> None:
    async with grpc_broker(tls_mode="enforcing", use_tls=False) as served:
        with pytest.raises(grpc.aio.AioRpcError) as failed:
            await served.client().call("Heartbeat", timeout=3)
        assert failed.value.code() is grpc.StatusCode.UNAVAILABLE
        async with secret_client(served) as client:
            ok(await client.call("Heartbeat"))


async def test_tls_can_be_off() -> None:
    async with grpc_broker(tls_mode="disabled") as served:
        ok(await served.client().call("Heartbeat"))
        with pytest.raises((OSError, asyncio.IncompleteReadError)):
            await certificate_of(served)
