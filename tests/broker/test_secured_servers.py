"""Servers that take TLS alone, with certificates of both sides, and know who asks: they find each other."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from kerolox.broker.options import BrokerRole
from kerolox.controller.controller import Controller
from kerolox.controller.options import ControllerOptions
from kerolox.errors import KeroloxError
from kerolox.nameserver.listings import cluster_info
from kerolox.nameserver.server import NameServer
from kerolox.net.dialer import Dialer
from kerolox.net.signing import Credentials
from kerolox.net.tls import ClientAuth, ClientTls, TlsMode
from kerolox.protocol.bodies.dledger import LedgerCode, MemberRequest
from kerolox.protocol.bodies.routes import KVTable
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.ha import pack_report
from kerolox.replication.dledger.port import MemberNetwork, MemberRefused
from kerolox.replication.turned_away import Why
from kerolox.testing.access import ADMIN, INNER, secured
from kerolox.testing.broker import RunningBroker, running_broker
from kerolox.testing.nameserver import running_nameserver
from tests.rig.ports import free_port

from .talk import until


class Secured:
    """Settings of servers: certificates of one authority, and one file of users."""

    def __init__(self, path: Path) -> None:
        path.mkdir()
        authority = trustme.CA()
        authority.cert_pem.write_to_path(str(path / "ca.pem"))
        for name in ("server", "own"):
            issued = authority.issue_cert("127.0.0.1")
            issued.private_key_pem.write_to_path(str(path / f"{name}.key"))
            issued.cert_chain_pems[0].write_to_path(str(path / f"{name}.pem"))
        self.ca = str(path / "ca.pem")
        self.tls: dict[str, Any] = {
            "tls_mode": TlsMode.ENFORCING,
            "tls_certificate": str(path / "server.pem"),
            "tls_key": str(path / "server.key"),
            "tls_client_ca": self.ca,
            "tls_client_auth": ClientAuth.REQUIRE,
            "tls_own_ca": self.ca,
            "tls_own_certificate": str(path / "own.pem"),
            "tls_own_key": str(path / "own.key"),
        }
        self.own = ClientTls(ca=self.ca, certificate=str(path / "own.pem"), key=str(path / "own.key"))
        self.settings = secured(access_path=str(path / "access.json"), **self.tls)

    def dialer(self, credentials: Credentials | None = INNER) -> Dialer:
        return Dialer(tls=self.own, credentials=credentials)

    @asynccontextmanager
    async def nameserver(self, path: Path) -> AsyncIterator[NameServer]:
        async with running_nameserver(directory=path / "ns", **self.settings) as nameserver:
            yield nameserver


@pytest.fixture
def files(tmp_path: Path) -> Secured:
    return Secured(tmp_path / "files")


async def gets_nothing(port: int, said: bytes = pack_report(0)) -> bool:
    """Whether somebody who speaks plainly is closed without a word."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(said)
    try:
        return await asyncio.wait_for(reader.read(), 10) == b""
    except ConnectionError:
        return True
    finally:
        writer.close()


async def copies(leader: RunningBroker, follower: RunningBroker) -> None:
    await leader.broker.store.put("T", 0, b"copied")
    there, here = leader.broker.store.log, follower.broker.store.log
    await until(lambda: here.max_offset == there.max_offset, 30)


