"""Pages over HTTP: requests and limits, TLS, and users."""

from __future__ import annotations

import asyncio
import ssl
from base64 import b64encode
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from kerolox.access.book import Book
from kerolox.access.guard import Guard
from kerolox.access.needs.kinds import LOOKS
from kerolox.access.options import AccessOptions
from kerolox.front.needs import ClusterView
from kerolox.net import http_peer
from kerolox.net.http_pages import Page
from kerolox.net.http_peer import TIMEOUT_S
from kerolox.net.http_server import HttpServer
from kerolox.net.tls import ServerTls, TlsMode
from kerolox.protocol.bodies import access as bodies
from kerolox.protocol.http1 import FIELDS_MAX, HEAD_BYTES_MAX
from kerolox.testing.clock import ManualClock

from .conftest import until
from .test_tls import Certificates


async def page() -> Page:
    return Page("text ü\n")


async def broken() -> Page:
    raise ValueError("no")


PAGES = {"/page": page, "/open": page, "/broken": broken}


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[HttpServer]:
    async with HttpServer(PAGES, host="127.0.0.1", port=0, **settings) as server:
        yield server


async def fetch(server: HttpServer, request: bytes, context: ssl.SSLContext | None = None) -> tuple[str, str]:
    """The head and the body of an answer; empty if the connection was closed without one."""
    name = None if context is None else "localhost"
    reader, writer = await asyncio.open_connection(
        "127.0.0.1", server.port, ssl=context, server_hostname=name
    )
    writer.write(request)
    try:
        head, _, body = (await asyncio.wait_for(reader.read(), 10)).decode().partition("\r\n\r\n")
    except ConnectionError:
        return "", ""
    finally:
        writer.close()
    return head, body


async def status(server: HttpServer, request: bytes, context: ssl.SSLContext | None = None) -> str:
    return (await fetch(server, request, context))[0].split(" ")[1]


# --- requests -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("request_bytes", "expected"),
    [
        (b"GET /nowhere HTTP/1.1\r\n\r\n", "404"),
        (b"POST /page HTTP/1.1\r\n\r\n", "405"),
        (b"GET /page HTTP/1.1\r\nContent-Length: 3\r\n\r\nabc", "413"),
        (b"GET /page?x=1 HTTP/1.0\r\n\r\n", "200"),
        (b"GET /broken HTTP/1.1\r\n\r\n", "500"),
        (b"\x16\x03\x01\r\n\r\n", "400"),
        (b"GET /page\r\n\r\n", "400"),
        (b"GET /page HTTP/1.1\r\n" + b"a: b\r\n" * (FIELDS_MAX + 1) + b"\r\n", "431"),
        (b"GET /" + b"x" * HEAD_BYTES_MAX, "431"),
    ],
)
async def test_requests(request_bytes: bytes, expected: str) -> None:
    async with serving() as server:
        assert await status(server, request_bytes) == expected
        head, body = await fetch(server, b"HEAD /page HTTP/1.1\r\n\r\n")
        assert ("Content-Length: 8" in head, body) == (True, "")
        await until(lambda: not server.peers and not len(server.listener.places))


async def test_a_request_may_come_in_pieces() -> None:
    async with serving() as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        for piece in (b"GET /pa", b"ge HTTP/1.1\r\n", b"\r", b"\n"):
            writer.write(piece)
            await writer.drain()
            await asyncio.sleep(0)
        assert b" 200 OK" in await asyncio.wait_for(reader.read(), 10)
        writer.close()


async def test_a_request_that_is_not_completed_in_time_is_dropped() -> None:
    clock = ManualClock()
    async with serving(clock=clock) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /page HTTP/1.1\r\n")
        await until(lambda: bool(server.peers))
        await clock.advance(TIMEOUT_S - 1)
        assert server.peers
        await clock.advance(1.5)
        with suppress(ConnectionError):
            assert not await asyncio.wait_for(reader.read(), 10)
        assert not server.peers
        writer.close()


async def test_rendering_ends_with_its_connection() -> None:
    ended = asyncio.Event()

    async def endless() -> Page:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()
        return Page("")

    async with HttpServer({"/endless": endless}, host="127.0.0.1", port=0) as server:
        _, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(b"GET /endless HTTP/1.1\r\n\r\n")
        await until(lambda: any(peer._rendering for peer in server.peers))
        writer.close()
        await asyncio.wait_for(ended.wait(), 10)


# --- TLS ------------------------------------------------------------------------------------------------


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


@pytest.mark.parametrize("mode", [TlsMode.PERMISSIVE, TlsMode.ENFORCING])
async def test_one_port_serves_tls_and_plain_clients(certificates: Certificates, mode: TlsMode) -> None:
    tls = ServerTls(mode=mode, certificate=certificates.certificate, key=certificates.key)
    context = ssl.create_default_context(cafile=certificates.ca)
    request = b"GET /page HTTP/1.1\r\n\r\n"
    async with serving(tls=tls) as server:
        assert await status(server, request, context) == "200"
        if mode is TlsMode.PERMISSIVE:
            assert await status(server, request) == "200"
        else:
            assert await fetch(server, request) == ("", "")


# --- users ----------------------------------------------------------------------------------------------


def guard() -> Guard:
    book = Book()
    for name in ("alice", "bob"):
        book.create_user(bodies.User(username=name, password=f"the secret of {name}"))
    entry = bodies.AclEntry(actions=("Get",), decision="Allow", resource="Cluster:c")
    book.merge_rules("User:alice", bodies.Acl(policies=(bodies.AclPolicy(entries=(entry,)),)))
    options = AccessOptions(authentication=True, authorization=True)
    return Guard(book, ClusterView("c"), options, ManualClock())


def asking(user: str, password: str | None = None, path: str = "/page") -> bytes:
    credentials = b64encode(f"{user}:{password or f'the secret of {user}'}".encode()).decode()
    return f"GET {path} HTTP/1.1\r\nAuthorization: Basic {credentials}\r\n\r\n".encode()


async def test_pages_with_a_rule_need_a_user_with_its_rights(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "kerolox.access.audit")
    async with serving(guard=guard(), rules={"/page": LOOKS}) as server:
        assert await status(server, asking("alice")) == "200"
        assert await status(server, asking("bob")) == "403"
        head, body = await fetch(server, asking("alice", "guessed"))
        assert head.startswith("HTTP/1.1 401 ")
        assert 'WWW-Authenticate: Basic realm="kerolox"' in head
        assert "access denied" in body
        assert await status(server, asking("nobody")) == "401"
        assert await status(server, b"GET /page HTTP/1.1\r\n\r\n") == "401"
        assert await status(server, b"GET /page HTTP/1.1\r\nAuthorization: Basic !\r\n\r\n") == "400"
        assert await status(server, b"GET /open HTTP/1.1\r\n\r\n") == "200"
    assert "refused request=GET /page" in caplog.text
    assert "name='alice' why='wrong signature'" in caplog.text
    assert "guessed" not in caplog.text


async def test_passwords_from_other_hosts_need_tls(
    certificates: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(http_peer, "is_loopback", lambda host: False)
    tls = ServerTls(certificate=certificates.certificate, key=certificates.key)
    context = ssl.create_default_context(cafile=certificates.ca)
    async with serving(guard=guard(), rules={"/page": LOOKS}, tls=tls) as server:
        head, body = await fetch(server, asking("alice"))
        assert (head.split(" ")[1], "over TLS" in body) == ("403", True)
        assert await status(server, asking("alice"), context) == "200"
