"""Users and rules by kerolox.Admin, at a broker with access control."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from kerolox import (
    AccessDenied,
    Admin,
    AlreadyThere,
    ClientOptions,
    Message,
    NotFound,
    OptionError,
    Producer,
    Rule,
    User,
)
from kerolox.testing.access import ADMIN, secured
from kerolox.testing.broker import RunningBroker, running_broker


@pytest.fixture
async def running() -> AsyncIterator[RunningBroker]:
    async with running_broker(**secured()) as running:
        yield running


def options(
    running: RunningBroker, name: str = ADMIN.access_key, password: str = ADMIN.secret_key
) -> ClientOptions:
    return ClientOptions(running.nameserver_address, access_key=name, secret_key=password)


@pytest.fixture
async def admin(running: RunningBroker) -> AsyncIterator[Admin]:
    async with Admin(options(running)) as admin:
        yield admin


async def test_users(running: RunningBroker, admin: Admin) -> None:
    await admin.create_user("alice", "a secret")
    at = (running.address,)
    alice = User(name="alice", super_user=False, enabled=True, brokers=at)
    assert await admin.list_users("ali") == [alice]
    assert User(name="admin", super_user=True, enabled=True, brokers=at) in await admin.list_users()
    with pytest.raises(AlreadyThere, match="alice"):
        await admin.create_user("alice", "another")
    await admin.update_user("alice", super_user=True, enabled=False)
    assert await admin.list_users("ali") == [User(name="alice", super_user=True, enabled=False, brokers=at)]
    await admin.delete_user("alice")
    assert await admin.list_users("ali") == []
    with pytest.raises(NotFound, match="user 'alice' does not exist"):
        await admin.delete_user("alice")
    with pytest.raises(NotFound, match="user 'alice' does not exist"):
        await admin.list_rules("alice")
    with pytest.raises(OptionError, match="password"):
        await admin.create_user("bob", "")


async def test_rules_decide_what_a_user_may_do(running: RunningBroker, admin: Admin) -> None:
    await admin.create_topic("orders")
    await admin.create_user("alice", "a secret")
    async with Producer(options(running, "alice", "a secret"), group="shop") as producer:
        with pytest.raises(AccessDenied):
            await producer.send(Message("orders", "a"))
        await admin.set_rule("alice", "Topic:orders", ["Pub"])
        await producer.send(Message("orders", "a"))
        await admin.set_rule("alice", "Topic:orders", ["Pub"], allow=False)
        with pytest.raises(AccessDenied):
            await producer.send(Message("orders", "a"))
    await admin.set_rule("alice", "Group:shop*", ["Sub", "Get"], sources=["127.0.0.0/8"])
    at = (running.address,)
    rules = await admin.list_rules("alice")
    assert rules == await admin.list_rules()
    assert sorted(rules, key=lambda rule: rule.resource) == [
        Rule(
            user="alice",
            resource="Group:shop*",
            actions=("Sub", "Get"),
            allow=True,
            sources=("127.0.0.0/8",),
            policy="Custom",
            brokers=at,
        ),
        Rule(
            user="alice",
            resource="Topic:orders",
            actions=("Pub",),
            allow=False,
            sources=(),
            policy="Custom",
            brokers=at,
        ),
    ]
    await admin.delete_rule("alice", "Topic:orders")
    with pytest.raises(NotFound, match="Existing rules: Group:shop"):
        await admin.delete_rule("alice", "Topic:orders")
    await admin.delete_rule("alice")
    assert await admin.list_rules("alice") == []
    with pytest.raises(OptionError, match="actions"):
        await admin.set_rule("alice", "Topic:orders", "Pub")


async def test_without_rights(running: RunningBroker, admin: Admin) -> None:
    await admin.create_user("alice", "a secret")
    async with Admin(options(running, "alice", "a secret")) as alice:
        with pytest.raises(AccessDenied, match="needs a rule"):
            await alice.create_topic("orders")