async def test_a_leader_and_its_follower(tmp_path: Path, files: Secured) -> None:
    async with AsyncExitStack() as stack:
        nameserver = await stack.enter_async_context(files.nameserver(tmp_path))
        leader = await stack.enter_async_context(
            running_broker(directory=tmp_path / "a", nameserver=nameserver, **files.settings)
        )
        follower = await stack.enter_async_context(
            running_broker(
                directory=tmp_path / "b",
                nameserver=nameserver,
                role=BrokerRole.SLAVE,
                broker_id=1,
                **files.settings,
            )
        )
        assert len(cluster_info(nameserver.routes).broker_addr_table["broker-a"].broker_addrs) == 2
        await copies(leader, follower)
        assert not leader.broker.replication.leader.refused
        ends = leader.broker.endpoints
        for port in (nameserver.port, ends.port, ends.vip_port, ends.ha_port):
            assert await gets_nothing(port)
        dialer = await stack.enter_async_context(files.dialer())
        answer = await dialer.call(leader.address, RequestCode.GET_BROKER_RUNTIME_INFO, None, timeout_s=10)
        table = KVTable.decode(answer.body).table
        assert (table["haProof"], table["haTls"]) == ("true", "true")
        # A certificate alone copies nothing.
        stranger = await stack.enter_async_context(files.dialer(None))
        unsigned = await stranger.call(
            leader.address, RequestCode.GET_BROKER_RUNTIME_INFO, None, timeout_s=10
        )
        assert unsigned.code == ResponseCode.NO_PERMISSION
        assert stranger._tls is not None
        reader, writer = await asyncio.open_connection("127.0.0.1", ends.ha_port, ssl=stranger._tls.current())
        writer.write(pack_report(0))
        assert await asyncio.wait_for(reader.read(), 10) == b""
        writer.close()
        await until(lambda: leader.broker.replication.leader.refused[Why.NOT_KNOWN] == 1)


async def test_brokers_under_a_controller(tmp_path: Path, files: Secured) -> None:
    async with AsyncExitStack() as stack:
        nameserver = await stack.enter_async_context(files.nameserver(tmp_path))
        controller = await stack.enter_async_context(
            Controller(
                ControllerOptions(
                    bind_address="127.0.0.1",
                    listen_port=0,
                    store_path=str(tmp_path / "controller"),
                    config_store_path=str(tmp_path / "controller.properties"),
                    **files.settings,
                )
            )
        )
        assert await gets_nothing(controller.port)
        more = {"controlled": True, "controllers": controller.address, "ha_heartbeat_ms": 200}
        brokers = [
            await stack.enter_async_context(
                running_broker(directory=tmp_path / name, nameserver=nameserver, **files.settings, **more)
            )
            for name in "ab"
        ]
        await until(lambda: sum(one.broker.leadership.leads for one in brokers) == 1, 30)
        leader, follower = sorted(brokers, key=lambda one: not one.broker.leadership.leads)
        await copies(leader, follower)
        assert not leader.broker.replication.leader.refused


@pytest.mark.parametrize("trusted", ["", "127.0.0.0/8"])
async def test_a_member_of_a_dledger_group(tmp_path: Path, files: Secured, trusted: str) -> None:
    port = free_port()
    group = {
        "ledger": True, "ledger_group": "broker-a", "ledger_self_id": "n0", "ha_trusted": trusted,
        "ledger_peers": f"n0-127.0.0.1:{port}",
    }  # fmt: skip
    async with (
        files.nameserver(tmp_path) as nameserver,
        running_broker(directory=tmp_path / "a", nameserver=nameserver, **files.settings, **group) as running,
    ):
        settings = running.broker.options.ledger_settings
        assert settings is not None
        asks = MemberRequest(group="broker-a", remote_id="n0").encode()
        assert await gets_nothing(port)

        async def asked_by(tls: ClientTls, credentials: Credentials | None) -> bool:
            network = MemberNetwork(settings, tls=tls, credentials=credentials)
            try:
                return bool(await network.call("n0", LedgerCode.METADATA, asks, 10))
            except MemberRefused:
                return False
            finally:
                await network.close()

        assert await asked_by(files.own, INNER)
        for credentials in (None, Credentials("inner", "guessed")):
            assert await asked_by(files.own, credentials) is bool(trusted)
        with pytest.raises(KeroloxError):  # without a certificate
            await asked_by(ClientTls(ca=files.ca), INNER)
        # A known user who is not Super is no member.
        async with files.dialer(ADMIN) as admin:
            body = b'{"username":"alice","password":"secret","userType":"Normal"}'
            made = await admin.call(
                running.address, RequestCode.AUTH_CREATE_USER, None, body, fields={"username": "alice"}
            )
            assert made.code == 0
        alice = Credentials("alice", "secret")
        assert await asked_by(files.own, alice) is bool(trusted)
