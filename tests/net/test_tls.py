"""TLS in its three modes on one port, and certificates that change while running."""

from __future__ import annotations

import asyncio
import os
import ssl
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives import serialization

from kerolox.broker.options import BrokerOptions
from kerolox.errors import ConnectFailed, OptionError
from kerolox.net.dialer import Dialer
from kerolox.net.peer import Peer
from kerolox.net.server import Server
from kerolox.net.tls import (
    ClientAuth,
    ClientContext,
    ClientTls,
    ServerContext,
    ServerTls,
    TlsMode,
    client_context,
)
from kerolox.protocol.command import request
from kerolox.testing.clock import ManualClock

from .conftest import ECHO, LATER, Echo, Word, until


class Certificates:
    def __init__(self, folder: Path) -> None:
        self.authority = trustme.CA()
        self.ca = str(folder / "ca.pem")
        self.certificate = str(folder / "server.pem")
        self.key = str(folder / "server.key")
        self.authority.cert_pem.write_to_path(self.ca)
        self.renew()

    def renew(self) -> None:
        issued = self.authority.issue_cert("127.0.0.1", "localhost")
        issued.private_key_pem.write_to_path(self.key)
        issued.cert_chain_pems[0].write_to_path(self.certificate)
        os.utime(self.certificate, ns=(os.stat(self.certificate).st_mtime_ns + 10**9,) * 2)

    def spoil(self) -> None:
        Path(self.key).write_text("nonsense")

    def encrypt_key(self, passphrase: bytes) -> None:
        key = serialization.load_pem_private_key(Path(self.key).read_bytes(), None)
        encrypted = key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.BestAvailableEncryption(passphrase),
        )
        Path(self.key).write_bytes(encrypted)

    def server(self, mode: TlsMode, **more: object) -> ServerTls:
        return ServerTls(mode=mode, certificate=self.certificate, key=self.key, **more)  # type: ignore[arg-type]


