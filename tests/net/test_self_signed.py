"""TLS where nobody configured a certificate."""

from __future__ import annotations

import asyncio
import logging
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from kerolox.client.admin.calls import AdminCalls
from kerolox.client.nameservers import NameServers
from kerolox.errors import KeroloxError, OptionError
from kerolox.net.dialer import Dialer
from kerolox.net.self_signed import NAME, CannotMake, self_signed
from kerolox.net.server import Server
from kerolox.net.tls import MAKE_AGAIN_S, ClientAuth, ClientTls, ServerContext, ServerTls, TlsMode
from kerolox.protocol.codes import RequestCode
from kerolox.testing.broker import running_broker
from kerolox.testing.nameserver import running_nameserver

from .conftest import ECHO, Echo, Word

BLIND = ClientTls(verify=False)


async def answered(address: str, tls: ClientTls | None) -> bool:
    async with Dialer(tls=tls, connect_timeout_s=20) as dialer:
        try:
            return (await dialer.call(address, ECHO, Word(word="x"), timeout_s=20)).code == 0
        except KeroloxError:
            return False


async def test_it_is_made_at_first_need_and_kept(
    echo: Echo, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    file = tmp_path / "config" / NAME
    tls = ServerTls(self_signed=str(file))
    with caplog.at_level(logging.WARNING):
        async with Server(echo.handlers, host="127.0.0.1", tls=tls) as server:
            assert await answered(server.address, None)
            assert not file.exists()  # nobody needed it
            # Several come at once; one certificate is made.
            assert await asyncio.gather(*(answered(server.address, BLIND) for _ in range(4))) == [True] * 4
            made = file.read_bytes()
            assert await answered(server.address, None)  # plain clients as well
            assert not await answered(server.address, ClientTls())  # nobody vouches for it
            assert await answered(server.address, ClientTls(ca=str(file), check_host=True))  # but a copy does
        async with Server(echo.handlers, host="127.0.0.1", tls=tls) as server:
            assert await answered(server.address, ClientTls(ca=str(file)))
    assert file.read_bytes() == made
    if os.name == "posix":
        assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [f.name for f in file.parent.iterdir()] == [NAME]
    said = [record.getMessage() for record in caplog.records if "tls_self_signed_made" in record.getMessage()]
    assert len(said) == 1
    assert str(file) in said[0]


async def test_the_modes_keep_their_meaning(echo: Echo, tmp_path: Path) -> None:
    path = str(tmp_path / NAME)
    enforcing = ServerTls(mode=TlsMode.ENFORCING, self_signed=path)
    async with Server(echo.handlers, host="127.0.0.1", tls=enforcing) as server:
        assert not await answered(server.address, None)
        assert await answered(server.address, BLIND)
    disabled = ServerTls(mode=TlsMode.DISABLED, self_signed=path)
    async with Server(echo.handlers, host="127.0.0.1", tls=disabled) as server:
        assert await answered(server.address, None)
        assert not await answered(server.address, BLIND)


async def test_switched_off_the_hello_is_refused_and_the_log_says_what_to_do(
    echo: Echo, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        async with Server(echo.handlers, host="127.0.0.1") as server:
            assert not await answered(server.address, BLIND)
    assert "tls.test.mode.enable=true" in caplog.text
    with pytest.raises(OptionError, match=r"tls\.test\.mode\.enable=true"):
        ServerContext(ServerTls(mode=TlsMode.ENFORCING))


def test_halves_and_missing_authorities_are_refused_at_the_start(tmp_path: Path) -> None:
    path = str(tmp_path / NAME)
    with pytest.raises(OptionError, match=r"tls\.server\.keyPath"):
        ServerContext(ServerTls(certificate="c.pem", self_signed=path))
    with pytest.raises(OptionError, match=r"tls\.server\.trustCertPath"):
        ServerContext(ServerTls(client_auth=ClientAuth.REQUIRE, self_signed=path))


@pytest.mark.parametrize("trouble", ["no library", "no place", "broken file"])
async def test_what_cannot_be_made_shuts_out_tls_clients_alone(
    echo: Echo,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    trouble: str,
) -> None:
    file = tmp_path / "config" / NAME
    if trouble == "no library":
        monkeypatch.setitem(sys.modules, "cryptography", None)
        with pytest.raises(CannotMake, match="cryptography"):
            self_signed(str(file))
    elif trouble == "no place":
        file.parent.write_text("a file where the folder should be")
    else:
        file.parent.mkdir()
        file.write_text("nonsense")
    with caplog.at_level(logging.WARNING):
        async with Server(echo.handlers, host="127.0.0.1", tls=ServerTls(self_signed=str(file))) as server:
            assert not await answered(server.address, BLIND)
            assert not await answered(server.address, BLIND)
            assert await answered(server.address, None)
            said = [r.getMessage() for r in caplog.records if "tls_refused" in r.getMessage()]
            assert len(said) == 1  # not once for every hello
            monkeypatch.undo()
            if file.parent.is_dir():
                file.unlink(missing_ok=True)
            else:
                file.parent.unlink(missing_ok=True)
            assert server.listener.tls is not None
            server.listener.tls._not_before_s -= MAKE_AGAIN_S
            assert await answered(server.address, BLIND)  # mended without a restart


async def test_broker_and_name_server_speak_tls_out_of_the_box(tmp_path: Path) -> None:
    async with (
        running_nameserver(directory=tmp_path / "ns") as nameserver,
        running_broker(nameserver=nameserver, directory=tmp_path / "b", use_tls=True) as running,
        Dialer(tls=BLIND, connect_timeout_s=20) as dialer,
    ):
        admin = AdminCalls(NameServers([nameserver.address], dialer), dialer, timeout_s=20)
        assert await admin.masters() == {"broker-a": running.address}  # it registered over TLS, too
        host = running.address.rpartition(":")[0]
        for port in (running.broker.endpoints.port, running.broker.endpoints.vip_port):
            asked = RequestCode.GET_BROKER_CONFIG
            assert (await dialer.call(f"{host}:{port}", asked, timeout_s=20)).code == 0
        assert (Path(running.broker.store.root) / "config" / NAME).exists()
        assert len(list((tmp_path / "ns").rglob(NAME))) == 1


def test_who_needs_no_certificate_does_not_pay_for_the_library() -> None:
    program = (
        "import sys, kerolox.broker.broker, kerolox.nameserver.server\n"
        "sys.exit('cryptography' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60).returncode == 0
