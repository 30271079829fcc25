"""Who copies the log while access control is on: who proves that they may, or is trusted by address."""

from __future__ import annotations

import asyncio
import ipaddress
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
import trustme

from kerolox.net.signing import Credentials
from kerolox.net.tls import ClientTls, ServerTls, TlsMode
from kerolox.protocol.ha import pack_report
from kerolox.protocol.ha_epochs import Hello, pack_hello
from kerolox.protocol.ha_proof import OPENING, FollowersProof
from kerolox.replication.entrance import ENTER_S_MAX, ENTERING_MAX, Trust, parse_networks
from kerolox.replication.link_state import LinkState
from kerolox.replication.turned_away import Why
from kerolox.testing.clock import ManualClock

from .epoch_kit import replica_at
from .kit import Between, Following, Leading, put, store_at, until

INNER = Credentials("inner", "the servers' secret")
TRUST = Trust({"inner": INNER.secret_key}.get)
HERE = Trust(TRUST.secret_of, parse_networks("10.0.0.0/8, 127.0.0.1"))


@asynccontextmanager
async def two(
    path: Path, *, leading: dict[str, Any], following: dict[str, Any]
) -> AsyncIterator[tuple[Leading, Following]]:
    async with (
        store_at(path / "leader") as leads,
        Leading(leads, **leading) as leader,
        store_at(path / "follower") as follows,
        Following(follows, leader.address, **following) as follower,
    ):
        yield leader, follower


async def closed(reader: asyncio.StreamReader) -> bytes:
    try:
        return await asyncio.wait_for(reader.read(), 10)
    except ConnectionError:
        return b""


async def test_a_follower_that_proves_who_it_is_copies(tmp_path: Path) -> None:
    mine = {"credentials": INNER, "proves": True}
    async with two(tmp_path, leading={"trust": TRUST}, following=mine) as (leader, follower):
        put(leader.store, 50)
        await follower.has(leader.store)
        put(leader.store, 50)
        await follower.has(leader.store)
        assert not leader.leader.refused


@pytest.mark.parametrize(
    "mine",
    [
        {"credentials": Credentials("inner", "guessed"), "proves": True},
        {"credentials": Credentials("nobody", INNER.secret_key), "proves": True},
        {"proves": True},
    ],
    ids=["wrong secret", "wrong user", "no credentials"],
)
async def test_others_are_not_let_in_and_told_so(
    tmp_path: Path, mine: dict[str, Any], caplog: pytest.LogCaptureFixture
) -> None:
    async with two(tmp_path, leading={"trust": TRUST}, following=mine) as (leader, follower):
        put(leader.store, 50)
        text = await follower.becomes(LinkState.NOT_LET_IN)
        assert "innerClientAuthenticationCredentials" in text
        assert follower.store.log.max_offset == 0
        if "credentials" in mine:
            await until(lambda: leader.leader.refused[Why.NOT_KNOWN] == 1)
            assert "why=not_known" in caplog.text
            assert "haTrustedAddresses" in caplog.text
        assert INNER.secret_key not in caplog.text


async def test_followers_of_rocketmq_come_in_by_their_address_alone(tmp_path: Path) -> None:
    """They prove nothing."""
    async with two(tmp_path, leading={"trust": TRUST}, following={}) as (leader, follower):
        put(leader.store, 50)
        await until(lambda: leader.leader.refused[Why.NOT_KNOWN] > 0)
        assert follower.store.log.max_offset == 0
        leader.leader.trust = HERE
        await follower.has(leader.store)
    assert HERE.trusts("10.1.2.3")
    assert HERE.trusts("::ffff:10.1.2.3")
    assert not HERE.trusts("11.1.2.3")
    assert not HERE.trusts("somewhere")
    assert Trust(TRUST.secret_of, (ipaddress.ip_network("fd00::/8"),)).trusts("[fd00::7]")


async def test_who_is_trusted_may_prove_who_it_is_as_well(tmp_path: Path) -> None:
    mine = {"credentials": INNER, "proves": True}
    async with two(tmp_path, leading={"trust": HERE}, following=mine) as (leader, follower):
        put(leader.store, 5)
        await follower.has(leader.store)


@pytest.mark.parametrize(
    "said", [pack_report(0), pack_hello(Hello(2, False, False)), b"\x16\x03\x01", b"GET /"]
)
async def test_strangers_hear_nothing_of_the_log(tmp_path: Path, said: bytes) -> None:
    async with store_at(tmp_path) as store, Leading(store, trust=TRUST) as leader:
        put(store, 5)
        reader, writer = await asyncio.open_connection("127.0.0.1", leader.port.port)
        writer.write(said * 3)
        assert await closed(reader) == b""
        assert leader.leader.refused == {Why.NOT_KNOWN: 1}
        assert not leader.leader.followers
        writer.close()


@pytest.mark.parametrize(
    ("said", "reason"), [(OPENING, "authenticationEnabled"), (b"\x16\x03\x01\x02\0\x01\0\x01", "useTLS=true")]
)
async def test_what_is_not_asked_for_is_told_apart_from_a_report(
    tmp_path: Path, said: bytes, reason: str
) -> None:
    """And is not answered by the advice for a leader that has lost its log."""
    async with store_at(tmp_path) as store, Leading(store) as leader:
        reader, writer = await asyncio.open_connection("127.0.0.1", leader.port.port)
        writer.write(said)
        assert await closed(reader) == b""
        (turned_away,) = leader.leader.turned_away()
        assert turned_away.why is Why.NOT_A_REPORT
        assert reason in turned_away.text
        writer.close()


