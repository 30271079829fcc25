"""Clients of every kind at servers that take TLS alone and known users alone, and what strangers hear."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kerolox import ClientOptions, ClientTls, Message, Producer, PullConsumer, PullOptions, blocking
from kerolox.client.errors import AccessDenied, NameServerUnreachable
from kerolox.client.messages import Queue
from kerolox.client.sockets.lines import Parcel
from kerolox.client.sockets.sending import NotAllSent, SocketSender
from kerolox.client.sockets.socket_cluster import SocketCluster
from kerolox.errors import KeroloxError
from kerolox.net.signing import Credentials
from kerolox.net.tls import ClientAuth
from kerolox.testing.access import ADMIN
from tests.secured_servers import ALICE, SECRET, SecuredServers, secured_servers


@pytest.fixture(scope="module")
def servers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SecuredServers]:
    with secured_servers(tmp_path_factory.mktemp("secured")) as running:
        running.create_topic("secured-orders")
        running.create_topic("forbidden")
        yield running


# --- who is let in --------------------------------------------------------------------------------------


async def test_an_asyncio_client(servers: SecuredServers) -> None:
    async with (
        Producer(servers.options(), group="alices-shop") as producer,
        PullConsumer(
            servers.options(),
            group="alices-desk",
            topics=["secured-orders"],
            options=PullOptions(start="first"),
        ) as consumer,
    ):
        receipts = await producer.send_many([Message("secured-orders", f"a{n}") for n in range(20)])
        assert all(receipt.ok for receipt in receipts)
        seen: set[str] = set()
        async with asyncio.timeout(30):
            while not {f"a{n}" for n in range(20)} <= seen:
                seen |= {message.text for message in await consumer.poll()}


def test_a_blocking_client_by_the_environment_alone(
    servers: SecuredServers, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in servers.variables().items():
        monkeypatch.setenv(name, value)
    with blocking.Producer(group="alices-shop") as producer:
        assert producer.send(Message("secured-orders", b"blocking")).ok


def test_sockets_by_a_file_of_keys(servers: SecuredServers, tmp_path: Path) -> None:
    keys = tmp_path / "tools.yml"
    keys.write_text(f"accessKey: {ALICE.access_key}\nsecretKey: {ALICE.secret_key}\n")
    keys.chmod(0o600)
    options = ClientOptions(servers.nameserver, keys_file=str(keys), tls=servers.tls)
    with SocketCluster(options, tries=1) as cluster:
        (queue,) = cluster.route("secured-orders").readable
        before = cluster.max_offset(queue)
        with SocketSender(cluster, "alices-shop") as sender:
            sender.send(Parcel("secured-orders", b"sockets", "", "U", 1))
            sender.finish()
        (found,) = cluster.read(queue, before, before + 1, group="alices-desk")
        assert found.body == b"sockets"


# --- who is not -----------------------------------------------------------------------------------------


STRANGERS = {
    "no keys": Credentials("", ""),
    "unknown": Credentials("mallory", SECRET),
    "wrong secret": Credentials("alice", "not-" + SECRET),
}


@pytest.mark.parametrize("user", STRANGERS.values(), ids=STRANGERS)
async def test_a_stranger_hears_it_at_once_and_what_to_do(servers: SecuredServers, user: Credentials) -> None:
    options = replace(servers.options(), access_key=user.access_key, secret_key=user.secret_key)
    async with Producer(options, group="alices-shop") as producer:
        began_s = time.monotonic()
        with pytest.raises(AccessDenied, match=r"Give the keys of a user that this server knows") as caught:
            await producer.send(Message("secured-orders", b"x"), timeout_s=60)
    assert time.monotonic() - began_s < 30  # nobody went on trying for the time that was given
    assert not caught.value.retriable
    assert SECRET not in str(caught.value)


def test_who_lacks_a_right_hears_which(servers: SecuredServers) -> None:
    queue = Queue("secured-orders", "broker-a", 0)
    with SocketCluster(servers.options(), patience_s=60) as cluster:
        with pytest.raises(AccessDenied, match=r"alice has no permission.*Topic:forbidden.*needs a rule"):
            cluster.route("forbidden")
        with pytest.raises(AccessDenied, match=r"Group:others.*kerolox access explain"):
            list(cluster.blocks(queue, 0, 1, group="others"))


async def test_large_answers_are_asked_for_with_the_same_rights(servers: SecuredServers) -> None:
    async with Producer(servers.options(), group="alices-shop") as producer:
        for _ in range(3):
            await producer.send_batch([Message("secured-orders", b"x" * 500) for _ in range(200)])

    def read(group: str) -> list[int]:
        with SocketCluster(servers.options(), patience_s=60) as cluster:
            counts = []
            for queue in cluster.route("secured-orders").readable:
                end = cluster.max_offset(queue)
                blocks = list(cluster.blocks(queue, 0, end, group=group, scan_bytes=1 << 20))
                assert not end or blocks[-1].next_offset == end
                counts.append(max((len(block.block) for block in blocks), default=0))
            return counts

    assert max(await asyncio.to_thread(read, "alices-shop")) > 64 * 500  # more than 32 in one
    with pytest.raises(AccessDenied, match=r"Group:others"):
        await asyncio.to_thread(read, "others")


def test_a_sender_gives_up_at_once_what_its_user_may_not_send(servers: SecuredServers) -> None:
    with (
        SocketCluster(servers.options(ADMIN), patience_s=60) as cluster,
        SocketSender(cluster, "alices-shop") as sender,
    ):
        sender.queues("forbidden")  # found by somebody who may, and sent by somebody who may not
        cluster.options = servers.options()
        sender.send(Parcel("forbidden", b"x", "", "U", 1))
        with pytest.raises(NotAllSent, match=r"Topic:forbidden.*needs a rule") as caught:
            sender.finish()
        assert sender.requests == 1
        assert not caught.value.retriable


@pytest.mark.parametrize(
    "tls", [None, ClientTls(), ClientTls(verify=False)], ids=["none", "unknown", "unverified"]
)
async def test_without_the_right_tls(servers: SecuredServers, tls: ClientTls | None) -> None:
    options = ClientOptions(
        servers.nameserver, access_key="alice", secret_key=SECRET, tls=tls, environment=False
    )
    async with Producer(options, group="alices-shop") as producer:
        if tls is not None and not tls.verify:
            assert (await producer.send(Message("secured-orders", b"unverified"))).ok
            return
        said = "If it accepts only TLS" if tls is None else "trust its certificate authority"
        with pytest.raises(NameServerUnreachable, match=said) as caught:
            await producer.send(Message("secured-orders", b"x"))
        assert SECRET not in str(caught.value)
    with SocketCluster(options, tries=1) as cluster, pytest.raises(NameServerUnreachable, match=said):
        cluster.route("secured-orders")


def test_a_certificate_of_ones_own_with_a_key_under_a_password(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where servers ask clients for certificates: all of it by the environment."""
    with secured_servers(tmp_path, client_auth=ClientAuth.REQUIRE) as servers:
        with pytest.raises(KeroloxError), SocketCluster(servers.options(), tries=1) as cluster:
            cluster.route("secured-orders")
        (tmp_path / "password").write_text("a-p4ssword\n")
        (tmp_path / "password").chmod(0o600)
        variables = servers.variables() | {
            "KEROLOX_CLIENT_TLS_CERTIFICATE": servers.certificate,
            "KEROLOX_CLIENT_TLS_KEY": servers.encrypted_key(b"a-p4ssword"),
            "KEROLOX_CLIENT_TLS_KEY_PASSWORD_FILE": str(tmp_path / "password"),
        }
        for name, value in variables.items():
            monkeypatch.setenv(name, value)
        with blocking.Producer(group="alices-shop") as producer:
            servers.create_topic("secured-orders")
            assert producer.send(Message("secured-orders", b"mutual")).ok
        with SocketCluster(tries=1) as cluster:
            assert cluster.route("secured-orders").readable
