"""A broker with RocketMQ 4's accounts, over real sockets."""

from __future__ import annotations

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kerolox.access.plain.guard import ACL_EXCEPTION, PlainGuard
from kerolox.access.plain.yaml_file import AclFileBroken
from kerolox.broker.access.room import Access
from kerolox.broker.options import BrokerOptions
from kerolox.broker.tables.room import Tables
from kerolox.client.consume.consumer_options import PushOptions
from kerolox.client.consume.outcomes import Retry
from kerolox.client.consume.push_consumer import PushConsumer
from kerolox.client.messages import Message, Received
from kerolox.client.options import ClientOptions
from kerolox.client.send.producer import Producer
from kerolox.errors import KeroloxError, OptionError
from kerolox.net.dialer import Dialer
from kerolox.net.signing import Credentials
from kerolox.protocol.bodies.topics import DataVersion
from kerolox.protocol.codes import RequestCode as Code
from kerolox.protocol.command import Command
from kerolox.protocol.headers import auth as headers
from kerolox.protocol.headers.offset import ResetOffsetRequest
from kerolox.testing.broker import RunningBroker, running_broker
from kerolox.testing.clock import ManualClock
from kerolox.testing.cluster import running_cluster
from tests.broker.talk import Talk, until
from tests.served import BROKER

SHOP = Credentials("shop-key", "the shop's secret")
ADMIN = Credentials("admin-key", "the admin's secret")
TEXT = f"""\
accounts:
- accessKey: {SHOP.access_key}
  secretKey: {SHOP.secret_key}
  defaultTopicPerm: DENY
  defaultGroupPerm: DENY
  topicPerms: [orders=PUB|SUB, closed=DENY]
  groupPerms: [billing=SUB]
- accessKey: {ADMIN.access_key}
  secretKey: {ADMIN.secret_key}
  admin: true
"""


def write(path: Path, text: str = TEXT) -> str:
    path.write_text(text)
    path.chmod(0o600)
    return str(path)


class Place:
    """A broker with accounts, and those who ask it."""

    def __init__(self, running: RunningBroker, path: Path, stack: AsyncExitStack) -> None:
        self.running = running
        self.path = path
        self._stack = stack

    async def talk(self, own: Credentials | None) -> Talk:
        return Talk(await self._stack.enter_async_context(Dialer(credentials=own)), self.running)

    def client(self, own: Credentials) -> ClientOptions:
        return ClientOptions(
            self.running.nameserver_address, access_key=own.access_key, secret_key=own.secret_key
        )


@pytest.fixture
async def place(tmp_path: Path) -> AsyncIterator[Place]:
    path = tmp_path / "plain_acl.yml"
    write(path)
    async with AsyncExitStack() as stack:
        options = {"aclEnable": True, "aclPath": str(path)}
        running = await stack.enter_async_context(running_broker(directory=tmp_path / "store", **options))
        place = Place(running, path, stack)
        await (await place.talk(ADMIN)).send("orders", b"hello")  # which makes the topic
        await running.broker.nameservers.settled()
        yield place


def refused(answer: Command, *words: str) -> bool:
    remark = answer.remark or ""
    return answer.code == 1 and remark.startswith(ACL_EXCEPTION) and all(word in remark for word in words)


async def test_our_client_sends_and_consumes_with_its_key(place: Place) -> None:
    """A message fails first: it is sent back, and comes again from the retry topic of the group."""
    attempts: list[tuple[str, int]] = []

    async def handle(message: Received) -> None:
        attempts.append((message.text, message.reconsume_times))
        if not message.reconsume_times:
            raise Retry("not now", level=1)

    client = place.client(SHOP)
    async with (
        Producer(client, group="tills") as producer,
        PushConsumer(client, group="billing", options=PushOptions(start="first")) as consumer,
    ):
        consumer.subscribe("orders", handle)
        for number in range(3):
            await producer.send(Message("orders", f"{number}"))
        await until(lambda: len(attempts) == 8, 20.0)
        with pytest.raises(KeroloxError, match="AclException"):
            await producer.send(Message("closed", "x"))
    assert sorted(attempts) == [(text, times) for text in ("0", "1", "2", "hello") for times in (0, 1)]