async def test_a_recorded_proof_lets_nobody_in(tmp_path: Path) -> None:
    async with store_at(tmp_path) as store, Leading(store, trust=TRUST) as leader:
        put(store, 5)
        follower = FollowersProof(INNER.access_key, INNER.secret_key)
        reader, writer = await asyncio.open_connection("127.0.0.1", leader.port.port)
        writer.write(OPENING)
        recorded = follower.feed(await reader.readexactly(36))
        writer.write(recorded + pack_report(0))
        follower.feed(await reader.readexactly(33))
        assert follower.done
        assert len(await reader.readexactly(12)) == 12  # of the log
        writer.close()
        reader, writer = await asyncio.open_connection("127.0.0.1", leader.port.port)
        writer.write(OPENING + recorded + pack_report(0))
        assert (await closed(reader))[36:] in (b"", b"\x00")  # a challenge, and no more
        await until(lambda: leader.leader.refused[Why.NOT_KNOWN] == 1)
        writer.close()


async def test_who_only_takes_up_room_is_closed(tmp_path: Path) -> None:
    clock = ManualClock()
    async with store_at(tmp_path) as store, Leading(store, trust=TRUST, clock=clock) as leader:
        silent = [
            await asyncio.open_connection("127.0.0.1", leader.port.port) for _ in range(ENTERING_MAX + 1)
        ]
        for _, writer in silent:
            writer.write(OPENING[:2])
        await until(lambda: leader.leader.refused[Why.TOO_MANY] == 1)
        assert not leader.leader.followers
        await clock.advance(ENTER_S_MAX + 2)
        await until(lambda: leader.leader.refused[Why.TOO_SLOW] == ENTERING_MAX)
        for reader, writer in silent:
            await closed(reader)
            writer.close()


async def test_under_a_controller(tmp_path: Path) -> None:
    async with (
        replica_at(tmp_path / "1", 1, trust=TRUST, credentials=INNER) as one,
        replica_at(tmp_path / "2", 2, trust=TRUST, credentials=INNER) as two,
        replica_at(tmp_path / "3", 3) as stranger,
    ):
        await one.lead(1)
        put(one.store, 50)
        await stranger.follow(one)
        await until(lambda: one.leader.refused[Why.NOT_KNOWN] > 0)
        await two.follow(one)
        await two.has(one)
        assert stranger.store.log.max_offset == 0
        assert [each.follower_id for each in one.leader.followers] == [2]


# --- TLS ----------------------------------------------------------------------------------------------


class Certificates:
    def __init__(self, path: Path) -> None:
        path.mkdir()
        authority = trustme.CA()
        issued = authority.issue_cert("127.0.0.1")
        self.ca, self.certificate, self.key = (str(path / name) for name in ("ca", "cert", "key"))
        authority.cert_pem.write_to_path(self.ca)
        issued.private_key_pem.write_to_path(self.key)
        issued.cert_chain_pems[0].write_to_path(self.certificate)

    def server(self, mode: TlsMode) -> ServerTls:
        return ServerTls(mode=mode, certificate=self.certificate, key=self.key)


@pytest.mark.parametrize("mode", [TlsMode.ENFORCING, TlsMode.PERMISSIVE])
async def test_the_log_is_copied_by_tls(
    tmp_path: Path, mode: TlsMode, caplog: pytest.LogCaptureFixture
) -> None:
    files = Certificates(tmp_path / "tls")
    tls = files.server(mode)
    mine = {"tls": ClientTls(ca=files.ca, check_host=True), "credentials": INNER, "proves": True}
    async with two(tmp_path, leading={"trust": TRUST, "tls": tls}, following=mine) as (leader, follower):
        put(leader.store, 2000)
        await follower.has(leader.store)
        (connection,) = leader.leader.followers
        assert connection._transport is not None
        assert connection._transport.get_extra_info("cipher")
        # The same without TLS, where that is allowed.
        async with (
            store_at(tmp_path / "plain") as store,
            Following(store, leader.address, credentials=INNER, proves=True) as plain,
        ):
            if mode is TlsMode.PERMISSIVE:
                await plain.has(leader.store)
            else:
                await until(lambda: "plain_refused" in caplog.text)
                assert store.log.max_offset == 0


async def test_a_leader_with_another_authority_is_not_followed(tmp_path: Path) -> None:
    files, others = Certificates(tmp_path / "tls"), Certificates(tmp_path / "others")
    tls = files.server(TlsMode.PERMISSIVE)
    mine = {"tls": ClientTls(ca=others.ca)}
    async with two(tmp_path, leading={"tls": tls}, following=mine) as (leader, follower):
        put(leader.store, 5)
        assert "certificate verify failed" in await follower.becomes(LinkState.LOST)
        assert follower.store.log.max_offset == 0


async def test_somebody_between_sees_no_message(tmp_path: Path) -> None:
    files = Certificates(tmp_path / "tls")
    seen = bytearray()

    class Looking(Between):
        async def _pass(
            self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, counted: bool = False
        ) -> None:
            while data := await reader.read(1 << 16):
                seen.extend(data)
                writer.write(data)

    async with (
        store_at(tmp_path / "leader") as leads,
        Leading(leads, tls=files.server(TlsMode.ENFORCING)) as leader,
        Looking(leader.address) as between,
        store_at(tmp_path / "follower") as follows,
        Following(follows, between.address, tls=ClientTls(ca=files.ca)) as follower,
    ):
        put(leads, 50, topic="SecretTopic")
        await follower.has(leads)
    assert len(seen) > 50
    assert b"SecretTopic" not in seen
