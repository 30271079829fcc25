"""Users and rules by request, at a secured broker, over real sockets."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kerolox.access.book import Book, User
from kerolox.access.book_file import decode_book, encode_book
from kerolox.errors import InvalidRequest
from kerolox.net.dialer import Dialer
from kerolox.net.signing import Credentials
from kerolox.protocol.bodies import access as bodies
from kerolox.protocol.bodies.body import decode_list
from kerolox.protocol.codes import RequestCode as Code
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.command import Command
from kerolox.protocol.headers import auth as headers
from kerolox.testing.access import ADMIN, secured
from kerolox.testing.broker import RunningBroker, running_broker

ALICE = Credentials("alice", "alice's secret")


class Caller:
    """Somebody who asks the broker, as a user or as nobody."""

    def __init__(self, running: RunningBroker, dialer: Dialer) -> None:
        self._address = running.address
        self._dialer = dialer

    async def ask(self, code: int, header: Any = None, body: bytes = b"") -> Command:
        return await self._dialer.call(self._address, code, header, body)

    async def create(self, name: str, password: str, type: str | None = None) -> Command:
        body = bodies.User(username=name, password=password, user_type=type)
        return await self.ask(Code.AUTH_CREATE_USER, headers.UserRequest(username=name), body.encode())

    async def user(self, name: str) -> bodies.User | None:
        answer = await self.ask(Code.AUTH_GET_USER, headers.UserRequest(username=name))
        assert answer.code == 0
        return bodies.User.decode(answer.body) if answer.body else None

    async def allow(self, name: str, resource: str, *actions: str, decision: str = "Allow") -> Command:
        entry = bodies.AclEntry(actions=actions, decision=decision, resource=resource)
        acl = bodies.Acl(policies=(bodies.AclPolicy(entries=(entry,)),), subject=f"User:{name}")
        return await self.ask(Code.AUTH_CREATE_ACL, headers.AclRequest(subject=f"User:{name}"), acl.encode())

    async def rules(self, name: str) -> list[tuple[str | None, str | None]]:
        answer = await self.ask(Code.AUTH_GET_ACL, headers.AclRequest(subject=f"User:{name}"))
        assert answer.code == 0
        if not answer.body:
            return []
        found = bodies.Acl.decode(answer.body)
        return [
            (entry.resource, entry.decision) for one in found.policies or () for entry in one.entries or ()
        ]


@pytest.fixture
async def running(tmp_path: Path) -> AsyncIterator[RunningBroker]:
    async with running_broker(directory=tmp_path, **secured()) as running:
        yield running


@pytest.fixture
async def admin(running: RunningBroker) -> AsyncIterator[Caller]:
    async with Dialer(credentials=ADMIN) as dialer:
        yield Caller(running, dialer)


@pytest.fixture
async def alice(running: RunningBroker, admin: Caller) -> AsyncIterator[Caller]:
    assert (await admin.create(ALICE.access_key, ALICE.secret_key)).code == 0
    async with Dialer(credentials=ALICE) as dialer:
        yield Caller(running, dialer)


async def test_users_come_and_go_and_stay_on_disk(
    running: RunningBroker, admin: Caller, tmp_path: Path
) -> None:
    assert (await admin.create("bob", "b")).code == 0
    again = await admin.create("bob", "b")
    assert (again.code, again.remark) == (ResponseCode.NO_PERMISSION, "The user is existed")
    assert await admin.user("bob") == bodies.User(
        password="b", user_status="enable", user_type="Normal", username="bob"
    )
    update = bodies.User(user_status="disable")
    assert (
        await admin.ask(Code.AUTH_UPDATE_USER, headers.UserRequest(username="bob"), update.encode())
    ).code == 0
    path = tmp_path / "store" / "config" / "access.json"
    assert os.stat(path).st_mode & 0o777 == 0o600
    await running.stop()
    await running.start()
    found = await admin.user("bob")
    assert found is not None
    assert found.user_status == "disable"
    assert found.password == "b"
    assert (await admin.ask(Code.AUTH_DELETE_USER, headers.UserRequest(username="bob"))).code == 0
    assert await admin.user("bob") is None


async def test_nobody_learns_which_users_there_are(running: RunningBroker, admin: Caller) -> None:
    texts = set()
    for own in (None, Credentials("nobody", "x"), Credentials(ADMIN.access_key, "wrong")):
        async with Dialer(credentials=own) as dialer:
            answer = await Caller(running, dialer).ask(Code.AUTH_LIST_USER, headers.ListUsersRequest())
            assert answer.code == ResponseCode.NO_PERMISSION
            assert not answer.body
            texts.add(answer.remark)
    assert len(texts) == 1


async def test_passwords_are_shown_to_those_who_may_do_everything(admin: Caller, alice: Caller) -> None:
    await admin.allow("alice", "Cluster:*", "Get")
    answer = await alice.ask(Code.AUTH_LIST_USER, headers.ListUsersRequest())
    assert answer.code == 0
    assert {user.password for user in decode_list(answer.body, bodies.User)} == {None}
    answer = await admin.ask(Code.AUTH_LIST_USER, headers.ListUsersRequest(filter="alice"))
    assert [user.password for user in decode_list(answer.body, bodies.User)] == [ALICE.secret_key]


async def test_only_they_touch_each_other(admin: Caller, alice: Caller) -> None:
    await admin.allow("alice", "Cluster:*", "All")
    assert (await alice.create("eve", "e", "Super")).code == ResponseCode.NO_PERMISSION
    promoted = bodies.User(user_type="Super")
    refused = await alice.ask(Code.AUTH_UPDATE_USER, headers.UserRequest(username="alice"), promoted.encode())
    assert refused.code == ResponseCode.NO_PERMISSION
    name = headers.UserRequest(username=ADMIN.access_key)
    taken = bodies.User(password="taken over")
    assert (await alice.ask(Code.AUTH_UPDATE_USER, name, taken.encode())).code == ResponseCode.NO_PERMISSION
    assert (await alice.ask(Code.AUTH_DELETE_USER, name)).code == ResponseCode.NO_PERMISSION
    assert (await admin.user(ADMIN.access_key)) is not None


async def test_a_right_to_the_cluster_is_none_to_users_and_rules(
    running: RunningBroker, admin: Caller, alice: Caller
) -> None:
    """Who may change rules could give itself all rights."""
    assert (await admin.create("bob", "b")).code == 0
    await admin.allow("alice", "Cluster:*", "All")
    await admin.allow("alice", "Cluster:DefaultCluster", "Get,Update,Create,Delete")
    book = running.broker.access.book
    before = dict(book.users), dict(book.policies)
    bob = headers.UserRequest(username="bob")
    assert (await alice.allow("alice", "*", "All")).code == ResponseCode.NO_PERMISSION
    refused = [
        await alice.create("carol", "c"),
        await alice.ask(Code.AUTH_UPDATE_USER, bob, bodies.User(password="taken over").encode()),
        await alice.ask(Code.AUTH_DELETE_USER, bob),
        await alice.ask(Code.AUTH_DELETE_ACL, headers.DeleteAclRequest(subject="User:alice")),
    ]
    assert [answer.code for answer in refused] == [ResponseCode.NO_PERMISSION] * 4
    assert all("only Super users" in (answer.remark or "") for answer in refused)
    assert (book.users, book.policies) == before
    assert (await alice.ask(Code.AUTH_LIST_USER, headers.ListUsersRequest())).code == 0


@pytest.mark.parametrize(
    "name", ["*", "a*", "a:b", "User:x", "..", ".", "a/b", "a\\b", " a", "a ", " ", "\x00", "a\nb", "\x1b[2J"]
)
async def test_names_that_users_may_not_have(admin: Caller, running: RunningBroker, name: str) -> None:
    before = dict(running.broker.access.book.users)
    assert (await admin.create(name, "secret")).code != 0
    assert running.broker.access.book.users == before
    with pytest.raises(InvalidRequest):
        Book().ensure_super(name, "secret")


async def test_users_with_such_names_from_before_can_be_looked_at_and_deleted(
    admin: Caller, running: RunningBroker
) -> None:
    book = running.broker.access.book
    book.replace({**book.users, "a:b": User("a:b", "secret")}, book.policies)
    assert (await admin.user("a:b")) is not None
    assert "a:b" in decode_book(encode_book(book)).users
    assert (await admin.ask(Code.AUTH_DELETE_USER, headers.UserRequest(username="a:b"))).code == 0
    assert await admin.user("a:b") is None


async def test_rules_are_merged_by_resource(admin: Caller, alice: Caller) -> None:
    assert (await admin.allow("alice", "Topic:T", "Pub")).code == 0
    assert (await admin.allow("alice", "Group:G", "Sub")).code == 0
    assert (await admin.allow("alice", "Topic:T", "Pub", decision="Deny")).code == 0
    assert await admin.rules("alice") == [("Topic:T", "Deny"), ("Group:G", "Allow")]
    one = headers.DeleteAclRequest(subject="User:alice", resource="Topic:T")
    assert (await admin.ask(Code.AUTH_DELETE_ACL, one)).code == 0
    assert await admin.rules("alice") == [("Group:G", "Allow")]
    listed = await admin.ask(Code.AUTH_LIST_ACL, headers.ListAclsRequest(resource_filter="G"))
    assert [acl.subject for acl in decode_list(listed.body, bodies.Acl)] == ["User:alice"]
    everything = headers.DeleteAclRequest(subject="User:alice")
    assert (await admin.ask(Code.AUTH_DELETE_ACL, everything)).code == 0
    assert await admin.rules("alice") == []


@pytest.mark.parametrize(
    ("resource", "action", "decision"),
    [("Topik:T", "Pub", "Allow"), ("Topic:T", "Shout", "Allow"), ("Topic:T", "Pub", "Maybe")],
)
async def test_rules_that_are_not_understood_are_refused(
    admin: Caller, alice: Caller, resource: str, action: str, decision: str
) -> None:
    refused = await admin.allow("alice", resource, action, decision=decision)
    assert refused.code == ResponseCode.NO_PERMISSION
    assert await admin.rules("alice") == []


async def test_the_last_one_who_may_do_everything_stays(tmp_path: Path) -> None:
    options = secured() | {"inner_credentials": None}
    async with running_broker(directory=tmp_path, **options) as running, Dialer(credentials=ADMIN) as dialer:
        admin = Caller(running, dialer)
        refused = await admin.ask(Code.AUTH_DELETE_USER, headers.UserRequest(username=ADMIN.access_key))
        assert refused.code == ResponseCode.NO_PERMISSION
        assert "last" in (refused.remark or "")
        for change in ({"user_status": "disable"}, {"user_type": "Normal"}):
            body = bodies.User(username=ADMIN.access_key, **change)
            asked = headers.UserRequest(username=ADMIN.access_key)
            refused = await admin.ask(Code.AUTH_UPDATE_USER, asked, body.encode())
            assert refused.code == ResponseCode.NO_PERMISSION
            assert "last" in (refused.remark or "")
        assert (await admin.create("other", "secret", "Super")).code == 0
        body = bodies.User(username=ADMIN.access_key, user_type="Normal")
        asked = headers.UserRequest(username=ADMIN.access_key)
        assert (await admin.ask(Code.AUTH_UPDATE_USER, asked, body.encode())).code == 0