async def test_who_does_not_sign_or_may_not_is_refused(place: Place) -> None:
    nobody, shop = await place.talk(None), await place.talk(SHOP)
    wrong = await place.talk(Credentials(SHOP.access_key, "another secret"))
    strangers = [await talk.send("orders") for talk in (nobody, wrong)]
    assert all(refused(answer, "access denied") for answer in strangers)
    assert len({answer.remark for answer in strangers}) == 1
    assert refused(await shop.send("closed"), "Topic:closed")
    assert refused(await shop.send("%RETRY%others"), "Group:others")
    assert refused(await shop.pull("orders", consumer_group="others"), "Group:others")
    for code, header in (
        (Code.INVOKE_BROKER_TO_RESET_OFFSET,
         ResetOffsetRequest(topic="orders", group="billing", timestamp=0, is_force=True)),
        (Code.UPDATE_BROKER_CONFIG, None),
        (Code.AUTH_CREATE_USER, None),
    ):  # fmt: skip
        assert refused(await shop.dialer.call(shop.address, code, header, b"fileReservedTime=1"), "admin")
    assert (await shop.send("orders")).code == 0
    assert place.running.broker.store.log.max_offset > 0


async def test_plain_sends_of_an_account_go_by_the_run(place: Place) -> None:
    """The first is looked at alone; from then on it is known whose signature to look for."""
    runs: list[tuple[str, int, int, int]] = []
    place.running.broker.remoting.send_runs.on_stored.append(lambda *run: runs.append(run))
    shop = await place.talk(SHOP)
    key = {"UNIQ_KEY": "7F000001162E18B4AAC28E2F6D2A0000"}

    async def many(topic: str) -> set[int]:
        return {one.code for one in await asyncio.gather(*(shop.send(topic, b"x", key) for _ in range(20)))}

    assert (await shop.send("orders", b"x", key)).code == 0
    assert not runs
    assert await many("orders") == {0}
    assert sum(messages for _, messages, _, _ in runs) == 20
    text = TEXT.replace("orders=PUB|SUB", "orders=SUB")
    await asyncio.to_thread(write, place.path, text)
    guard = place.running.broker.access.guard
    assert isinstance(guard, PlainGuard)
    await guard.files.look()
    assert await many("orders") == {1}  # what runs have learned does not outlive the accounts


async def test_every_request_that_is_served_has_a_rule(place: Place) -> None:
    assert set(place.running.broker.handlers.routes) - set(BROKER) == set()
    assert {50, 51, 52, 53, 54, 3001, 3010} <= set(place.running.broker.handlers.routes)


