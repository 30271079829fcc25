"""The carrier of several controllers when things go wrong: stalls, members that are gone or hang, and values
that are not ours."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc
import pytest
import trustme

from kerolox.controller.carriers.carrier import NEW, Deposed, LeadingController
from kerolox.controller.carriers.document import StateUnusable
from kerolox.controller.carriers.etcd import EtcdCarrier
from kerolox.controller.carriers.etcd_client import EtcdClient, EtcdRefused, EtcdUnreachable, EtcdUnsure, rpc
from kerolox.controller.etcd_access import EtcdAccess, read_endpoints

from .carrier_kit import LEASE_S, EtcdShelf, group
from .conftest import until
from .etcd_kit import EtcdMembers, etcd_or_skip

pytestmark = pytest.mark.xdist_group("etcd")

READY = grpc.ChannelConnectivity.READY
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def own_members(tmp_path_factory: pytest.TempPathFactory) -> Iterator[EtcdMembers]:
    with etcd_or_skip(tmp_path_factory.mktemp("etcd")) as members:
        yield members


@pytest.fixture
async def shelf(own_members: EtcdMembers) -> AsyncIterator[EtcdShelf]:
    own_members.heal()
    shelf = EtcdShelf(own_members)
    yield shelf
    own_members.heal()
    for carrier in shelf.made:
        await carrier.close()


async def opened(shelf: EtcdShelf, first: str | None = None) -> EtcdCarrier:
    carrier = shelf.carrier(first)
    await carrier.open()
    return carrier


async def put(members: EtcdMembers, key: str, value: bytes) -> None:
    client = EtcdClient(members.access)
    await client.open()
    await client.change(
        rpc.TxnRequest(success=[rpc.RequestOp(request_put=rpc.PutRequest(key=key.encode(), value=value))])
    )
    await client.close()


async def get(members: EtcdMembers, key: str) -> bytes:
    client = EtcdClient(members.access)
    await client.open()
    found = await client.range(rpc.RangeRequest(key=key.encode()))
    await client.close()
    return bytes(found.kvs[0].value)


async def leads_some_time(carrier: EtcdCarrier) -> int:
    while True:
        try:
            return await carrier.lead("n0", "a:1")
        except EtcdUnreachable:
            await asyncio.sleep(0.1)


async def test_a_stalled_leader_changes_nothing(shelf: EtcdShelf, own_members: EtcdMembers) -> None:
    """Stopped for longer than its lease, it is neither told nor cancelled: it finds out when it commits."""
    command = [sys.executable, "-m", "tests.controller.etcd_child", own_members.endpoints, shelf.group]
    child = await asyncio.to_thread(
        subprocess.Popen,
        [*command, str(LEASE_S)],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        leads = await asyncio.to_thread(child.stdout.readline)
        old = int(leads.split()[1])
        other = await opened(shelf)
        assert await other.leader() == LeadingController("child", "c:1", old)
        os.kill(child.pid, signal.SIGSTOP)
        new = await other.lead("n1", "b:1")  # when the lease has run out
        assert new > old
        child.stdin.write("commit\n")  # it would be committed, but for the token: the group is not there
        child.stdin.flush()
        os.kill(child.pid, signal.SIGCONT)
        told = await asyncio.to_thread(child.stdout.readline)
        assert told.startswith(f"False Deposed the leadership with token {old} is over, the token is {new}")
        assert (await other.load()).state.groups == {}
        await other.commit(new, "broker-a", NEW, group())
    finally:
        child.kill()
        child.wait()
        child.stdin.close()
        child.stdout.close()


async def test_another_member_is_asked_when_one_is_gone(shelf: EtcdShelf, own_members: EtcdMembers) -> None:
    name = next(each for each in own_members.places if each != own_members.leader())
    carrier = await opened(shelf, name)
    token = await carrier.lead("n0", "a:1")
    revision = await carrier.commit(token, "broker-a", NEW, group())
    own_members.kill(name)
    await until(lambda: carrier._client._members[0].channel.get_state() is not READY)
    # Nothing is under way to the one that was killed: so nothing is in doubt.
    assert await carrier.commit(token, "broker-a", revision, group(epoch=2)) > revision
    await asyncio.sleep(LEASE_S)  # and its lease is renewed elsewhere
    assert carrier.holds(token)


async def test_a_commit_whose_end_is_unknown_ends_the_term(
    shelf: EtcdShelf, own_members: EtcdMembers, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kerolox.controller.carriers.etcd_client.CALL_S", 0.5)
    carrier, other = await opened(shelf, "e1"), await opened(shelf, "e2")
    token = await carrier.lead("n0", "a:1")
    own_members.pause("e1")
    with pytest.raises(EtcdUnsure, match="did not confirm the change"):
        await carrier.commit(token, "broker-a", NEW, group())
    assert not carrier.holds(token)  # nothing is said as leader any more
    new = await other.lead("n1", "b:1")
    found = await other.load()  # whichever way it ended, so it stays
    own_members.resume("e1")  # which has yet to do what it was asked
    own_members.wait_for("e1")
    with pytest.raises(Deposed):
        await carrier.commit(token, "broker-a", NEW, group())
    assert await other.load() == found
    await other.commit(new, "broker-a", found.revisions.get("broker-a", NEW), group(epoch=2))


async def test_a_leader_without_etcd_knows_when_its_lease_is_over(
    shelf: EtcdShelf, own_members: EtcdMembers
) -> None:
    carrier = await opened(shelf)
    token = await carrier.lead("n0", "a:1")
    seen: list[LeadingController | None] = []

    async def watch() -> None:
        async for leader in carrier.watch():
            seen.extend([leader])

    watching = asyncio.create_task(watch())
    await until(lambda: seen)
    for name in own_members.places:
        own_members.kill(name)
    assert carrier.holds(token)
    began = asyncio.get_running_loop().time()
    await until(lambda: not carrier.holds(token))
    assert asyncio.get_running_loop().time() - began < LEASE_S
    await until(lambda: seen[-1] is None)
    with pytest.raises(EtcdUnreachable, match="more than half"):
        await carrier.load()
    leading = asyncio.create_task(carrier.lead("n0", "a:1"))
    with pytest.raises(EtcdUnreachable):
        await leading
    own_members.heal()
    again = await asyncio.wait_for(leads_some_time(carrier), 10)
    assert again > token
    await until(lambda: seen[-1] is not None and seen[-1].token == again)
    watching.cancel()


async def test_what_is_not_ours_is_named_and_left_alone(shelf: EtcdShelf, own_members: EtcdMembers) -> None:
    carrier = await opened(shelf)
    token = await carrier.lead("n0", "a:1")
    await carrier.commit(token, "broker-a", NEW, group())
    key = f"/kerolox/{shelf.group}/groups/broker-a"
    whole = await get(own_members, key)
    foreign = (
        b"",
        b"{}",
        whole[:-1],
        whole.replace(b"controller 1", b"controller 2"),
        whole.replace(b'"c"', b'"d"'),
        b"x" * ((1 << 20) + 1),
    )
    for value in foreign:
        await put(own_members, key, value)
        with pytest.raises(StateUnusable, match=f"{key}.*Restore it from a backup"):
            await carrier.load()
        with pytest.raises(StateUnusable):
            await shelf.carrier().open()  # a controller does not start with it
        assert await get(own_members, key) == value
    await put(own_members, f"/kerolox/{shelf.group}/groups/broker-b", whole)
    await put(own_members, key, whole)
    with pytest.raises(StateUnusable, match=r"broker-b.*it belongs to group 'broker-a'"):
        await carrier.load()


async def test_a_foreign_leader_is_named_and_left_alone(
    shelf: EtcdShelf, own_members: EtcdMembers, caplog: pytest.LogCaptureFixture
) -> None:
    key = f"/kerolox/{shelf.group}/leader"
    await put(own_members, key, b"somebody")
    carrier = await opened(shelf)
    with pytest.raises(StateUnusable, match=key):
        await carrier.leader()
    leading = asyncio.create_task(carrier.lead("n0", "a:1"))
    assert await anext(aiter(carrier.watch())) is None
    assert "leader_unknown" in caplog.text
    assert not leading.done()
    assert await get(own_members, key) == b"somebody"
    leading.cancel()


async def test_tls_and_a_password(tmp_path: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    chain, key, trust = tmp_path / "chain.pem", tmp_path / "key.pem", tmp_path / "ca.pem"
    certificate.cert_chain_pems[0].write_to_path(chain)
    certificate.private_key_pem.write_to_path(key)
    authority.cert_pem.write_to_path(trust)
    with etcd_or_skip(tmp_path, 1, (chain, key)) as members:
        endpoints = read_endpoints(members.endpoints)
        client = EtcdClient(EtcdAccess(endpoints, ca=str(trust)))
        await client.open()
        auth = client._members[0].auth
        await auth.UserAdd(rpc.AuthUserAddRequest(name="root", password="secret"))
        await auth.UserGrantRole(rpc.AuthUserGrantRoleRequest(user="root", role="root"))
        await auth.AuthEnable(rpc.AuthEnableRequest())
        with pytest.raises(EtcdRefused, match="user name is empty"):
            await client.range(rpc.RangeRequest(key=b"x"))
        await client.close()
        access = EtcdAccess(endpoints, ca=str(trust), user="root", password="secret")
        carrier = EtcdCarrier(access, group="g", lease_s=LEASE_S)
        await carrier.open()
        token = await carrier.lead("n0", "a:1")
        await carrier.commit(token, "broker-a", NEW, group())
        carrier._client._members[0].token = "old"  # they end by themselves
        assert (await carrier.load()).state.groups == {"broker-a": group()}
        await carrier.close()
        for wrong in (
            EtcdAccess(endpoints, ca=str(trust), user="root", password="wrong"),
            EtcdAccess(endpoints),
        ):
            client = EtcdClient(wrong)
            await client.open()
            with pytest.raises((EtcdRefused, EtcdUnreachable)):
                await client.range(rpc.RangeRequest(key=b"x"))
            await client.close()
