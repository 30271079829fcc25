"""Requests of consumers to brokers about queues: offsets, locks, members, and messages to send back."""

from __future__ import annotations

from collections.abc import Awaitable, Iterable
from typing import TYPE_CHECKING

from kerolox.client.calls.offsets import (
    PROGRESS_CODES,
    ask_commit,
    ask_end,
    ask_first,
    ask_progress,
    read_edge,
    read_progress,
)
from kerolox.client.calls.pull_answers import PULL_CODES
from kerolox.client.calls.routes import MASTER
from kerolox.client.calls.steps import Ask, awaited
from kerolox.client.calls.time_search import time_search
from kerolox.client.errors import failure
from kerolox.client.messages import Queue, Received
from kerolox.protocol.bodies.members import BoundLockRequest, ConsumerIds, LockAnswer, LockRequest
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.command import Command
from kerolox.protocol.headers.heartbeat import ConsumerListRequest
from kerolox.protocol.headers.send import SendBackRequest

if TYPE_CHECKING:
    from kerolox.client.cluster.client import Client
    from kerolox.net.peer import Peer

OFFSET_TIMEOUT_S = 5.0
LOCK_TIMEOUT_S = 1.0


class QueueCalls:
    """Requests about queues, over a client's connections."""

    def __init__(self, client: Client, group: str) -> None:
        self._client = client
        self._group = group

    def _master(self, queue: Queue) -> str:
        return self._client.address(queue.broker, MASTER, exact=True)

    def _any(self, queue: Queue) -> str:
        return self._client.address(queue.broker, MASTER)

    def listener(self, queue: Queue) -> Peer | None:
        """Return the connection over which progress is saved. A crashed broker may have lost some."""
        address = self._client.routes.known.address(queue.broker)
        return None if address is None else self._client.ready_peer(address)

    # --- offsets --------------------------------------------------------------------------------------

    async def stored_offset(self, queue: Queue, *, zero_if_young: bool = True) -> int | None:
        """Return the group's progress at the broker; None without progress.

        ``zero_if_young``: for a queue that still has all its messages, the broker answers 0 to a new group,
        so that the first messages of a new topic are not missed. A start by time does not need this.
        """
        asked = ask_progress(*queue, self._group, zero_if_young=zero_if_young)
        answer = await self._client.ask(
            self._any(queue),
            asked.code,
            asked.header,
            ok=PROGRESS_CODES,
            timeout_s=OFFSET_TIMEOUT_S,
            vip=True,
        )
        return read_progress(answer)

    async def save_offset(self, queue: Queue, offset: int) -> None:
        """Save the progress at the broker, and wait for the response."""
        commit = ask_commit(*queue, self._group, offset)
        address = self._any(queue)
        await self._client.ask(address, commit.code, commit.header, timeout_s=OFFSET_TIMEOUT_S, vip=True)

    async def max_offset(self, queue: Queue) -> int:
        """Return the offset of the next message."""
        asked = ask_end(*queue)
        return read_edge(await self._client.ask(self._any(queue), asked.code, asked.header, vip=True))

    async def min_offset(self, queue: Queue) -> int:
        """Return the first stored offset."""
        asked = ask_first(*queue)
        return read_edge(await self._client.ask(self._any(queue), asked.code, asked.header, vip=True))

    async def offset_at(self, queue: Queue, time_ms: int) -> int:
        """Return the offset of the first message stored at or after ``time_ms``."""

        def ask(asked: Ask) -> Awaitable[Command]:
            vip = asked.code != RequestCode.PULL_MESSAGE  # that port serves no pulls
            return self._client.ask(self._any(queue), asked.code, asked.header, ok=PULL_CODES, vip=vip)

        return await awaited(time_search(*queue, time_ms, self._group), ask)

    # --- the group ------------------------------------------------------------------------------------

    async def members(self, topic: str) -> list[str]:
        """Return the client ids of the group, sorted, from any broker of the topic."""
        route = await self._client.routes.find(topic)
        error: Exception | None = None
        for addresses in route.brokers.values():
            for _, address in sorted(addresses.items()):
                try:
                    answer = await self._client.ask(
                        address,
                        RequestCode.GET_CONSUMER_LIST_BY_GROUP,
                        ConsumerListRequest(consumer_group=self._group),
                        vip=True,
                    )
                except Exception as failed:
                    error = failed
                    continue
                return sorted(ConsumerIds.decode(answer.body).consumer_id_list)
        if error is not None:
            raise error
        return []

    # --- locks ----------------------------------------------------------------------------------------

    async def lock(self, broker: str, queues: Iterable[Queue]) -> set[Queue]:
        """Lock queues of one broker for a minute, or until the connection closes; return the locked."""
        wanted = BoundLockRequest(
            client_id=self._client.client_id,
            consumer_group=self._group,
            mq_set=frozenset(queue.wire() for queue in queues),
            until_disconnected=True,
        )
        answer = await self._client.ask(
            self._client.address(broker, MASTER, exact=True),
            RequestCode.LOCK_BATCH_MQ,
            body=wanted.encode(),
            timeout_s=LOCK_TIMEOUT_S,
            vip=True,
        )
        return {Queue.of(queue) for queue in LockAnswer.decode(answer.body).lock_ok_mq_set}

    async def unlock(self, broker: str, queues: Iterable[Queue]) -> None:
        """Release the locks of queues."""
        wanted = LockRequest(
            client_id=self._client.client_id,
            consumer_group=self._group,
            mq_set=frozenset(queue.wire() for queue in queues),
        )
        await self._client.ask(
            self._client.address(broker, MASTER, exact=True),
            RequestCode.UNLOCK_BATCH_MQ,
            body=wanted.encode(),
            timeout_s=LOCK_TIMEOUT_S,
            vip=True,
        )

    # --- messages to send back --------------------------------------------------------------------------

    async def send_back(
        self, message: Received, topic: str, delay_level: int, attempts_max: int, reason: str = ""
    ) -> None:
        """Send a message back for a later retry. ``topic``: the wire name of its original topic."""
        asked = SendBackRequest(
            offset=message.physical_offset,
            group=self._group,
            delay_level=delay_level,
            origin_msg_id=message.msg_id,
            origin_topic=topic,
            max_reconsume_times=attempts_max,
            unit_mode=self._client.options.unit_mode,
            broker_name=message.broker,
            reason=reason or None,
        )
        address = self._client.address(message.broker, MASTER, exact=True)
        code = RequestCode.CONSUMER_SEND_MSG_BACK
        answer = await self._client.ask(address, code, asked, timeout_s=OFFSET_TIMEOUT_S, vip=True)
        if answer.code:
            raise failure(answer, address=address, code=code)