async def test_accounts_by_request(place: Place) -> None:
    admin, shop = await place.talk(ADMIN), await place.talk(SHOP)

    async def put(talk: Talk, key: str, secret: str | None, **more: object) -> Command:
        header = headers.UpdateAccountRequest(access_key=key, secret_key=secret, **more)  # type: ignore[arg-type]
        return await talk.dialer.call(talk.address, Code.UPDATE_AND_CREATE_ACL_CONFIG, header)

    new = Credentials("another-key", "0123456789")
    assert refused(await put(shop, new.access_key, new.secret_key), "admin")
    perms = "orders=PUB,closed=SUB"
    assert (await put(admin, new.access_key, new.secret_key, topic_perms=perms)).code == 0
    another = await place.talk(new)
    assert (await another.send("orders")).code == 0
    assert refused(await another.send("closed"))
    # What is not named stays.
    assert (await put(admin, new.access_key, None, topic_perms="closed=PUB")).code == 0
    assert refused(await another.send("orders"))
    assert (await another.send("closed")).code == 0
    for key, secret, more in (
        ("short", "long enough", {}),
        ("long-enough", "short", {}),
        ("long-enough", None, {}),
        ("long-enough", "long enough", {"topic_perms": "orders=ALL"}),
        ("long-enough", "long enough", {"default_topic_perm": "READ"}),
        ("long-enough", "long enough", {"white_remote_address": "everywhere"}),
        (ADMIN.access_key, None, {}),  # is the last administrator
    ):
        answer = await put(admin, key, secret, **more)
        assert answer.code == 209, (key, more)
        assert "long enough" not in (answer.remark or "")
    found = place.path.read_text()
    assert "long-enough" not in found
    assert place.path.stat().st_mode & 0o777 == 0o600

    async def versions() -> tuple[DataVersion, dict[str, DataVersion]]:
        answer = await admin.dialer.call(admin.address, Code.GET_BROKER_CLUSTER_ACL_INFO)
        told = answer.header(headers.AccountFilesAnswer)
        assert (told.broker_name, told.broker_addr) == ("broker-a", place.running.address)
        all_files = msgspec.json.decode(told.all_acl_file_version or "", type=dict[str, DataVersion])
        return DataVersion.decode(told.version), all_files

    assert (await versions())[0].counter == 2
    assert list((await versions())[1]) == [str(place.path)]

    async def delete(key: str) -> int:
        header = headers.DeleteAccountRequest(access_key=key)
        return (await admin.dialer.call(admin.address, Code.DELETE_ACL_CONFIG, header)).code

    assert [await delete(key) for key in (new.access_key, new.access_key, ADMIN.access_key)] == [0, 210, 210]
    assert refused(await another.send("closed"), "access denied")
    answer = await admin.dialer.call(admin.address, Code.GET_BROKER_CLUSTER_ACL_CONFIG)
    assert answer.code == 3
    assert not answer.body


async def test_an_account_is_deleted_from_all_files(place: Place) -> None:
    """Or the one that it has hidden would be let in."""
    admin, shop = await place.talk(ADMIN), await place.talk(SHOP)
    folder = place.path.parent / "acl"
    folder.mkdir()
    write(folder / "more.yml")
    guard = place.running.broker.access.guard
    assert isinstance(guard, PlainGuard)
    await guard.files.look()
    assert guard.files.accounts.homes[SHOP.access_key] == str(folder / "more.yml")
    header = headers.DeleteAccountRequest(access_key=SHOP.access_key)
    assert (await admin.dialer.call(admin.address, Code.DELETE_ACL_CONFIG, header)).code == 0
    assert refused(await shop.send("orders"), "access denied")
    assert all(SHOP.access_key not in path.read_text() for path in (place.path, folder / "more.yml"))


async def test_the_white_list_by_request(place: Place, tmp_path: Path) -> None:
    admin, nobody = await place.talk(ADMIN), await place.talk(None)

    async def white(addresses: str, path: str | None = None) -> int:
        header = headers.UpdateWhiteAddressesRequest(global_white_addrs=addresses, acl_file_full_path=path)
        return (await admin.dialer.call(admin.address, Code.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, header)).code

    elsewhere = tmp_path / "elsewhere.yml"
    write(elsewhere, "accounts: []\n")
    inside = f"{tmp_path}/../{tmp_path.name}/elsewhere.yml"
    assert [await white("127.0.0.*", path) for path in (str(elsewhere), inside, "/etc/hosts")] == [211] * 3
    assert elsewhere.read_text() == "accounts: []\n"
    assert await white("127.0.0.0/8") == 211
    assert refused(await nobody.send("orders"))
    assert await white("127.0.0.*,::1") == 0
    assert (await nobody.send("orders")).code == 0
    assert (await nobody.send("closed")).code == 0
    # Not even from there are accounts changed without a signature.
    header = headers.UpdateAccountRequest(access_key="another-key", secret_key="0123456789", admin=True)
    assert refused(await nobody.dialer.call(nobody.address, Code.UPDATE_AND_CREATE_ACL_CONFIG, header))
    assert await white("", str(place.path)) == 0
    assert refused(await nobody.send("orders"))


