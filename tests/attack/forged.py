"""Records in bodies, and identifiers of messages of others: naming them reads nothing and changes nothing.

A user with rights to one topic sends bodies that hold a record as it would lie in the log, in every form in
which messages come. It names the place of these bytes in every request that takes one: as an offset, as the
id of a message, as the end of a transaction. It also names places of messages of others, handles and keys.
Then the others' transaction is committed and their timer message comes due: both have to arrive.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from kerolox.broker.later.timer_sends import make_handle
from kerolox.net.signing import Credentials
from kerolox.protocol import reserved
from kerolox.protocol.batch import encode_batch
from kerolox.protocol.bodies.heartbeat import HeartbeatData, ProducerData
from kerolox.protocol.codes import RequestCode as Code
from kerolox.protocol.codes import ResponseCode, request_name
from kerolox.protocol.command import Command
from kerolox.protocol.header import Header
from kerolox.protocol.headers.heartbeat import ConsumeDirectlyRequest
from kerolox.protocol.headers.query import ViewMessageRequest
from kerolox.protocol.headers.send import RecallRequest, SendBackRequest
from kerolox.protocol.headers.transaction import EndTransactionRequest, ResumeCheckRequest
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.message_id import offset_id, read_offset_id
from kerolox.protocol.properties import pack
from kerolox.protocol.record import encode_message
from kerolox.testing.access import ADMIN, secured
from kerolox.testing.clock import ManualClock
from tests.access.users_kit import add_user
from tests.broker.talk import BORN_MS, subscribed, until
from tests.broker.transaction_kit import COMMIT, GROUP, ROLLBACK, Half, Producer, Scene, scene
from tests.rig.ports import free_ports

from .relayed import Spy
from .story import Outcome
from .world import SECRET, VICTIM

OWN = "other"  # topic and group of the attacker
RULES = {f"Topic:{OWN}": "Pub,Sub", f"Group:{OWN}": "Sub"}
HEAD_BYTES = 88  # of a record, up to its body
LOCAL = bytes(4) + (10911).to_bytes(4)
UNIQUE = "7F000001162E18B4AAC28E2F6D2A0000"
LATER_S = 600
FORMS = ("a message", "a message of the first form", "a batch", "an entry of DLedger in a body")


def ledger() -> dict[str, Any]:
    """Options of a broker that keeps its log in entries of DLedger."""
    return {
        "ledger": True, "ledger_group": "broker-a", "ledger_self_id": "n0",
        "ledger_peers": f"n0-127.0.0.1:{free_ports(1)[0]}",
    }  # fmt: skip


@dataclass
class _Attack:
    """A broker with an attacker, and what it may not touch."""

    stage: Scene
    outcome: Outcome
    attacker: Producer
    admin: Producer
    half: Half
    secret_at: int
    timer_at: int

    @property
    def end(self) -> int:
        return self.stage.broker.store.log.max_offset


async def attack_records(place: Path, outcome: Outcome, **options: Any) -> None:
    """``options`` are those of the broker. The attempts and what was wrong go into the outcome."""
    spy = Spy()
    async with scene(place, ManualClock(BORN_MS), recall=True, **secured(), **options) as stage:
        if stage.broker.dledger is not None:
            await stage.clock.advance(5)
            await until(lambda: stage.broker.leadership.leads and not stage.broker.store.state.obstacles)
        own = add_user(stage.broker.access.book, OWN, RULES)
        attacker, admin = _producer(stage, own, spy), _producer(stage, ADMIN)
        async with attacker.dialer, admin.dialer:
            attack = await _prepared(stage, outcome, attacker, admin)
            for form, claim in itertools.product(FORMS, _claims(attack)):
                await _name(attack, f"{form}: {claim.topic}", await _forge(attack, form, claim), claim)
            for at in _places(attack):
                await _name(
                    attack, "a place of others", at, StoredMessage(OWN, b"", 0, attack.half.queue_offset, 0)
                )
            await _take_back(attack)
            await _see_what_came_of_it(attack, spy)


def _producer(stage: Scene, own: Credentials, spy: Spy | None = None) -> Producer:
    made = Producer(stage.running, f"{own.access_key}-1", own=own)
    if spy is not None:
        spy.listen(made.dialer.handlers)
    return made


async def _prepared(stage: Scene, outcome: Outcome, attacker: Producer, admin: Producer) -> _Attack:
    """What is there of others: a message, a half message, one that comes later."""
    data = HeartbeatData(client_id="client-1", producer_data_set=(ProducerData(group_name=GROUP),))
    await attacker.heartbeat(OWN, subscribed(OWN), subscribed(f"{reserved.RETRY_PREFIX}{OWN}"))
    await attacker.dialer.call(attacker.address, Code.HEART_BEAT, None, data.encode())
    secret_at = _place(await _sent(admin, VICTIM.topic, SECRET))
    await _sent(attacker, OWN, b"first")
    half = await admin.prepare(SECRET, topic=VICTIM.topic)
    later = {"UNIQ_KEY": UNIQUE, "TIMER_DELIVER_MS": str(BORN_MS + LATER_S * 1000)}
    timer_at = _place(await _sent(admin, VICTIM.topic, SECRET, later))
    return _Attack(stage, outcome, attacker, admin, half, secret_at, timer_at)


async def _sent(talk: Producer, topic: str, body: bytes, properties: dict[str, str] | None = None) -> Command:
    answer = await talk.send(topic, body, properties)
    assert answer.code == 0, answer.remark
    return answer


def _place(answer: Command) -> int:
    return read_offset_id(answer.fields["msgId"].split(",")[0]).physical_offset


# --- records in bodies -----------------------------------------------------------------------------------


def _claims(attack: _Attack) -> Iterator[StoredMessage]:
    """What the bytes in a body say they are."""
    store = attack.stage.broker.store
    mine = store.queues.max_offset(OWN, 0)
    for topic in (OWN, VICTIM.topic, reserved.TIMER_TOPIC, f"{reserved.RETRY_PREFIX}{OWN}"):
        # A message that is there, the one that holds these bytes, and ones to come.
        for queue_offset in (0, mine, mine + 1, mine + 1000):
            yield StoredMessage(topic, b"forged", 0, queue_offset, 0)
    for real, queue_offset in itertools.product((OWN, VICTIM.topic), (attack.half.queue_offset, 1, 1000)):
        told = {"REAL_TOPIC": real, "REAL_QID": "0", "PGROUP": GROUP, "TRAN_MSG": "true"}
        yield StoredMessage(reserved.HALF_TOPIC, b"forged", 0, queue_offset, 0, pack(told))


async def _forge(attack: _Attack, form: str, claim: StoredMessage) -> int:
    """Send the record in a body; returns the place where it lies."""
    ledger = attack.stage.broker.store.ledger is not None
    before = (48 if ledger else 0) + HEAD_BYTES + (48 if form == FORMS[3] else 0)
    at = attack.end + before
    record = encode_message(msgspec.structs.replace(claim, physical_offset=at, store_host=LOCAL))
    talk = attack.attacker
    if form == FORMS[0]:
        answer = await talk.send(OWN, record)
    elif form == FORMS[1]:
        answer = await talk.send_v1(OWN, record)
    elif form == FORMS[2]:
        answer = await talk.send_batch(OWN, encode_batch([(0, record, b""), (0, b"second", b"")]))
    else:
        size = 48 + len(record)
        entry = b"".join(
            number.to_bytes(length)
            for number, length in (
                (1, 4), (size, 4), (at, 8), (1, 8), (at - 48, 8), (0, 4), (0, 4), (0, 4), (len(record), 4),
            )
        )  # fmt: skip
        answer = await talk.send(OWN, entry + record)
    assert answer.code == 0, answer.remark
    log = attack.stage.broker.store.log
    assert log.read(at, len(record)) == record, "the record does not lie where it says it does"
    await _sent(talk, OWN, b"the next one")  # takes the offset that may have been named in advance
    return at


# --- places ----------------------------------------------------------------------------------------------


def _places(attack: _Attack) -> Iterator[int]:
    for at in (attack.secret_at, attack.half.place, attack.timer_at):
        yield from (at, at + 1, at + HEAD_BYTES, at - 48)
    yield from (-1, 0, 4, attack.end - 1, attack.end, attack.end + HEAD_BYTES, 2**62)


def _requests(at: int, claim: StoredMessage) -> Iterator[tuple[int, Header]]:
    """Every request that takes a place, or an id that holds one."""
    for topic in (None, OWN):
        yield Code.VIEW_MESSAGE_BY_ID, ViewMessageRequest(offset=at, topic=topic)
    for level in (1, -1):
        yield Code.CONSUMER_SEND_MSG_BACK, SendBackRequest(offset=at, group=OWN, delay_level=level)
    for end, topic in itertools.product((ROLLBACK, COMMIT), (None, OWN)):
        yield (
            Code.END_TRANSACTION,
            EndTransactionRequest(
                producer_group=GROUP,
                tran_state_table_offset=claim.queue_offset,
                commit_log_offset=at,
                commit_or_rollback=end,
                from_transaction_check=False,
                msg_id="X",
                topic=topic,
            ),
        )
    if at >= 0:
        message_id = offset_id(LOCAL, at)
        for topic in (None, OWN):
            yield (
                Code.CONSUME_MESSAGE_DIRECTLY,
                ConsumeDirectlyRequest(
                    consumer_group=OWN, client_id="client-1", msg_id=message_id, topic=topic
                ),
            )
        yield Code.RESUME_CHECK_HALF_MESSAGE, ResumeCheckRequest(msg_id=message_id)


async def _name(attack: _Attack, what: str, at: int, claim: StoredMessage) -> None:
    for code, header in _requests(at, claim):
        before = attack.end
        answer = await attack.attacker.dialer.call(attack.attacker.address, code, header, timeout_s=10)
        _count(attack.outcome, "forged records")
        where = f"{what} at {at}: {request_name(code)} ({code})"
        if SECRET in answer.body:
            attack.outcome.blame(f"{where}: shows the message")
        if answer.code != ResponseCode.NO_PERMISSION or answer.body:
            attack.outcome.blame(f"{where}: answered with {answer.code}: {(answer.remark or '')[:200]}")
        if attack.end != before:
            attack.outcome.blame(f"{where}: log changed")


def _count(outcome: Outcome, attack: str) -> None:
    outcome.attempts += 1
    outcome.by_attack[attack] += 1
    outcome.by_listener["broker"] += 1


# --- keys and handles ------------------------------------------------------------------------------------


async def _take_back(attack: _Attack) -> None:
    """Try to recall the timer message of others, by its handle and by deletions."""
    talk, due_ms = attack.attacker, BORN_MS + LATER_S * 1000
    name = attack.stage.broker.options.broker_name
    for of_topic, asked in ((VICTIM.topic, OWN), (OWN, OWN), (VICTIM.topic, VICTIM.topic)):
        for time_ms in (due_ms - 1, due_ms, due_ms + 1):
            handle = make_handle(of_topic, name, time_ms, UNIQUE)
            header = RecallRequest(producer_group="p", topic=asked, recall_handle=handle)
            await talk.dialer.call(talk.address, Code.RECALL_MESSAGE, header, timeout_s=10)
            _count(attack.outcome, "recalls")
    for key in (
        f"{VICTIM.topic}+{UNIQUE}",
        UNIQUE,
        f"{OWN}+{VICTIM.topic}+{UNIQUE}",
        f"+{VICTIM.topic}+{UNIQUE}",
    ):
        for when in (
            {"TIMER_DELIVER_MS": str(due_ms)}, {"TIMER_DELAY_SEC": str(LATER_S)},
            {"TIMER_OUT_MS": str(due_ms - 1000)}, {"DELAY": "1"},
            {"TIMER_DELIVER_MS": str(due_ms), "REAL_TOPIC": VICTIM.topic, "REAL_QID": "0"},
        ):  # fmt: skip
            properties = {"TIMER_DEL_UNIQKEY": key, "UNIQ_KEY": UNIQUE, **when}
            await talk.send(OWN, b"0", properties)
            await talk.send_v1(OWN, b"0", properties)
            await talk.send_batch(OWN, encode_batch([(0, b"0", pack(properties))]))
            prepared = await talk.send(
                OWN, b"0", {"TRAN_MSG": "true", "PGROUP": GROUP, **properties}, sys_flag=4
            )
            if prepared.code == 0:
                await talk.end(Half(prepared), COMMIT)
            for _ in range(4):
                _count(attack.outcome, "recalls")


async def _see_what_came_of_it(attack: _Attack, spy: Spy) -> None:
    """The transaction is not ended, and is committed; the timer message comes; nothing of it was shown."""
    stage, outcome, admin = attack.stage, attack.outcome, attack.admin
    await stage.round(60)  # producers of the group are asked: the attacker says it is one of them
    if (await admin.end(attack.half, COMMIT)).code != 0:
        outcome.blame("the transaction of others cannot be committed")
    await until(lambda: not stage.broker.later.timers.arrivals.behind)
    await stage.clock.advance(LATER_S)
    store = stage.broker.store
    try:
        await until(lambda: sum(store.queues.max_offset(VICTIM.topic, queue) for queue in range(4)) >= 3)
    except AssertionError:
        outcome.blame("a timer message or a transaction of others did not arrive")
    bodies = [message.body for message in await admin.messages(VICTIM.topic)]
    if bodies != [SECRET] * 3:
        outcome.blame(f"in the topic of others are {len(bodies)} messages, and not the three of theirs")
    if any(SECRET in command.body for command in spy.heard):
        outcome.blame("a message of others was brought to the attacker")
