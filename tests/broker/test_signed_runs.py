"""Runs of signed sends at a secured broker, over real sockets: what a run takes, the guard would let pass."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from kerolox.access.book import Book
from kerolox.access.options import Audit
from kerolox.net.dialer import Dialer
from kerolox.net.handlers import Hook, RemotingHandlers
from kerolox.net.peer import Peer
from kerolox.net.signing import Credentials, Signing
from kerolox.protocol.batch import encode_batch
from kerolox.protocol.bodies import access as bodies
from kerolox.protocol.bodies.topics import TopicConfig
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.command import Command
from kerolox.protocol.frame import BINARY, JSON
from kerolox.protocol.signature import sign
from kerolox.testing.access import ADMIN, secured
from kerolox.testing.broker import running_broker

from .talk import Talk

KEY = {"UNIQ_KEY": "7F000001162E18B4AAC28E2F6D2A0000"}
ALICE, BOB = Credentials("alice", "alice's secret"), Credentials("bob", "bob's secret")
REFUSED = ResponseCode.NO_PERMISSION


class Signed(Talk):
    """A client at a secured broker, on one connection, with whatever it signs by. ``runs`` has what was taken
    in runs."""

    def __init__(self, dialer: Dialer, running: Any) -> None:
        super().__init__(dialer, running)
        self.runs: list[tuple[str, int, int, int]] = []
        running.broker.remoting.send_runs.on_stored.append(lambda *run: self.runs.append(run))

    @property
    def taken(self) -> int:
        return sum(messages for _, messages, _, _ in self.runs)

    @property
    def book(self) -> Book:
        return self.running.broker.access.book

    def sign_by(self, hook: Hook | Credentials | None) -> None:
        if isinstance(hook, Credentials):
            hook = Signing(hook)
        self.dialer.handlers.hooks[:] = [] if hook is None else [hook]

    def rule(
        self, name: str, resource: str, decision: str = "Allow", sources: tuple[str, ...] | None = None
    ) -> None:
        entry = bodies.AclEntry(actions=("Pub",), decision=decision, resource=resource, source_ips=sources)
        acl = bodies.Acl(policies=(bodies.AclPolicy(entries=(entry,)),))
        self.book.merge_rules(f"User:{name}", acl)

    async def code(self, topic: str = "T", body: bytes = b"hello", **more: Any) -> int:
        return (await self.send(topic, body, KEY, **more)).code

    def stored(self, topic: str = "T") -> int:
        """How many messages the topic has, whoever asks."""
        return sum(self.running.broker.store.log.cursor(topic, n).next_offset for n in range(4))


@asynccontextmanager
async def secured_talk(directory: Path, encoding: int = JSON, **options: Any) -> AsyncIterator[Signed]:
    async with (
        running_broker(directory=directory, **secured(**options)) as running,
        Dialer(encoding=encoding) as dialer,
    ):
        talk = Signed(dialer, running)
        topics = running.broker.tables.topics
        for name in ("T", "U"):
            topics.put(TopicConfig(topic_name=name, read_queue_nums=4, write_queue_nums=4))
        await topics.unsaved.all_saved()
        for user in (ALICE, BOB):
            talk.book.create_user(bodies.User(username=user.access_key, password=user.secret_key))
        talk.rule("alice", "Topic:T")
        talk.rule("bob", "Topic:T")
        talk.sign_by(ALICE)
        yield talk


@pytest.fixture
async def talk(tmp_path: Path) -> AsyncIterator[Signed]:
    async with secured_talk(tmp_path) as ours:
        yield ours


@pytest.mark.parametrize("encoding", [JSON, BINARY])
async def test_who_has_signed_once_is_taken_in_runs(tmp_path: Path, encoding: int) -> None:
    async with secured_talk(tmp_path, encoding) as talk:
        assert await talk.code() == 0
        assert talk.taken == 0  # the guard has to see who it is
        codes = await asyncio.gather(*(talk.code(body=b"%d" % n, queue_id=n % 4) for n in range(40)))
        assert set(codes) == {0}
        batch = encode_batch([(0, b"b%d" % n, b"") for n in range(5)])
        assert (await talk.send_batch("T", batch, properties={"UNIQ_KEY": KEY["UNIQ_KEY"]})).code == 0
        assert talk.taken == 45
        later = {**KEY, "DELAY": "3"}
        assert (await talk.send("T", properties=later)).code == 0
        assert talk.taken == 46
        assert talk.stored() == 46


class Changed(Hook):
    """Signs, and then changes what it has signed."""

    def __init__(self, **changes: str | None) -> None:
        self.changes = changes

    def before_request(self, peer: Peer, request: Command) -> None:
        request.fields.update(sign(request.fields, request.body, ALICE.access_key, ALICE.secret_key))
        for name, value in self.changes.items():
            if value is None:
                request.fields.pop(name)
            else:
                request.fields[name] = value


class OtherBody(Hook):
    """Signs, and sends another body."""

    def before_request(self, peer: Peer, request: Command) -> None:
        request.fields.update(sign(request.fields, b"signed", ALICE.access_key, ALICE.secret_key))


@pytest.mark.parametrize(
    "wrong",
    [
        None,
        Credentials("alice", "a guess"),
        Credentials("nobody", "alice's secret"),
        Changed(Signature=None),
        Changed(Signature="x"),
        Changed(AccessKey=None),
        Changed(AccessKey="bob"),
        Changed(AccessKey="admin"),
        Changed(SecurityToken="t"),
        Changed(b="U"),
        Changed(e="1"),
        Changed(h="1"),
        Changed(l="1"),
        OtherBody(),
    ],
    ids=lambda wrong: str(getattr(wrong, "changes", type(wrong).__name__)),
)
async def test_what_is_not_signed_rightly_is_refused_whoever_signed_before(
    talk: Signed, wrong: Hook | Credentials | None
) -> None:
    for _ in range(2):
        assert await talk.code() == 0
    talk.sign_by(wrong)
    answers = await asyncio.gather(*(talk.send("T", b"hello", KEY) for _ in range(3)))
    assert {answer.code for answer in answers} == {REFUSED}
    talk.sign_by(ALICE)
    assert await talk.code() == 0
    assert talk.taken == 2
    assert (talk.stored("T"), talk.stored("U")) == (3, 0)


async def test_two_users_on_one_connection_have_their_own_rights(talk: Signed) -> None:
    talk.rule("bob", "Topic:U")

    async def send(user: Credentials, topic: str) -> int:
        talk.sign_by(user)
        return await talk.code(topic)

    for _ in range(3):
        assert await send(ALICE, "T") == 0
        assert await send(ALICE, "U") == REFUSED
        assert await send(BOB, "U") == 0
        assert await send(BOB, "T") == 0
        assert await send(ALICE, "U") == REFUSED
    assert talk.taken > 0
    assert (talk.stored("T"), talk.stored("U")) == (6, 3)


def disable(talk: Signed) -> None:
    talk.book.update_user(bodies.User(username="alice", user_status="disable"))


def change_password(talk: Signed) -> None:
    talk.book.update_user(bodies.User(username="alice", password="another"))


def delete(talk: Signed) -> None:
    talk.book.delete_user("alice")


def take_right(talk: Signed) -> None:
    talk.book.delete_rules("User:alice", None, "Topic:T")


def take_all_rights(talk: Signed) -> None:
    talk.book.delete_rules("User:alice", None, None)


def deny(talk: Signed) -> None:
    talk.rule("alice", "Topic:T", "Deny")


def elsewhere(talk: Signed) -> None:
    talk.rule("alice", "Topic:T", sources=("10.0.0.0/8",))


@pytest.mark.parametrize(
    "change", [disable, change_password, delete, take_right, take_all_rights, deny, elsewhere]
)
async def test_what_changes_for_a_user_counts_at_once(talk: Signed, change: Any) -> None:
    for _ in range(3):
        assert await talk.code() == 0
    assert talk.taken == 2
    change(talk)
    assert set(await asyncio.gather(*(talk.code() for _ in range(3)))) == {REFUSED}
    assert talk.taken == 2
    assert talk.stored() == 3


async def test_who_is_given_a_right_has_it_at_once(talk: Signed) -> None:
    assert await talk.code() == 0
    assert await talk.code("U") == REFUSED
    talk.rule("alice", "Topic:U", sources=("127.0.0.0/8",))
    assert await talk.code("U") == 0
    assert talk.taken == 1
    change_password(talk)
    talk.sign_by(Credentials("alice", "another"))
    for _ in range(2):
        assert await talk.code("U") == 0
    assert talk.taken == 3


async def test_where_every_decision_is_logged_none_is_made_in_runs(tmp_path: Path) -> None:
    async with secured_talk(tmp_path, audit=Audit.ALL) as talk:
        for _ in range(3):
            assert await talk.code() == 0
        assert talk.taken == 0


async def test_messages_that_name_light_queues_are_looked_at(talk: Signed) -> None:
    own = {**KEY, "INNER_MULTI_DISPATCH": "%LMQ%a"}
    assert await talk.code() == 0
    assert (await talk.send("T", properties=own)).code == REFUSED
    assert (await talk.send("T", properties={**own, "DELAY": "1"})).code == REFUSED
    talk.rule("alice", "Topic:%LMQ%a")
    assert (await talk.send("T", properties=own)).code == 0
    assert talk.taken == 0


async def test_only_authentication_wants_signatures_and_no_rules(tmp_path: Path) -> None:
    async with secured_talk(tmp_path, authorization=False) as talk:
        for _ in range(3):
            assert await talk.code("U") == 0
        assert talk.taken == 2
        talk.sign_by(None)
        assert await talk.code("U") == REFUSED
        talk.sign_by(ADMIN)
        assert await talk.code("U") == 0


async def test_runs_are_not_added_where_another_guard_stands(talk: Signed) -> None:
    broker = talk.running.broker
    with pytest.raises(ValueError, match="bypass the guard"):
        broker.remoting.send_runs.add_to(RemotingHandlers(), broker.lanes["send"])