async def test_users_become_of_accounts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """``migrateAuthFromV1Enabled``: RocketMQ 4's files, decided by the rules of 5.3 from then on."""
    more = "globalWhiteRemoteAddresses: [127.0.0.1]\n"
    settings = {
        "authenticationEnabled": True,
        "authorizationEnabled": True,
        "migrateAuthFromV1Enabled": True,
        "aclPath": write(tmp_path / "plain_acl.yml", TEXT + more),
    }
    async with (
        running_broker(directory=tmp_path / "store", **settings) as running,
        Dialer(credentials=SHOP) as dialer,
        Dialer() as nobody,
    ):
        shop = Talk(dialer, running)
        assert (await shop.send("orders")).code == 0
        assert (await shop.send("closed")).code == 16
        assert (await Talk(nobody, running).send("orders")).code == 16
        assert "account_not_migrated" in caplog.text
        assert "globalWhiteRemoteAddresses 127.0.0.1" in caplog.text
        book = running.broker.access.book
        assert book.users[ADMIN.access_key].is_super
        # Whoever was changed since is not changed back.
        await running.broker.access.file.change(
            lambda book: book.delete_rules(f"User:{SHOP.access_key}", None, None)
        )
        await running.stop()
        await running.start()
        assert (await shop.send("orders")).code == 16
    assert SHOP.secret_key not in caplog.text


@pytest.mark.parametrize("name", ["admin-key", "servers-own"])
async def test_followers_copy_with_an_administrators_key(tmp_path: Path, name: str) -> None:
    """With an account of the file, or with one that brokers know of each other alone."""
    own = {"accessKey": name, "secretKey": ADMIN.secret_key}
    settings = {
        "aclEnable": True,
        "aclPath": write(tmp_path / "plain_acl.yml"),
        "innerClientAuthenticationCredentials": msgspec.json.encode(own).decode(),
    }
    async with (
        running_cluster(followers=1, directory=tmp_path / "data", **settings) as cluster,
        Dialer(credentials=SHOP) as dialer,
    ):
        leader, follower = cluster.leaders["broker-a"], cluster.followers("broker-a")[1].broker
        assert (await Talk(dialer, leader).send("orders")).code == 0
        logs = leader.broker.store.log, follower.store.log
        await until(lambda: logs[0].max_offset == logs[1].max_offset > 0, 20.0)
        follower.copies.copy.copy_now()
        await until(lambda: follower.tables.topics.find("orders") is not None, 20.0)


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"acl": True, "authentication": True}, "migrateAuthFromV1Enabled=true"),
        ({"acl": True, "migrate_acl": True}, "aclEnable=false"),
        ({"acl": True}, "the path of plain_acl.yml"),
    ],
)
def test_settings_that_contradict_each_other(tmp_path: Path, settings: dict[str, Any], why: str) -> None:
    with pytest.raises(OptionError, match=why):
        Access(BrokerOptions(**settings), ManualClock(), _no_tables)


def _no_tables() -> Tables:
    raise AssertionError("the options are checked first")


async def test_a_file_that_cannot_be_read_refuses_the_start(tmp_path: Path) -> None:
    write(tmp_path / "plain_acl.yml", TEXT + "- accessKey: third-key\n")
    settings = {"aclEnable": True, "brokerConfigPath": str(tmp_path / "broker.conf")}
    with pytest.raises(AclFileBroken, match=r"plain_acl.yml, line 11: the account has no secretKey"):
        async with running_broker(directory=tmp_path / "store", **settings):
            pass


def test_where_accounts_are_looked_for(tmp_path: Path) -> None:
    def places(config: str = "", **settings: str) -> tuple[str, ...]:
        found = BrokerOptions(**settings).acl_places(config)  # type: ignore[arg-type]
        return tuple(path.replace(os.sep, "/") for path in found)

    assert places("/etc/mq/broker.conf") == ("/etc/mq/plain_acl.yml", "/etc/mq/acl")
    assert places("/etc/mq/broker.conf", rocketmq_home="/opt/mq") == (
        "/opt/mq/conf/plain_acl.yml", "/opt/mq/conf/acl"
    )  # fmt: skip
    assert places("/x/b.conf", acl_path="/a/acl.yml") == ("/a/acl.yml", "/a/acl")
    assert places(acl_path="/a/acl.yml", acl_folder="/b") == ("/a/acl.yml", "/b")
