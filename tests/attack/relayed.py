"""Requests that reach a consumer of the attacker's, and whether they bring credentials.

An administrator asks a broker everything that can be asked about the attacker's own topic and group. The
broker passes some of it on, and tells clients of some. A signature that comes along is used as its holder
would use it: RocketMQ's covers neither the request code nor where values begin and end.
"""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from kerolox.errors import KeroloxError
from kerolox.front.lanes import Lane
from kerolox.front.requests import Answer, Request
from kerolox.net.dialer import Dialer
from kerolox.net.handlers import RemotingHandlers
from kerolox.net.signing import Credentials
from kerolox.protocol.bodies.heartbeat import HeartbeatData, ProducerData
from kerolox.protocol.codes import RequestCode as Code
from kerolox.protocol.codes import ResponseCode, request_name
from kerolox.protocol.command import Command
from kerolox.protocol.header import Header
from kerolox.protocol.headers.heartbeat import ConsumeDirectlyRequest, ConsumerRunningInfoRequest
from kerolox.protocol.headers.offset import ConsumerStatusRequest, ResetOffsetRequest, UpdateOffsetRequest
from kerolox.protocol.headers.send import SendRequestV2
from kerolox.protocol.signature import SIGNATURE
from kerolox.protocol.signature_v2 import CREDENTIAL_FIELDS
from kerolox.testing.access import ADMIN, secured
from kerolox.testing.broker import RunningBroker
from tests.access.users_kit import add_user
from tests.broker.talk import Talk, send_fields, subscribed
from tests.broker.transaction_kit import Scene, scene

from .requests import CODES, Names, body_of, fields_of
from .story import Outcome

OWN = Names("other", "other", "victim")
RULES = {f"Topic:{OWN.topic}": "Pub,Sub", f"Group:{OWN.group}": "Sub"}
CLIENT, PRODUCERS = "client-1", "asking"
# That brokers tell or ask clients.
TOLD = (
    *(Code.CHECK_TRANSACTION_STATE, Code.NOTIFY_CONSUMER_IDS_CHANGED, Code.RESET_CONSUMER_CLIENT_OFFSET),
    *(Code.GET_CONSUMER_STATUS_FROM_CLIENT, Code.GET_CONSUMER_RUNNING_INFO, Code.CONSUME_MESSAGE_DIRECTLY),
    Code.PUSH_REPLY_MESSAGE_TO_CLIENT,
)
# By which they are made to.
RELAYED = (
    *(Code.GET_CONSUMER_RUNNING_INFO, Code.CONSUME_MESSAGE_DIRECTLY, Code.INVOKE_BROKER_TO_RESET_OFFSET),
    *(Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, Code.SEND_REPLY_MESSAGE, Code.SEND_REPLY_MESSAGE_V2),
)
ANSWER_S = 3.0
# What somebody with a signature that covers values only may try: another code, the values divided anew.
REPLAYED_AS = (Code.GET_BROKER_CONFIG, Code.GET_ALL_TOPIC_CONFIG, Code.GET_BROKER_RUNTIME_INFO)


class Spy:
    """Everything that a broker says to a client of the attacker's."""

    def __init__(self) -> None:
        self.heard: list[Command] = []

    def listen(self, handlers: RemotingHandlers) -> None:
        lane = Lane("client")
        for code in TOLD:
            if code not in handlers.routes:
                handlers.add(code, _answer, None, lane)
        handlers.add_gate(lambda asked: self.heard.append(asked.ticket))


def _answer(asked: Request[None]) -> Answer | None:
    return None if asked.is_one_way else Answer()


async def attack_relays(place: Path, outcome: Outcome, *, codes: Iterable[int] = CODES) -> None:
    """The attempts and what was wrong go into the outcome."""
    for form_2 in (False, True):
        async with scene(place / f"form-{1 + form_2}", server_side_reset=False, **secured()) as stage:
            await _attack(
                stage, Credentials(ADMIN.access_key, ADMIN.secret_key, form_2=form_2), outcome, codes
            )


async def _attack(stage: Scene, own: Credentials, outcome: Outcome, codes: Iterable[int]) -> None:
    spy = Spy()
    attacker = add_user(stage.broker.access.book, "attacker", RULES)
    async with Dialer(credentials=attacker) as theirs, Dialer(credentials=own) as admins:
        spy.listen(theirs.handlers)
        talk, asking = Talk(theirs, stage.running), Talk(admins, stage.running)
        await _join(talk)
        await _provoke(stage, asking, talk, outcome)
        for code in codes:
            with suppress(KeroloxError):  # some are held, or close the connection
                await asking.dialer.call(
                    asking.address, code, None, body_of(code, OWN), fields=_about(code), timeout_s=ANSWER_S
                )
            _count(outcome)
            await _join(talk)
        await _judge(stage.running, spy, outcome)


