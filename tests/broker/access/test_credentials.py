"""Credentials of one user in the hands of others: relayed requests, and recorded ones."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from kerolox import ClientOptions, Message, Producer, PullConsumer, PullOptions
from kerolox.access.options import FormTwoUse
from kerolox.broker.options import BrokerOptions
from kerolox.broker.write.pending_message import PendingMessage
from kerolox.broker.write.remote_outlet import RemoteOutlet
from kerolox.clock import SYSTEM_CLOCK
from kerolox.errors import OptionError
from kerolox.front.lanes import Lane
from kerolox.front.requests import Answer, Request
from kerolox.net.dialer import Dialer
from kerolox.net.handlers import Hook, RemotingHandlers
from kerolox.net.peer import Peer
from kerolox.net.signing import Credentials
from kerolox.protocol.codes import RequestCode as Code
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.command import Command
from kerolox.protocol.headers.heartbeat import ConsumeDirectlyRequest, ConsumerRunningInfoRequest
from kerolox.protocol.headers.query import ViewMessageRequest
from kerolox.protocol.signature_v2 import CREDENTIAL_FIELDS, SIGNATURE_V2
from kerolox.testing.access import ADMIN, INNER, secured
from kerolox.testing.broker import RunningBroker, running_broker
from kerolox.testing.nameserver import running_nameserver
from tests.access.users_kit import add_user
from tests.broker.talk import Talk, subscribed, until


def in_form_2(own: Credentials) -> Credentials:
    return Credentials(own.access_key, own.secret_key, form_2=True)


# --- relayed ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("form_2", [False, True])
async def test_a_relayed_request_carries_no_credentials(tmp_path: Path, form_2: bool) -> None:
    """A consumer would do with the administrator's signature what it likes: it covers no code."""
    asked: list[Command] = []

    def consumer(request: Request[None]) -> Answer:
        asked.append(request.ticket)
        return Answer()

    handlers, lane = RemotingHandlers(), Lane("client")
    for code in (Code.GET_CONSUMER_RUNNING_INFO, Code.CONSUME_MESSAGE_DIRECTLY):
        handlers.add(code, consumer, None, lane)
    async with running_broker(directory=tmp_path, **secured()) as running:
        alice = add_user(running.broker.access.book, "alice", {"Topic:mine": "Pub,Sub", "Group:mine": "Sub"})
        own = in_form_2(ADMIN) if form_2 else ADMIN
        async with Dialer(handlers, credentials=alice) as theirs, Dialer(credentials=own) as admins:
            mine = Talk(theirs, running)
            await mine.heartbeat("mine", subscribed("mine"))
            sent = await mine.send("mine", b"a message")
            info = ConsumerRunningInfoRequest(consumer_group="mine", client_id="client-1")
            direct = ConsumeDirectlyRequest(
                consumer_group="mine", client_id="client-1", msg_id=sent.fields["msgId"], topic="mine"
            )
            more = {"SecurityToken": "a token", "unknown": "kept"}
            for code, header in (
                (Code.GET_CONSUMER_RUNNING_INFO, info), (Code.CONSUME_MESSAGE_DIRECTLY, direct)
            ):  # fmt: skip
                answer = await admins.call(running.address, code, header, fields=dict(more))
                assert answer.code == 0, answer.remark
    assert [command.code for command in asked] == [307, 309]
    for command in asked:
        assert command.fields["unknown"] == "kept"  # newer ones say more
        assert not CREDENTIAL_FIELDS & command.fields.keys()
        assert ADMIN.access_key not in command.fields.values()


# --- recorded --------------------------------------------------------------------------------------------


class Recorder(Hook):
    """Keeps what was sent, signed."""

    def __init__(self) -> None:
        self.sent: list[Command] = []

    def before_request(self, peer: Peer, request: Command) -> None:
        self.sent.append(request)


async def recorded(running: RunningBroker, own: Credentials) -> Command:
    """A question of a user that looks at the broker, as it went over the line."""
    async with Dialer(credentials=own) as dialer:
        recorder = Recorder()
        dialer.handlers.hooks.append(recorder)
        answer = await dialer.call(running.address, Code.GET_BROKER_RUNTIME_INFO)
        assert answer.code == 0, answer.remark
        return recorder.sent[0]


async def again(running: RunningBroker, request: Command, code: int, fields: dict[str, str]) -> Command:
    async with Dialer() as dialer:
        return await dialer.call(running.address, code, None, request.body, fields=fields, timeout_s=10)


async def test_form_2_counts_once_and_for_its_code(tmp_path: Path) -> None:
    async with running_broker(directory=tmp_path, **secured(form_2=FormTwoUse.SUPER)) as running:
        request = await recorded(running, in_form_2(ADMIN))
        for code in (request.code, Code.GET_BROKER_CONFIG):
            answer = await again(running, request, code, dict(request.fields))
            assert (answer.code, answer.body) == (ResponseCode.NO_PERMISSION, b"")
        without = {name: value for name, value in request.fields.items() if name != SIGNATURE_V2}
        assert (await again(running, request, request.code, without)).code == ResponseCode.NO_PERMISSION


async def test_rocketmqs_form_can_be_replayed_where_it_is_enough(tmp_path: Path) -> None:
    """What SECURITY.md says of it, and why form 2 is there."""
    async with running_broker(directory=tmp_path, **secured()) as running:
        request = await recorded(running, ADMIN)
        assert (await again(running, request, Code.GET_BROKER_CONFIG, dict(request.fields))).code == 0


