"""Requests of consumers that pop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

from kerolox.protocol.bodies.pop import BatchAckRequest
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import Command
from kerolox.protocol.headers.pop import (
    AckRequest,
    ChangeInvisibleTimeRequest,
    PopRequest,
)
from kerolox.protocol.message import StoredMessage
from kerolox.protocol.pop.answer_texts import read_message_offsets, read_start_offsets
from kerolox.protocol.pop.handle import Handle
from kerolox.protocol.pop.retry_topics import real_topic
from kerolox.protocol.record import decode_records
from kerolox.testing.broker import RunningBroker
from kerolox.testing.clock import ManualClock
from tests.broker.talk import Talk

GROUP = "billing"
TOPIC = "orders"


class Popped:
    """One message, with all that is needed to acknowledge it."""

    def __init__(self, message: StoredMessage, handle: Handle, topic: str, group: str) -> None:
        self.message = message
        self.body = message.body.decode()
        self.handle = handle
        self.topic = real_topic(topic, group, handle.retry)
        self.group = group


class Popper(Talk):
    """One consumer of one group. ``now_ms`` is its clock."""

    async def pop(
        self, topic: str = TOPIC, group: str = GROUP, *, timeout_s: float = 20.0, **fields: Any
    ) -> Command:
        born = self.running.broker.clock.wall_ms()
        header = PopRequest(
            **{
                "consumer_group": group,
                "topic": topic,
                "queue_id": -1,
                "max_msg_nums": 32,
                "invisible_time": 60_000,
                "poll_time": 0,
                "born_time": born,
                "init_mode": 0,
                "exp_type": "TAG",
                "exp": "*",
                **fields,
            }
        )
        return await self.dialer.call(self.address, RequestCode.POP_MESSAGE, header, timeout_s=timeout_s)

    async def take(self, topic: str = TOPIC, group: str = GROUP, **fields: Any) -> list[Popped]:
        """Pop, and return the messages as a client computes them."""
        answer = await self.pop(topic, group, **fields)
        return popped(answer, topic, group) if answer.code == 0 else []

    async def ack(self, one: Popped, **fields: Any) -> Command:
        header = AckRequest(
            **{
                "consumer_group": one.group,
                "topic": one.topic,
                "queue_id": one.handle.queue_id,
                "extra_info": str(one.handle),
                "offset": one.handle.offset,
                **fields,
            }
        )
        return await self.dialer.call(self.address, RequestCode.ACK_MESSAGE, header)

    async def batch_ack(self, batch: BatchAckRequest) -> Command:
        return await self.dialer.call(self.address, RequestCode.BATCH_ACK_MESSAGE, None, batch.encode())

    async def change(self, one: Popped, invisible_ms: int, **fields: Any) -> Command:
        header = ChangeInvisibleTimeRequest(
            **{
                "consumer_group": one.group,
                "topic": one.topic,
                "queue_id": one.handle.queue_id,
                "extra_info": str(one.handle),
                "offset": one.handle.offset,
                "invisible_time": invisible_ms,
                **fields,
            }
        )
        return await self.dialer.call(self.address, RequestCode.CHANGE_MESSAGE_INVISIBLETIME, header)

    async def renew(self, one: Popped, invisible_ms: int) -> Popped:
        """Change the invisible time, and return the message with its new handle."""
        answer = await self.change(one, invisible_ms)
        assert answer.code == 0, answer.remark
        fields, old = answer.fields, one.handle
        new = Handle(
            old.offset, int(fields["popTime"]), int(fields["invisibleTime"]), int(fields["reviveQid"]),
            old.retry, old.broker_name, old.queue_id, old.offset,
        )  # fmt: skip
        topic = one.message.topic
        return Popped(one.message, new, topic, one.group)


def popped(answer: Command, topic: str, group: str) -> list[Popped]:
    """Return the messages of an answer as Java's client does: by the strings in its header."""
    fields = answer.fields
    starts = read_start_offsets(fields.get("startOffsetInfo"))
    offsets = read_message_offsets(fields.get("msgOffsetInfo"))
    found: list[Popped] = []
    for message in decode_records(answer.body):
        given = message.properties.get("POP_CK")
        if given is not None:
            handle = Handle.parse(given)
        else:
            assert message.topic == topic
            key = ("0", str(message.queue_id))
            assert message.queue_offset in offsets[key]
            handle = Handle(
                starts[key], int(fields["popTime"]), int(fields["invisibleTime"]), int(fields["reviveQid"]),
                "0", "broker-a", message.queue_id, message.queue_offset,
            )  # fmt: skip
        found.append(Popped(message, handle, topic, group))
    return found


def committed(running: RunningBroker, queue_id: int = 0, topic: str = TOPIC, group: str = GROUP) -> int:
    return running.broker.tables.offsets.offset(topic, group, queue_id)


def out(running: RunningBroker) -> int:
    """Return the number of messages that are out, of all groups."""
    return sum(queue.out for queue in running.broker.popping.outstanding.queues.values())


async def advance_until(clock: ManualClock, condition: Callable[[], object], step_s: float = 0.5) -> None:
    """Move the clock until something is so: flushes and timers need several steps."""
    for _ in range(400):
        if condition():
            return
        await clock.advance(step_s)
        await asyncio.sleep(0.02)
    raise AssertionError("it did not come to pass in time")
