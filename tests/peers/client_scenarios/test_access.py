"""Access keys: our client at brokers, Apache's and ours, that let in only whom they know, and no further."""

from __future__ import annotations

import asyncio
import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kerolox import Message, Producer, Received
from kerolox.access.book_file import decode_book
from kerolox.cli.main import app
from kerolox.client.admin.lookups import Lookups
from kerolox.client.consume.consumer_options import PullOptions, PushOptions
from kerolox.client.consume.outcomes import Retry
from kerolox.client.consume.pull_consumer import PullConsumer
from kerolox.client.consume.push_consumer import PushConsumer
from kerolox.client.errors import AccessDenied, BrokerNotRegistered
from kerolox.client.sockets.socket_cluster import SocketCluster
from kerolox.protocol.frame import BINARY, JSON

from ..guarded import ADMIN, NOBODY, WAIT_S, Guarded, Keys, apaches, ours, until
from .conftest import SETTINGS, now

Unique = Callable[[str], str]

WORKER = Keys("worker-key", "reads & writes é€")
READER = Keys("reader-key", "reads only")
LATECOMER = Keys("latecomer", "comes later")

USERS = {WORKER: True, READER: False}  # whether they may write
STRANGERS = {
    "a wrong secret": Keys(WORKER.access_key, "guessed"),
    "an unknown key": Keys("nobody-knows", WORKER.secret_key),
    "no keys": NOBODY,
}


@pytest.fixture(scope="module", params=["apache", "ours"])
def guarded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    if request.param == "ours":
        made = ours(tmp_path_factory.mktemp("guarded"), SETTINGS, USERS)
    else:
        made = apaches(request.getfixturevalue("java_session"), SETTINGS, USERS)
    yield made
    made.finish()


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


# What may help is said: other keys, or more rights for these. (4.9 has another word for the latter.)
HINT = re.compile("access_key and secret_key|needs a rule")


def check(refused: AccessDenied) -> None:
    assert not refused.retriable
    assert HINT.search(refused.next_step)
    assert HINT.search(str(refused))


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
        # Ours answers those late who fail often.
        assert guarded.is_ours or time.monotonic() - began_s < 3, "it was tried again"
    async with guarded.admin() as admin:
        (bounds,) = (await admin.topic_stats(some_topic)).values()
        assert bounds.max_offset == 1


@pytest.mark.parametrize("who", STRANGERS)
async def test_who_is_not_known_cannot_read(
    guarded: Guarded, unique: Unique, some_topic: str, who: str, caplog: pytest.LogCaptureFixture
) -> None:
    where = guarded.as_(STRANGERS[who])
    async with PullConsumer(guarded.as_(WORKER), group=unique("group")) as pull:
        (queue,) = await pull.queues(some_topic)
    async with PullConsumer(where, group=unique("group"), topics=[some_topic]) as pull:
        with pytest.raises(AccessDenied) as refused:
            await pull.poll(WAIT_S)
        check(refused.value)
        for ask in (pull.bounds(queue), pull.committed(queue), pull.commit({queue: 1})):
            # Our name server does not even say where the broker is.
            with pytest.raises((AccessDenied, BrokerNotRegistered) if guarded.is_ours else AccessDenied):
                await ask
    async with PullConsumer(where, group=unique("group")) as pull:
        with pytest.raises(AccessDenied):
            await pull.assign([queue])

    def read_plainly() -> None:
        with SocketCluster(where) as plain:
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
    assert HINT.search(caplog.text)


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
    assert HINT.search(refused.stderr)
    assert refused.stderr.count("\n") == 1, refused.stderr
    stats = run(guarded, ADMIN, "topic", "stats", topic, "--json")
    assert stats.returncode == 0, stats.stderr


def test_users_and_rules_by_our_commands(guarded: Guarded, unique: Unique, tmp_path: Path) -> None:
    """Also at Apache's broker: the same requests as mqadmin's."""
    if guarded.has_accounts:
        pytest.skip("RocketMQ 4 has accounts in a file instead")

    def access(*words: str, stdin: str | None = None) -> str:
        environment = {
            "NAMESRV_ADDR": guarded.nameserver,
            "KEROLOX_ACCESS_KEY": ADMIN.access_key,
            "KEROLOX_SECRET_KEY": ADMIN.secret_key,
        }
        done = CliRunner().invoke(app, ["access", *words], input=stdin, env=environment)
        return done.stdout if done.exit_code == 0 else done.stderr

    name, topic = unique("user"), unique("topic")
    assert "was created" in access("user", "create", name, "--password-stdin", stdin="a secret\n")
    assert "exists at" in access("user", "create", name, "--password-stdin", stdin="a secret\n")
    (listed,) = json.loads(access("user", "list", name, "--json"))
    assert (listed["userType"], listed["userStatus"]) == ("Normal", "enable")
    access(
        "policy", "set", name, f"Topic:{topic}", "Group:*", "--actions", "Pub,Sub", "--from", "127.0.0.0/8"
    )
    access("policy", "set", name, f"Topic:{topic}*", "--actions", "All", "--deny")
    rules = json.loads(access("policy", "list", name, "--json"))
    assert [(one["resource"], one["actions"], one["sourceIps"], one["decision"]) for one in rules] == [
        ("Group:*", ["Pub", "Sub"], ["127.0.0.0/8"], "Allow"),
        (f"Topic:{topic}", ["Pub", "Sub"], ["127.0.0.0/8"], "Allow"),
        (f"Topic:{topic}*", ["All"], [], "Deny"),
    ]
    told = [
        json.loads(access("explain", name, "Pub", f"Topic:{topic}{end}", "--from", "127.0.0.1", "--json"))
        for end in ("", "-other")
    ]
    assert [one["allowed"] for (one,) in told] == [True, False]
    # What it says is what is decided.
    keys = Keys(name, "a secret")
    asyncio.run(guarded.create_topic(topic))
    asyncio.run(guarded.create_topic(f"{topic}-other"))
    for end, allowed in (("", True), ("-other", False)):

        def is_decided(topic: str = topic + end, allowed: bool = allowed) -> bool:
            return (run(guarded, keys, "send", topic, "x").returncode == 0) is allowed

        asyncio.run(until(is_decided))  # our name server has to see the file
    copy = tmp_path / "access.json"
    access("user", "copy", name, "--policies", "--from", guarded.broker.address, "--to", str(copy))
    assert decode_book(copy.read_bytes()).users[name].password == "a secret"
    access("policy", "delete", name, f"Topic:{topic}")
    access("policy", "delete", name, "--all")
    assert json.loads(access("policy", "list", name, "--json")) == []
    access("user", "update", name, "--disable")
    (listed,) = json.loads(access("user", "list", name, "--json"))
    assert listed["userStatus"] == "disable"
    assert "was deleted" in access("user", "delete", name, "--yes")
    assert "does not exist" in access("user", "delete", name, "--yes")
