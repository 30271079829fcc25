"""Access keys: our client at brokers of Apache's that let in only whom they know, and no further."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import pytest

from kerolox import ClientOptions, Message, Producer, Received
from kerolox.client.admin.admin import Admin
from kerolox.client.admin.lookups import Lookups
from kerolox.client.cluster.signing import Signing
from kerolox.client.consume.consumer_options import PullOptions, PushOptions
from kerolox.client.consume.outcomes import Retry
from kerolox.client.consume.pull_consumer import PullConsumer
from kerolox.client.consume.push_consumer import PushConsumer
from kerolox.client.errors import AccessDenied
from kerolox.client.nameservers import NameServers
from kerolox.client.sockets.socket_cluster import SocketCluster
from kerolox.net.dialer import Dialer
from kerolox.net.handlers import RemotingHandlers
from kerolox.protocol.bodies.topics import TopicConfig
from kerolox.protocol.frame import BINARY, JSON

from ..conftest import Factory
from ..processes import JavaBroker
from .conftest import SETTINGS, now

pytestmark = pytest.mark.full  # half a minute, for what only Apache's brokers have

Unique = Callable[[str], str]
USERS_5X = "org.apache.rocketmq.auth.authentication.provider.LocalAuthenticationMetadataProvider"
ACLS_5X = "org.apache.rocketmq.auth.authorization.provider.LocalAuthorizationMetadataProvider"
CREATE_USER, CREATE_ACL = 3001, 3006
WAIT_S = 40.0


class Keys(NamedTuple):
    access_key: str
    secret_key: str


ADMIN = Keys("administrator", "may do all")
WORKER = Keys("worker-key", "reads & writes é€")
READER = Keys("reader-key", "reads only")
LATECOMER = Keys("latecomer", "comes later")

USERS = {WORKER: True, READER: False}  # whether they may write
STRANGERS = {
    "a wrong secret": Keys(WORKER.access_key, "guessed"),
    "an unknown key": Keys("nobody-knows", WORKER.secret_key),
    "no keys": Keys("", ""),
}


class Guarded:
    """A broker with access control."""

    def __init__(self, nameserver: str, broker: JavaBroker) -> None:
        self.nameserver = nameserver
        self.broker = broker
        self.users: dict[Keys, bool] = {}

    def as_(self, keys: Keys, encoding: int = JSON) -> ClientOptions:
        return ClientOptions(
            self.nameserver, access_key=keys.access_key, secret_key=keys.secret_key, encoding=encoding
        )

    @asynccontextmanager
    async def admin(self, keys: Keys = ADMIN) -> AsyncIterator[Admin]:
        handlers = RemotingHandlers()
        if keys.access_key:
            handlers.hooks.append(Signing(ClientOptions(**keys._asdict())))
        async with Dialer(handlers) as dialer:
            yield Admin(NameServers([self.nameserver], dialer), dialer)

    async def create_topic(self, topic: str, queues: int = 1, keys: Keys = ADMIN) -> str:
        async with self.admin(keys) as admin:
            config = TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues, perm=6)
            await admin.put_topic(self.broker.address, config)
            await until(lambda: self._is_known(admin, topic))
        return topic

    async def _is_known(self, admin: Admin, topic: str) -> bool:
        try:
            return bool(await admin.queues(topic))
        except Exception:
            return False

    async def let_in(self, keys: Keys, *, writes: bool) -> None:
        """Add a user who may read everything, and perhaps write."""
        self.users[keys] = writes
        if self.broker.jars.is_4x:
            self.write_accounts()  # a running broker notices within some seconds
        else:
            await self._add_user(keys, ["Sub", "Get", "Pub"] if writes else ["Sub", "Get"])

    def write_accounts(self) -> None:
        """The file of a 4.x broker."""
        accounts: list[dict[str, object]] = [
            {"accessKey": ADMIN.access_key, "secretKey": ADMIN.secret_key, "admin": True}
        ]
        for keys, writes in self.users.items():
            rights = {"defaultTopicPerm": "PUB|SUB" if writes else "SUB", "defaultGroupPerm": "SUB"}
            accounts.append({"accessKey": keys.access_key, "secretKey": keys.secret_key, **rights})
        text = json.dumps({"accounts": accounts})  # JSON is YAML
        (self.broker.home / "conf" / "plain_acl.yml").write_text(text, encoding="utf-8")

    async def _add_user(self, keys: Keys, topics: list[str]) -> None:
        entries = [
            {"resource": f"{kind}:*", "actions": actions, "decision": "Allow"}
            for kind, actions in (("Topic", topics), ("Group", ["Sub", "Get"]))
        ]
        user = {"username": keys.access_key, "password": keys.secret_key, "userType": "Normal"}
        subject = f"User:{keys.access_key}"
        acl = {"subject": subject, "policies": [{"policyType": "Custom", "entries": entries}]}
        handlers = RemotingHandlers()
        handlers.hooks.append(Signing(ClientOptions(**ADMIN._asdict())))
        async with Dialer(handlers) as dialer:
            peer = await dialer.connect(self.broker.address)
            for code, fields, body in (
                (CREATE_USER, {"username": keys.access_key}, user),
                (CREATE_ACL, {"subject": subject}, acl),
            ):
                answer = await peer.request(code, None, json.dumps(body).encode(), fields=fields)
                assert answer.code == 0, answer.remark


async def until(condition: Callable[[], Any], timeout_s: float = WAIT_S) -> None:
    async with asyncio.timeout(timeout_s):
        while True:
            met = condition()
            if (await met) if asyncio.iscoroutine(met) else met:
                return
            await asyncio.sleep(0.05)


def settings_5x() -> dict[str, object]:
    return {
        "authenticationEnabled": True,
        "authenticationMetadataProvider": USERS_5X,
        "authorizationEnabled": True,
        "authorizationMetadataProvider": ACLS_5X,
        "initAuthenticationUser": json.dumps({"username": ADMIN.access_key, "password": ADMIN.secret_key}),
        "innerClientAuthenticationCredentials": json.dumps(
            {"accessKey": ADMIN.access_key, "secretKey": ADMIN.secret_key}
        ),
        # What tests ask without keys to make a young broker register at once: UPDATE_BROKER_CONFIG.
        "authenticationWhitelist": "25",
        "authorizationWhitelist": "25",
    }


@pytest.fixture(scope="module")
def guarded(java_session: Factory) -> Iterator[Guarded]:
    is_4x = java_session.jars.is_4x
    nameserver = java_session.nameserver()
    settings = {"aclEnable": True} if is_4x else settings_5x()
    broker = java_session.broker(nameserver.address, start=False, properties={**SETTINGS, **settings})
    guarded = Guarded(nameserver.address, broker)
    if is_4x:
        guarded.users.update(USERS)
        guarded.write_accounts()
    broker.start()
    if not is_4x:
        for keys, writes in USERS.items():
            now(guarded.let_in(keys, writes=writes))
    yield guarded
    broker.finish()
    nameserver.finish()


# --- with the right keys ------------------------------------------------------------------------------------


@pytest.mark.parametrize("encoding", [JSON, BINARY], ids=["json", "binary"])
async def test_messages_are_sent_and_read(guarded: Guarded, unique: Unique, encoding: int) -> None:
    topic, group = await guarded.create_topic(unique("topic"), 2), unique("group")
    seen: list[Received] = []

    async def handle(message: Received) -> None:
        seen.append(message)
        if message.text == "again" and not message.attempt:
            raise Retry("once more")

    where = guarded.as_(WORKER, encoding)
    texts = [
        "grün",
        "ab" * 5000,
        "again",
        "k0",
        "k1",
        *(f"b{n}" for n in range(5)),
        *(f"m{n}" for n in range(50)),
    ]
    async with Producer(where, group=unique("pid")) as producer:
        await producer.send(Message(topic, texts[0], tags="ü", keys="a b", properties={"colour": "röt €"}))
        await producer.send(Message(topic, texts[1]))  # compressed
        await producer.send(Message(topic, texts[2]))
        for text in texts[3:5]:
            await producer.send(Message(topic, text), order_key="key")
        await producer.send_batch([Message(topic, text) for text in texts[5:10]])
        await producer.send_many([Message(topic, text) for text in texts[10:]])
        await producer.send_oneway(Message(topic, "one way"))
    texts.append("one way")
    options = PushOptions(start="first", save_s=0.5)
    async with PushConsumer(where, group=group, options=options) as push:
        push.subscribe(topic, handle)
        await until(lambda: len(seen) == len(texts) + 1)
        async with guarded.admin() as admin:

            async def consumed() -> bool:
                offsets = (await admin.progress(group, topic)).values()
                return sum(each.consumer_offset for each in offsets) == len(texts)

            await until(consumed)
        assert push.refusal is None
    assert sorted(message.text for message in seen) == sorted([*texts, "again"])
    ordered: list[str] = []
    async with PushConsumer(
        where, group=unique("group"), options=PushOptions(start="first", ordered=True)
    ) as push:
        push.subscribe(topic, lambda message: ordered.append(message.text))
        await until(lambda: len(ordered) == len(texts))
    pulled: list[str] = []
    async with PullConsumer(
        where, group=unique("group"), topics=[topic], options=PullOptions(start="first")
    ) as pull:
        while len(pulled) < len(texts):
            batch = await pull.poll(WAIT_S)
            assert batch is not None
            pulled += [message.text for message in batch]
        await pull.commit()

    def read_plainly() -> list[str]:
        with SocketCluster(where) as plain:
            queues = plain.route(topic).readable
            return [
                message.text
                for queue in queues
                for message in plain.read(
                    queue, plain.min_offset(queue), plain.max_offset(queue), group=group
                )
            ]

    plainly = await asyncio.to_thread(read_plainly)
    assert sorted(texts) == sorted(ordered) == sorted(pulled) == sorted(plainly)


async def test_transactions_end(guarded: Guarded, unique: Unique) -> None:
    topic = await guarded.create_topic(unique("topic"))
    asked: list[str] = []

    def check(message: Received) -> bool:
        asked.append(message.text)
        return True

    async with Producer(guarded.as_(WORKER), group=unique("pid"), check=check) as producer:
        async with producer.transaction(Message(topic, "committed")):
            pass
        async with producer.transaction(Message(topic, "rolled back")) as transaction:
            await transaction.rollback()
        async with producer.transaction(Message(topic, "asked for")) as transaction:
            await transaction.leave_open()
        async with PullConsumer(
            guarded.as_(READER), group=unique("group"), topics=[topic], options=PullOptions(start="first")
        ) as pull:
            found: list[str] = []
            while len(found) < 2:
                batch = await pull.poll(WAIT_S)
                assert batch is not None
                found += [message.text for message in batch]
    assert sorted(found) == ["asked for", "committed"]
    assert set(asked) == {"asked for"}


async def test_a_request_is_replied_to(guarded: Guarded, unique: Unique) -> None:
    topic = await guarded.create_topic(unique("topic"))
    where = guarded.as_(WORKER)
    async with (
        Producer(where, group=unique("pid")) as asker,
        Producer(where, group=unique("pid")) as answerer,
        PushConsumer(where, group=unique("group"), options=PushOptions(start="first")) as consumer,
    ):

        async def reply(message: Received) -> None:
            await answerer.reply(message, message.text.upper())

        consumer.subscribe(topic, reply)
        assert (await asker.request(Message(topic, "how are you"), timeout_s=WAIT_S)).text == "HOW ARE YOU"


async def test_messages_are_found(guarded: Guarded, unique: Unique) -> None:
    topic = await guarded.create_topic(unique("topic"))
    async with Producer(guarded.as_(WORKER), group=unique("pid")) as producer:
        receipt = await producer.send(Message(topic, "x", keys="k1"))
    async with guarded.admin(WORKER) as admin:
        lookups = Lookups(admin)

        async def is_indexed() -> bool:
            return bool((await lookups.by_key(topic, "k1")).messages)

        await until(is_indexed)
        found = await lookups.by_key(topic, receipt.msg_id, unique=True)
        assert [message.unique_key for message in found.messages] == [receipt.msg_id]


# --- without them -------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def some_topic(guarded: Guarded) -> str:
    """One with a message in it."""

    async def make() -> str:
        topic = await guarded.create_topic("some_topic")
        async with Producer(guarded.as_(WORKER), group="pid_some_topic") as producer:
            await producer.send(Message(topic, "not for everybody"))
        return topic

    return now(make())


def check(refused: AccessDenied) -> None:
    assert not refused.retriable
    assert "access_key" in refused.next_step
    assert "Check access_key, secret_key" in str(refused)


@pytest.mark.parametrize("who", STRANGERS)
async def test_who_is_not_known_cannot_send(
    guarded: Guarded, unique: Unique, some_topic: str, who: str
) -> None:
    async with Producer(guarded.as_(STRANGERS[who]), group=unique("pid")) as producer:
        began_s = time.monotonic()
        with pytest.raises(AccessDenied) as refused:
            await producer.send(Message(some_topic, "x"))
        check(refused.value)
        with pytest.raises(AccessDenied):
            await producer.send(Message(some_topic, "x"), order_key="k")
        with pytest.raises(AccessDenied):
            await producer.send_batch([Message(some_topic, "x"), Message(some_topic, "y")])
        results = await producer.send_many([Message(some_topic, "x")] * 3, return_errors=True)
        assert [type(result) for result in results] == [AccessDenied] * 3
        with pytest.raises(AccessDenied):
            async with producer.transaction(Message(some_topic, "x")):
                pytest.fail("it was prepared")
        assert time.monotonic() - began_s < 3, "it was tried again"
    async with guarded.admin() as admin:
        (bounds,) = (await admin.topic_stats(some_topic)).values()
        assert bounds.max_offset == 1


@pytest.mark.parametrize("who", STRANGERS)
async def test_who_is_not_known_cannot_read(
    guarded: Guarded, unique: Unique, some_topic: str, who: str, caplog: pytest.LogCaptureFixture
) -> None:
    where = guarded.as_(STRANGERS[who])
    async with PullConsumer(where, group=unique("group"), topics=[some_topic]) as pull:
        with pytest.raises(AccessDenied) as refused:
            await pull.poll(WAIT_S)
        check(refused.value)
        (queue,) = await pull.queues(some_topic)
        for ask in (pull.bounds(queue), pull.committed(queue), pull.commit({queue: 1})):
            with pytest.raises(AccessDenied):
                await ask
    async with PullConsumer(where, group=unique("group")) as pull:
        with pytest.raises(AccessDenied):
            await pull.assign([queue])

    def read_plainly() -> None:
        with SocketCluster(where) as plain:
            (queue,) = plain.route(some_topic).readable
            with pytest.raises(AccessDenied) as refused:
                plain.max_offset(queue)
            check(refused.value)
            with pytest.raises(AccessDenied):
                list(plain.read(queue, 0, 1, group=unique("group")))

    await asyncio.to_thread(read_plainly)
    seen: list[Received] = []
    async with PushConsumer(where, group=unique("group"), options=PushOptions(start="first")) as push:
        push.subscribe(some_topic, seen.append)
        await until(lambda: push.refusal)
        assert push.refusal is not None
        check(push.refusal)
    assert seen == []
    assert "Check access_key, secret_key" in caplog.text


async def test_nobody_goes_further_than_he_may(guarded: Guarded, unique: Unique, some_topic: str) -> None:
    where = guarded.as_(READER)
    async with Producer(where, group=unique("pid")) as producer:
        with pytest.raises(AccessDenied) as refused:
            await producer.send(Message(some_topic, "x"))
        check(refused.value)
    async with PullConsumer(
        where, group=unique("group"), topics=[some_topic], options=PullOptions(start="first")
    ) as pull:
        batch = await pull.poll(WAIT_S)
        assert batch is not None
        assert [message.text for message in batch] == ["not for everybody"]
    for keys in (WORKER, *STRANGERS.values()):
        with pytest.raises(AccessDenied) as refused:
            await guarded.create_topic(unique("topic"), keys=keys)
        check(refused.value)


async def test_who_is_let_in_later_begins_then(guarded: Guarded, unique: Unique, some_topic: str) -> None:
    seen: list[str] = []
    async with PushConsumer(
        guarded.as_(LATECOMER), group=unique("group"), options=PushOptions(start="first")
    ) as push:
        push.subscribe(some_topic, lambda message: seen.append(message.text))
        await until(lambda: push.refusal)
        await guarded.let_in(LATECOMER, writes=False)
        await until(lambda: seen)
        assert push.refusal is None
    assert seen == ["not for everybody"]


# --- the command line ---------------------------------------------------------------------------------------


def run(guarded: Guarded, keys: Keys, *words: str) -> subprocess.CompletedProcess[str]:
    environment = {
        **os.environ,
        "NAMESRV_ADDR": guarded.nameserver,
        "KEROLOX_ACCESS_KEY": keys.access_key,
        "KEROLOX_SECRET_KEY": keys.secret_key,
    }
    return subprocess.run(
        [sys.executable, "-m", "kerolox", *words],
        env=environment, capture_output=True, text=True, timeout=WAIT_S, check=False,
    )  # fmt: skip


def test_commands_have_the_keys_of_the_environment(guarded: Guarded, unique: Unique) -> None:
    topic = unique("topic")
    made = run(guarded, ADMIN, "topic", "create", topic, "--queues", "2")
    assert made.returncode == 0, made.stderr
    sent = run(guarded, WORKER, "send", topic, "hello", "--key", "k1")
    assert sent.returncode == 0, sent.stderr
    refused = run(guarded, STRANGERS["a wrong secret"], "topic", "stats", topic)
    assert refused.returncode == 1
    assert "Check access_key, secret_key" in refused.stderr
    assert refused.stderr.count("\n") == 1, refused.stderr
    stats = run(guarded, ADMIN, "topic", "stats", topic, "--json")
    assert stats.returncode == 0, stats.stderr