@pytest.fixture
def certificates(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


async def works(server: Server, tls: ClientTls | None) -> bool:
    async with Dialer(tls=tls, connect_timeout_s=5) as dialer:
        try:
            answer = await dialer.call(server.address, ECHO, Word(word="x"), timeout_s=5)
        except Exception:
            return False
        return answer.code == 0


async def test_permissive_takes_both(echo: Echo, certificates: Certificates) -> None:
    async with Server(echo.handlers, host="127.0.0.1", tls=certificates.server(TlsMode.PERMISSIVE)) as server:
        assert await works(server, None)
        assert await works(server, ClientTls(ca=certificates.ca, check_host=True))
        assert await works(server, ClientTls(verify=False))
        assert not await works(server, ClientTls())  # unknown authority


class Trusted:
    """An authority that the system trusts."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        folder.mkdir()
        self.certificates = Certificates(folder)
        monkeypatch.setenv("SSL_CERT_FILE", self.certificates.ca)

    def server(self, *names: str) -> ServerTls:
        issued = self.certificates.authority.issue_cert(*names)
        issued.private_key_pem.write_to_path(self.certificates.key)
        issued.cert_chain_pems[0].write_to_path(self.certificates.certificate)
        return self.certificates.server(TlsMode.ENFORCING)


@pytest.fixture
def trusted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Trusted:
    return Trusted(tmp_path / "trusted", monkeypatch)


async def test_a_given_authority_replaces_those_of_the_system(
    echo: Echo, certificates: Certificates, trusted: Trusted
) -> None:
    """Anybody gets a certificate of an authority that everybody trusts."""
    async with Server(echo.handlers, host="127.0.0.1", tls=trusted.server("127.0.0.1")) as server:
        assert await works(server, ClientTls())
        assert not await works(server, ClientTls(ca=certificates.ca))
        assert await works(server, ClientTls(ca=trusted.certificates.ca))


async def test_without_an_authority_the_certificate_must_name_the_address(
    echo: Echo, trusted: Trusted
) -> None:
    async with Server(echo.handlers, host="127.0.0.1", tls=trusted.server("of.somebody.else")) as server:
        assert not await works(server, ClientTls())
        assert await works(server, ClientTls(check_host=False))
        assert await works(server, ClientTls(ca=trusted.certificates.ca))
        assert not await works(server, ClientTls(ca=trusted.certificates.ca, check_host=True))
        assert await works(server, ClientTls(verify=False))


@pytest.mark.parametrize("given", [True, False])
async def test_servers_dial_by_the_same_rule(
    echo: Echo, certificates: Certificates, trusted: Trusted, given: bool
) -> None:
    options = BrokerOptions(
        use_tls=True, tls_own_ca=certificates.ca if given else None, tls_own_verify=None if given else True
    )
    name = "127.0.0.1" if given else "of.somebody.else"
    async with Server(echo.handlers, host="127.0.0.1", tls=trusted.server(name)) as server:
        assert options.own_tls is not None
        assert not await works(server, options.own_tls)


async def test_an_authority_in_between_may_be_given(echo: Echo, tmp_path: Path) -> None:
    root = trustme.CA()
    between = root.create_child_ca()
    issued = between.issue_cert("127.0.0.1")
    for name, blob in (("ca", between.cert_pem), ("key", issued.private_key_pem)):
        blob.write_to_path(str(tmp_path / name))
    for blob in issued.cert_chain_pems:
        blob.write_to_path(str(tmp_path / "chain"), append=True)
    tls = ServerTls(mode=TlsMode.ENFORCING, certificate=str(tmp_path / "chain"), key=str(tmp_path / "key"))
    async with Server(echo.handlers, host="127.0.0.1", tls=tls) as server:
        assert await works(server, ClientTls(ca=str(tmp_path / "ca")))


def test_over_sockets_by_the_same_rule(certificates: Certificates, trusted: Trusted) -> None:
    """Clients without an event loop make their contexts here, too."""
    for options, checks in (
        (ClientTls(), True), (ClientTls(ca=certificates.ca), False), (ClientTls(verify=False), False)
    ):  # fmt: skip
        assert client_context(options).check_hostname is checks
    assert len(client_context(ClientTls()).get_ca_certs()) == 1
    (found,) = client_context(ClientTls(ca=certificates.ca)).get_ca_certs(binary_form=True)
    assert ssl.DER_cert_to_PEM_cert(found) == Path(certificates.ca).read_text()


async def test_enforcing_refuses_plain(echo: Echo, certificates: Certificates) -> None:
    async with Server(echo.handlers, host="127.0.0.1", tls=certificates.server(TlsMode.ENFORCING)) as server:
        assert not await works(server, None)
        assert await works(server, ClientTls(ca=certificates.ca))


async def test_disabled_refuses_tls(echo: Echo, certificates: Certificates) -> None:
    async with Server(echo.handlers, host="127.0.0.1", tls=certificates.server(TlsMode.DISABLED)) as server:
        assert await works(server, None)
        assert not await works(server, ClientTls(verify=False))


async def test_client_certificates_can_be_required(echo: Echo, certificates: Certificates) -> None:
    tls = certificates.server(TlsMode.ENFORCING, client_ca=certificates.ca, client_auth=ClientAuth.REQUIRE)
    async with Server(echo.handlers, host="127.0.0.1", tls=tls) as server:
        assert not await works(server, ClientTls(ca=certificates.ca))
        assert await works(
            server,
            ClientTls(ca=certificates.ca, certificate=certificates.certificate, key=certificates.key),
        )


async def test_silent_connections_before_the_first_byte(echo: Echo, certificates: Certificates) -> None:
    clock = ManualClock()
    async with Server(
        echo.handlers, host="127.0.0.1", tls=certificates.server(TlsMode.PERMISSIVE), clock=clock
    ) as server:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        await until(lambda: len(server.listener.unknown) == 1)
        assert await works(server, None)
        await clock.advance(130)
        assert await asyncio.wait_for(reader.read(), 10) == b""
        assert not server.listener.unknown
        writer.close()


async def test_a_changed_certificate_is_taken_up(echo: Echo, certificates: Certificates) -> None:
    clock = ManualClock()

    async def served() -> bytes:
        context = ssl.create_default_context()
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        _, writer = await asyncio.open_connection("127.0.0.1", server.port, ssl=context)
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        writer.close()
        return bytes(der)

    async with (
        Server(
            echo.handlers, host="127.0.0.1", tls=certificates.server(TlsMode.PERMISSIVE), clock=clock
        ) as server,
        Dialer(tls=ClientTls(ca=certificates.ca)) as open_before,
    ):
        before = await served()
        await open_before.connect(server.address)
        kept = open_before.connected_peer(server.address)
        certificates.renew()
        assert server.listener.tls is not None
        old = server.listener.tls.current
        await clock.advance(2)
        await until(lambda: server.listener.tls is not None and server.listener.tls.current is not old)
        assert await served() != before
        # Who was connected before stays so.
        answer = await open_before.call(server.address, ECHO, Word(word="x"), timeout_s=5)
        assert answer.code == 0
        assert open_before.connected_peer(server.address) is kept


def test_a_broken_new_certificate_keeps_the_old(certificates: Certificates) -> None:
    context = ServerContext(certificates.server(TlsMode.PERMISSIVE))
    old = context.current
    Path(certificates.certificate).write_text("nonsense")
    assert not context.reload_if_changed()
    assert context.current is old
    certificates.renew()
    assert context.reload_if_changed()
    assert context.current is not old


def test_enforcing_without_a_certificate_is_refused() -> None:
    with pytest.raises(OptionError, match=r"tls\.server\.certPath"):
        ServerContext(ServerTls(mode=TlsMode.ENFORCING))


@pytest.mark.parametrize(("given", "right"), [("secret", True), ("wrong", False), (None, False)])
async def test_a_key_with_a_passphrase(
    echo: Echo, certificates: Certificates, given: str | None, right: bool
) -> None:
    """On both sides. Without the passphrase nobody is asked for it at a terminal: it is an error by name."""
    certificates.encrypt_key(b"secret")
    tls = certificates.server(
        TlsMode.ENFORCING, key_password=given, client_ca=certificates.ca, client_auth=ClientAuth.REQUIRE
    )
    own = ClientTls(
        ca=certificates.ca, certificate=certificates.certificate, key=certificates.key, key_password=given
    )
    if right:
        async with Server(echo.handlers, host="127.0.0.1", tls=tls) as server:
            assert await works(server, own)
        return
    with pytest.raises(OptionError, match=r"tls\.server\.keyPassword") as refused:
        ServerContext(tls)
    assert "the passphrase of the key in" in str(refused.value)
    assert "wrong" not in str(refused.value)
    with pytest.raises(OptionError, match=r"tls\.client\.keyPassword"):
        ClientContext(own).current()


async def test_a_changed_certificate_of_a_client_is_taken_up(
    echo: Echo, certificates: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    """For new connections; those that are there stay."""
    tls = certificates.server(TlsMode.ENFORCING, client_ca=certificates.ca, client_auth=ClientAuth.REQUIRE)
    own = ClientTls(ca=certificates.ca, certificate=certificates.certificate, key=certificates.key)

    def serial(peer: Peer) -> str:
        assert peer._transport is not None
        return str(peer._transport.get_extra_info("peercert")["serialNumber"])

    async with (
        Server(echo.handlers, host="127.0.0.1", tls=tls) as server,
        Server(echo.handlers, host="127.0.0.1", tls=tls) as other,
        Dialer(tls=own) as dialer,
    ):
        assert (await dialer.call(server.address, ECHO, Word(word="x"), timeout_s=5)).code == 0
        first = dialer.connected_peer(server.address)
        certificates.renew()
        assert (await dialer.call(other.address, ECHO, Word(word="x"), timeout_s=5)).code == 0
        assert (await dialer.call(server.address, ECHO, Word(word="x"), timeout_s=5)).code == 0
        assert dialer.connected_peer(server.address) is first
        assert len({serial(peer) for peer in (*server.peers, *other.peers)}) == 2
        # Files that are broken meanwhile keep nobody from connecting.
        certificates.spoil()
        dialer.hang_up(server.address, "once more")
        assert (await dialer.call(server.address, ECHO, Word(word="x"), timeout_s=5)).code == 0
        assert "tls_reload_failed" in caplog.text


async def test_enforcing_reads_nothing_that_is_plain(echo: Echo, certificates: Certificates) -> None:
    """A plain request is not carried out, not even the one in the first bytes (RocketMQ may do that)."""
    async with Server(echo.handlers, host="127.0.0.1", tls=certificates.server(TlsMode.ENFORCING)) as server:
        frame = request(LATER, None, b"", opaque=1).encode()
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        writer.write(frame * 3)
        try:
            assert await asyncio.wait_for(reader.read(), 10) == b""
        except ConnectionResetError:
            pass
        writer.close()
        assert await works(server, ClientTls(ca=certificates.ca))
        assert not echo.later


async def test_a_wrong_client_file_is_named(echo: Echo) -> None:
    async with (
        Server(echo.handlers, host="127.0.0.1") as server,
        Dialer(tls=ClientTls(ca="/nowhere")) as dialer,
    ):
        with pytest.raises((OptionError, ConnectFailed), match="/nowhere"):
            await dialer.call(server.address, ECHO, Word(word="x"))
