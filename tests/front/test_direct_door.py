"""The handlers of a broker answer a caller that came through another door than remoting's."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from kerolox.front.caller import Caller, CallerEvents
from kerolox.front.lanes import BODY_BYTES_MAX
from kerolox.front.requests import Answer
from kerolox.net.dialer import Dialer
from kerolox.net.handlers import RemotingHandlers
from kerolox.net.peer import Peer
from kerolox.protocol.bodies.clients import ConsumerConnection
from kerolox.protocol.bodies.heartbeat import HeartbeatData, ProducerData
from kerolox.protocol.bodies.members import ConsumerIds
from kerolox.protocol.codes import Language, RequestCode, ResponseCode
from kerolox.protocol.flags import PULL_SUBSCRIPTION, PULL_SUSPEND
from kerolox.protocol.headers.group import ConsumerConnectionRequest
from kerolox.protocol.headers.heartbeat import (
    ConsumerIdsChanged,
    ConsumerListRequest,
    ConsumerRunningInfoRequest,
)
from kerolox.protocol.headers.pull import PullAnswer, PullRequest
from kerolox.protocol.headers.reply import PushReply
from kerolox.protocol.headers.send import SendAnswer, SendRequest, SendRequestV2
from kerolox.protocol.headers.transaction import CheckTransaction, EndTransactionRequest
from kerolox.protocol.message_id import read_offset_id
from kerolox.protocol.record import decode_record, decode_records
from kerolox.testing.broker import RunningBroker, running_broker
from kerolox.testing.clock import ManualClock

from ..broker.group_kit import consumer, wants
from ..broker.talk import BORN_MS, Talk, send_fields, until
from .direct_door import DirectCaller, DirectDoor

HOLD_MS = 15_000


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(BORN_MS)


@pytest.fixture
async def running(tmp_path: Path, clock: ManualClock) -> AsyncIterator[RunningBroker]:
    # Members and connections live longer than the time a test lets pass.
    settings: dict[str, Any] = {"member_timeout_ms": 10**10, "idle_s_max": 10**7}
    async with running_broker(directory=tmp_path, clock=clock, **settings) as running:
        yield running


@pytest.fixture
def door(running: RunningBroker) -> DirectDoor:
    return DirectDoor(running.broker)


async def send(
    caller: DirectCaller, body: bytes = b"hello", properties: dict[str, str] | None = None, **fields: Any
) -> SendAnswer:
    header = SendRequestV2(**send_fields("T", properties, **fields))
    answer = await caller.ask(RequestCode.SEND_MESSAGE_V2, header, body)
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    assert isinstance(answer.header, SendAnswer)
    return answer.header


def pulling(offset: int = 0, **fields: Any) -> PullRequest:
    return PullRequest(
        **{
            "consumer_group": "g",
            "topic": "T",
            "queue_id": 0,
            "queue_offset": offset,
            "max_msg_nums": 32,
            "sys_flag": PULL_SUBSCRIPTION | PULL_SUSPEND,
            "commit_offset": 0,
            "suspend_timeout_millis": HOLD_MS,
            "sub_version": 0,
            "subscription": "*",
            "expression_type": "TAG",
            **fields,
        }
    )


async def heartbeat(caller: DirectCaller, client_id: str, *, produces: str | None = None) -> Answer:
    body = HeartbeatData(
        client_id=client_id,
        consumer_data_set=() if produces else (consumer("g", wants("T")),),
        producer_data_set=(ProducerData(group_name=produces),) if produces else (),
    )
    return await caller.ask(RequestCode.HEART_BEAT, None, body.encode())


async def held_pull(running: RunningBroker, caller: DirectCaller) -> asyncio.Future[Answer]:
    held = caller.begin(RequestCode.PULL_MESSAGE, pulling(1))
    await until(lambda: running.broker.consuming.waits.held == 1)
    assert not held.done()
    return held


async def test_both_doors_let_in_callers(door: DirectDoor) -> None:
    assert isinstance(door.caller(), Caller)
    assert isinstance(Peer(RemotingHandlers(), CallerEvents()), Caller)


async def test_a_message_is_sent_and_pulled(door: DirectDoor) -> None:
    sent = await send(door.caller(), b"by hand", {"KEYS": "k"})
    assert (sent.queue_id, sent.queue_offset) == (0, 0)
    answer = await door.caller().ask(RequestCode.PULL_MESSAGE, pulling())
    assert answer.code == ResponseCode.SUCCESS
    (message,) = decode_records(answer.whole_body)
    assert (message.body, message.properties["KEYS"]) == (b"by hand", "k")
    assert message.born_host[:4] == bytes((10, 9, 8, 7))
    assert isinstance(answer.header, PullAnswer)
    assert answer.header.next_begin_offset == 1


async def test_a_held_pull_is_woken_by_a_send(running: RunningBroker, door: DirectDoor) -> None:
    await send(door.caller())
    held = await held_pull(running, door.caller())
    await send(door.caller(), b"at last")
    answer = await asyncio.wait_for(held, 10)
    assert [message.body for message in decode_records(answer.whole_body)] == [b"at last"]


async def test_a_held_pull_ends_when_its_time_is_up(
    running: RunningBroker, door: DirectDoor, clock: ManualClock
) -> None:
    await send(door.caller())
    held = await held_pull(running, door.caller())
    await clock.advance(HOLD_MS / 1000 - 1)
    assert not held.done()
    await clock.advance(2)
    assert (await asyncio.wait_for(held, 10)).code == ResponseCode.PULL_NOT_FOUND


async def test_members_of_both_doors_are_one_group(running: RunningBroker, door: DirectDoor) -> None:
    one = door.caller(Language.GO, 400)
    assert (await heartbeat(one, "one")).code == ResponseCode.SUCCESS
    await until(lambda: one.told)
    one.told.clear()
    async with Dialer() as dialer:
        await Talk(dialer, running).heartbeat("g", wants("T"))
        await until(lambda: one.told)
        assert one.told[0][:2] == (
            RequestCode.NOTIFY_CONSUMER_IDS_CHANGED,
            ConsumerIdsChanged(consumer_group="g"),
        )
        answer = await one.ask(
            RequestCode.GET_CONSUMER_LIST_BY_GROUP, ConsumerListRequest(consumer_group="g")
        )
        assert set(ConsumerIds.decode(answer.whole_body).consumer_id_list) == {"one", "client-1"}
    answer = await one.ask(
        RequestCode.GET_CONSUMER_CONNECTION_LIST, ConsumerConnectionRequest(consumer_group="g")
    )
    found = {it.client_id: it for it in ConsumerConnection.decode(answer.whole_body).connection_set}["one"]
    assert (found.client_addr, found.language, found.version) == (one.address, "GO", 400)


async def test_a_transaction_is_checked_back_with_its_producer(
    running: RunningBroker, door: DirectDoor, clock: ManualClock
) -> None:
    producer = door.caller()
    await heartbeat(producer, "payer", produces="payers")
    half = await send(
        producer,
        b"paid",
        {"TRAN_MSG": "true", "PGROUP": "payers"},
        producer_group="payers",
        sys_flag=4,
        born_timestamp=clock.wall_ms(),
    )
    check_backs = running.broker.transactions.check_backs
    for _ in range(10):
        rounds = check_backs.rounds
        await clock.advance(30)
        await until(lambda: check_backs.rounds > rounds)  # noqa: B023 — it is awaited in this round
        if producer.told:
            break
    asked = producer.told[0]
    assert asked.code == RequestCode.CHECK_TRANSACTION_STATE
    assert isinstance(asked.header, CheckTransaction)
    assert decode_record(asked.body).body == b"paid"
    assert asked.header.offset_msg_id is not None
    assert read_offset_id(asked.header.offset_msg_id).physical_offset == asked.header.commit_log_offset

    pulled = await producer.ask(RequestCode.PULL_MESSAGE, pulling(sys_flag=PULL_SUBSCRIPTION))
    assert pulled.code != ResponseCode.SUCCESS  # not yet
    ended = EndTransactionRequest(
        producer_group="payers",
        tran_state_table_offset=asked.header.tran_state_table_offset,
        commit_log_offset=asked.header.commit_log_offset,
        commit_or_rollback=8,
        from_transaction_check=True,
        msg_id=half.msg_id,
    )
    producer.say(RequestCode.END_TRANSACTION, ended)
    pulled = await producer.ask(RequestCode.PULL_MESSAGE, pulling())
    assert [message.body for message in decode_records(pulled.whole_body)] == [b"paid"]


async def test_a_reply_is_brought_to_the_caller_that_asked(door: DirectDoor) -> None:
    asker = door.caller()
    await heartbeat(asker, "asker", produces="askers")
    header = SendRequest(**send_fields("T", {"REPLY_TO_CLIENT": "asker"}))
    answer = await door.caller().ask(RequestCode.SEND_REPLY_MESSAGE, header, b"yes")
    assert answer.code == ResponseCode.SUCCESS, answer.remark
    (told,) = asker.told
    assert (told.code, told.body) == (RequestCode.PUSH_REPLY_MESSAGE_TO_CLIENT, b"yes")
    assert isinstance(told.header, PushReply)
    asker.reply = lambda _: Answer(code=ResponseCode.SYSTEM_ERROR, remark="no room")
    answer = await door.caller().ask(RequestCode.SEND_REPLY_MESSAGE, header, b"yes")
    assert answer.code == ResponseCode.SYSTEM_ERROR
    assert "no room" in (answer.remark or "")


async def test_a_question_is_passed_on_to_a_member(door: DirectDoor) -> None:
    member = door.caller()
    await heartbeat(member, "one")
    member.reply = lambda _: Answer(remark="from the member", body=b"{}")
    asked = ConsumerRunningInfoRequest(consumer_group="g", client_id="one", jstack_enable=True)
    answer = await door.caller().ask(RequestCode.GET_CONSUMER_RUNNING_INFO, asked)
    assert (answer.code, answer.remark, answer.whole_body) == (0, "from the member", b"{}")
    assert member.told[-1][:2] == (RequestCode.GET_CONSUMER_RUNNING_INFO, asked)


async def test_a_caller_that_goes_leaves_nothing_behind(running: RunningBroker, door: DirectDoor) -> None:
    staying, going = door.caller(), door.caller()
    await send(staying)
    await heartbeat(staying, "staying")
    await heartbeat(going, "going")
    await heartbeat(going, "going", produces="p")
    held = await held_pull(running, going)
    await until(lambda: staying.told)
    staying.told.clear()

    going.close("it has seen enough")
    members = running.broker.membership.members
    assert running.broker.consuming.waits.held == 0
    assert members.consumers["g"].client_ids == ("staying",)
    assert members.producer("going") is None
    assert members.pick_producer("p") is None
    await until(lambda: staying.told)  # it divides the queues anew
    assert staying.told[0].code == RequestCode.NOTIFY_CONSUMER_IDS_CHANGED
    await send(staying, b"for nobody")
    assert not held.done()


async def test_refusals_are_those_of_every_door(door: DirectDoor, clock: ManualClock) -> None:
    caller = door.caller()
    unknown = await caller.ask(9999)
    assert unknown.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED
    long = await caller.ask(RequestCode.HEART_BEAT, None, bytes(BODY_BYTES_MAX + 1))
    assert long.code == ResponseCode.SYSTEM_ERROR
    assert f"the body has {BODY_BYTES_MAX + 1} bytes" in (long.remark or "")
    old = await caller.ask(RequestCode.PULL_MESSAGE, pulling(), age_s=60)
    assert old.code == ResponseCode.SYSTEM_BUSY
    assert "[TIMEOUT_CLEAN_QUEUE]" in (old.remark or "")
    wrong = await caller.ask(RequestCode.PULL_MESSAGE, ConsumerListRequest(consumer_group="g"))
    assert wrong.code == ResponseCode.INVALID_PARAMETER
    nowhere = await caller.ask(RequestCode.PULL_MESSAGE, pulling(topic="not-there"))
    assert nowhere.code == ResponseCode.TOPIC_NOT_EXIST


async def test_gates_and_figures_see_requests_of_every_door(running: RunningBroker, door: DirectDoor) -> None:
    seen: list[tuple[str, int]] = []
    answered: list[tuple[int, int]] = []
    handlers = running.broker.handlers
    handlers.add_gate(lambda request: seen.append((request.caller.address, request.code)))
    handlers.answered = lambda request, answer: answered.append((request.code, answer.code))
    caller = door.caller()
    await send(caller)
    assert seen == [(caller.address, RequestCode.SEND_MESSAGE_V2)]
    assert answered == [(RequestCode.SEND_MESSAGE_V2, ResponseCode.SUCCESS)]