async def code_of(running: RunningBroker, own: Credentials) -> int:
    async with Dialer(credentials=own) as dialer:
        header = ViewMessageRequest(offset=0)
        return (await dialer.call(running.address, Code.VIEW_MESSAGE_BY_ID, header, timeout_s=10)).code


NO = ResponseCode.NO_PERMISSION


@pytest.mark.parametrize(
    ("use", "inner", "admin", "alice"),
    [
        (FormTwoUse.OFF, 0, 0, 0),
        (FormTwoUse.SIGN, 0, 0, 0),
        (FormTwoUse.INNER, NO, 0, 0),
        (FormTwoUse.SUPER, NO, NO, 0),
        (FormTwoUse.ALL, NO, NO, NO),
    ],
)
async def test_of_whom_form_2_is_asked(
    tmp_path: Path, use: FormTwoUse, inner: int, admin: int, alice: int
) -> None:
    async with running_broker(directory=tmp_path, **secured(form_2=use)) as running:
        user = add_user(running.broker.access.book, "alice", {"Topic:*": "Pub,Sub"})
        async with Dialer(credentials=in_form_2(user)) as dialer:
            assert (await Talk(dialer, running).send("T")).code == 0
        for own, expected in ((INNER, inner), (ADMIN, admin), (user, alice)):
            assert await code_of(running, in_form_2(own)) == 0
            assert await code_of(running, own) == expected


async def test_runs_of_sends_are_looked_at_one_by_one_where_form_2_is_asked(tmp_path: Path) -> None:
    """The fast path knows RocketMQ's signature only."""
    async with running_broker(directory=tmp_path, **secured(form_2=FormTwoUse.ALL)) as running:
        user = add_user(running.broker.access.book, "alice", {"Topic:*": "Pub,Sub"})
        async with Dialer(credentials=in_form_2(user)) as dialer, Dialer(credentials=user) as plain:
            answers = await asyncio.gather(*(Talk(dialer, running).send("T") for _ in range(50)))
            assert [answer.code for answer in answers] == [0] * 50
            refused = await asyncio.gather(*(Talk(plain, running).send("T") for _ in range(5)))
            assert [answer.code for answer in refused] == [NO] * 5
        # A connection on which the one has signed is none for the other.
        async with Dialer(credentials=in_form_2(user)) as dialer:
            assert (await Talk(dialer, running).send("T")).code == 0
            dialer.handlers.hooks[:] = Dialer(credentials=user).handlers.hooks
            assert (await Talk(dialer, running).send("T")).code == NO


async def test_servers_and_clients_where_everybody_signs_in_form_2(tmp_path: Path) -> None:
    settings: dict[str, Any] = secured(form_2=FormTwoUse.ALL)
    async with (
        running_nameserver(
            directory=tmp_path / "ns", **{**settings, "access_path": str(tmp_path / "access.json")}
        ) as nameserver,
        running_broker(directory=tmp_path / "broker", nameserver=nameserver, **settings) as running,
    ):
        await until(lambda: bool(nameserver.routes.topics))
        options = ClientOptions(
            running.nameserver_address,
            access_key=ADMIN.access_key,
            secret_key=ADMIN.secret_key,
            signature_v2=True,
        )
        async with (
            Producer(options, group="p") as producer,
            PullConsumer(options, group="g", topics=["T"], options=PullOptions(start="first")) as consumer,
        ):
            receipts = await producer.send_many([Message("T", b"%d" % number) for number in range(20)])
            assert all(receipt.ok for receipt in receipts)
            seen: set[bytes] = set()
            async with asyncio.timeout(30):
                while len(seen) < 20:
                    seen |= {message.body for message in await consumer.poll()}


async def test_what_another_broker_is_sent_is_signed_in_form_2(tmp_path: Path) -> None:
    """By a follower that acts for its leader."""
    settings: dict[str, Any] = secured(form_2=FormTwoUse.INNER)
    book = {"access_path": str(tmp_path / "access.json")}
    async with (
        running_nameserver(directory=tmp_path / "ns", **settings, **book) as nameserver,
        running_broker(
            directory=tmp_path / "b", nameserver=nameserver, broker_name="broker-b", **settings
        ) as running,
        Dialer(credentials=ADMIN) as admins,
    ):
        admin = Talk(admins, running)
        assert (await admin.send("T", b"first")).code == 0
        await until(lambda: "T" in nameserver.routes.topics)
        escape = RemoteOutlet(BrokerOptions(nameservers=nameserver.address, **settings), SYSTEM_CLOCK)
        try:
            assert await escape.put([PendingMessage("T", 0, b"x", b"", 0, bytes(8))]) == 1
        finally:
            await escape.close()
        bodies = [message.body for queue in range(4) for message in await admin.messages("T", queue)]
        assert sorted(bodies) == [b"first", b"x"]


@pytest.mark.parametrize(
    ("settings", "named"),
    [
        ({"form_2": FormTwoUse.ALL}, "authenticationEnabled"),
        (
            {**secured(form_2=FormTwoUse.INNER), "inner_credentials": None},
            "innerClientAuthenticationCredentials",
        ),
    ],
)
async def test_settings_that_would_protect_nothing_are_refused(
    tmp_path: Path, settings: dict[str, Any], named: str
) -> None:
    with pytest.raises(OptionError, match=named):
        async with running_broker(directory=tmp_path, **settings):
            pass