async def _join(talk: Talk) -> None:
    """Be a consumer of the group and a producer of another, as a client of the id that requests name."""
    with suppress(KeroloxError):
        await talk.heartbeat(OWN.group, subscribed(OWN.topic))
        data = HeartbeatData(client_id=CLIENT, producer_data_set=(ProducerData(group_name=PRODUCERS),))
        await talk.dialer.call(talk.address, Code.HEART_BEAT, None, data.encode())


async def _provoke(stage: Scene, asking: Talk, talk: Talk, outcome: Outcome) -> None:
    """Have the broker say everything to the attacker that brokers say to clients."""
    sent = await talk.send(OWN.topic, b"a message")
    for queue_id in range(4):
        commit = UpdateOffsetRequest(
            consumer_group=OWN.group, topic=OWN.topic, queue_id=queue_id, commit_offset=0
        )
        await talk.dialer.call(talk.address, Code.UPDATE_CONSUMER_OFFSET, commit)
    reply = SendRequestV2(**send_fields(OWN.topic, {"REPLY_TO_CLIENT": CLIENT, "CORRELATION_ID": "1"}))
    message_id, group, topic = sent.fields["msgId"], OWN.group, OWN.topic
    headers: tuple[tuple[int, Header], ...] = (
        (Code.GET_CONSUMER_RUNNING_INFO, ConsumerRunningInfoRequest(consumer_group=group, client_id=CLIENT)),
        (
            Code.CONSUME_MESSAGE_DIRECTLY,
            ConsumeDirectlyRequest(consumer_group=group, client_id=CLIENT, msg_id=message_id, topic=topic),
        ),
        (Code.INVOKE_BROKER_TO_RESET_OFFSET, ResetOffsetRequest(topic=topic, group=group, is_force=True)),
        (Code.INVOKE_BROKER_TO_GET_CONSUMER_STATUS, ConsumerStatusRequest(topic=topic, group=group)),
        (Code.SEND_REPLY_MESSAGE_V2, reply),
    )
    for code, header in headers:
        _count(outcome)
        answer = await asking.dialer.call(asking.address, code, header, b"", timeout_s=10)
        assert answer.code == 0, f"{request_name(code)}: {answer.remark}"
    half = {"TRAN_MSG": "true", "PGROUP": PRODUCERS}
    assert (await asking.send(topic, b"half", half, sys_flag=4)).code == 0
    await stage.round(60)
    await asking.heartbeat(group, subscribed(topic))  # one member more


def _count(outcome: Outcome) -> None:
    outcome.attempts += 1
    outcome.by_attack["relayed requests"] += 1
    outcome.by_listener["broker"] += 1


def _about(code: int) -> dict[str, str]:
    """The fields of a request about the attacker's own, with its client where a client is named."""
    fields = fields_of(code, OWN)
    return fields | {name: CLIENT for name in ("clientId", "clientID", "clientAddr") if name in fields}


async def _judge(running: RunningBroker, spy: Spy, outcome: Outcome) -> None:
    codes = {command.code for command in spy.heard}
    for code in TOLD:
        if code not in codes:
            outcome.blame(f"relayed requests: no {request_name(code)} was told, so nothing is known of it")
    for command in spy.heard:
        name = f"relayed requests: {request_name(command.code)} ({command.code})"
        brought = sorted(CREDENTIAL_FIELDS & command.fields.keys())
        told = f"{command.fields}{command.remark}{command.body!r}"
        if brought or ADMIN.access_key in command.fields.values() or ADMIN.secret_key in told:
            outcome.blame(f"{name}: brings {', '.join(brought) or 'a name or a secret'}")
        if SIGNATURE in command.fields:
            await _replay(running, command, name, outcome)


async def _replay(running: RunningBroker, command: Command, name: str, outcome: Outcome) -> None:
    """Ask for something else with what was signed. The values stay in their order, and servers pass over
    names that they do not know."""
    async with Dialer() as nobody:
        for code in REPLAYED_AS:
            answer = await nobody.call(
                running.address, code, None, command.body, fields=dict(command.fields), timeout_s=10
            )
            if answer.code != ResponseCode.NO_PERMISSION:
                outcome.blame(f"{name}: its signature is good for {request_name(code)}")
