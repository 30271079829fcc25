"""Message trace: records of what was sent and consumed, in RocketMQ's format, in a topic of their own.

A record is fields separated by ``\\x01`` and ended by ``\\x02``. Records are collected and go out together,
ten at a time or after five seconds; when the trace topic cannot keep up they are dropped, and counted.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Iterable
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from kerolox.client.messages import Message
from kerolox.client.options import ProducerOptions
from kerolox.client.send.sending import Sender
from kerolox.errors import KeroloxError

if TYPE_CHECKING:
    import asyncio

    from kerolox.client.cluster.client import Client
    from kerolox.clock import TimerHandle

log = logging.getLogger(__name__)

RECORDS_AT_ONCE: Final = 10
WAITING_MAX: Final = 2048
FLUSH_S: Final = 5.0
SEND_TIMEOUT_S: Final = 5.0
MESSAGE_BYTES_MAX: Final = 128_000
NULL: Final = "null"  # Java's text of a missing value

_numbers = itertools.count()


class TraceKind(IntEnum):
    """Kind of a sent message."""

    NORMAL = 0
    HALF = 1
    COMMIT = 2
    DELAY = 3
    ORDER = 4


class ConsumeOutcome(IntEnum):
    """How consuming went."""

    SUCCESS = 0
    TIME_OUT = 1
    EXCEPTION = 2
    RETURN_NULL = 3
    FAILED = 4


class Tracer:
    """Collects records for one producer or consumer, and sends them."""

    def __init__(self, client: Client, group: str, topic: str, role: str = "PRODUCE") -> None:
        """``role``: PRODUCE or CONSUME."""
        self.topic = topic
        self.group = group  # as users know it
        self.dropped = 0
        self._client = client
        options = ProducerOptions(
            timeout_s=SEND_TIMEOUT_S, message_bytes_max=MESSAGE_BYTES_MAX, avoid_slow_brokers=False
        )
        self._sender = Sender(client, f"_INNER_TRACE_PRODUCER-{group}-{role}-{next(_numbers)}", options)
        self._waiting: list[tuple[str, str, Iterable[str]]] = []  # topic, record, keys
        self._timer: TimerHandle | None = None
        self._sending: set[asyncio.Task[None]] = set()

    # --- records ------------------------------------------------------------------------------

    def sent(
        self,
        topic: str,
        message: Message,
        msg_id: str,
        offset_msg_id: str,
        *,
        kind: TraceKind,
        began_ms: int,
        cost_ms: int,
        address: str,
        body_bytes: int,
        region: str,
        success: bool,
    ) -> None:
        """A message was sent."""
        keys = message.keys if isinstance(message.keys, str) else " ".join(message.keys)
        self._append(
            topic,
            (
                "Pub", began_ms, region, self.group, topic, msg_id, message.tags or NULL, keys or NULL,
                address, body_bytes, cost_ms, int(kind), offset_msg_id, _word(success),
            ),
            [msg_id, *keys.split()],
        )  # fmt: skip

    def ended_transaction(
        self,
        topic: str,
        msg_id: str,
        tags: str,
        keys: str,
        *,
        address: str,
        transaction_id: str,
        state: str,
        from_check: bool,
        region: str = "DefaultRegion",
    ) -> None:
        """A transaction ended. ``state``: COMMIT_MESSAGE, ROLLBACK_MESSAGE or UNKNOW."""
        self._append(
            topic,
            (
                "EndTransaction", self._client.clock.wall_ms(), region, self.group, topic, msg_id,
                tags or NULL, keys or NULL, address, int(TraceKind.COMMIT), transaction_id, state,
                _word(from_check),
            ),
            [msg_id, *keys.split()],
        )  # fmt: skip

    def recalled(self, topic: str, msg_id: str, *, success: bool, region: str = "DefaultRegion") -> None:
        """A delayed message was taken back."""
        now_ms = self._client.clock.wall_ms()
        record = ("Recall", now_ms, region, self.group, topic, msg_id, _word(success))
        self._append(topic, record, [msg_id])

    def consuming(
        self, topic: str, msg_id: str, keys: str, request_id: str, *, retry_times: int, region: str
    ) -> None:
        """A message is about to be consumed. The same ``request_id`` goes to :meth:`consumed`."""
        now_ms = self._client.clock.wall_ms()
        record = ("SubBefore", now_ms, region, self.group, request_id, msg_id, retry_times, keys or NULL)
        self._append(topic, record, [msg_id, *keys.split()])

    def consumed(
        self, topic: str, msg_id: str, keys: str, request_id: str, *, cost_ms: int, outcome: ConsumeOutcome
    ) -> None:
        """It was consumed."""
        now_ms = self._client.clock.wall_ms()
        success = _word(outcome is ConsumeOutcome.SUCCESS)
        record = (
            "SubAfter", request_id, msg_id, cost_ms, success, keys or NULL, int(outcome), now_ms, self.group,
        )  # fmt: skip
        self._append(topic, record, [msg_id, *keys.split()])

    # --- sending ------------------------------------------------------------------------------

    def _append(self, topic: str, fields: Iterable[object], keys: Iterable[str]) -> None:
        if topic.startswith(self.topic):
            return  # the trace itself is not traced
        if len(self._waiting) >= WAITING_MAX:
            self.dropped += 1
            if self.dropped & (self.dropped - 1) == 0:
                log.warning("trace_dropped records=%d next='the trace topic is too slow'", self.dropped)
            return
        self._waiting.append((topic, "\x01".join(map(str, fields)) + "\x02", keys))
        if len(self._waiting) >= RECORDS_AT_ONCE:
            self.flush()
        elif self._timer is None:
            self._timer = self._client.clock.call_later(FLUSH_S, self.flush)

    def flush(self) -> None:
        """Send what was collected, in the background."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if len(self._sending) >= WAITING_MAX // RECORDS_AT_ONCE:
            return  # slow: collect on, and drop in the end
        waiting, self._waiting = self._waiting, []
        by_topic: dict[str, list[tuple[str, Iterable[str]]]] = {}
        for topic, record, keys in waiting:
            by_topic.setdefault(topic, []).append((record, keys))
        for records in by_topic.values():
            task = self._client.spawn(self._send(records))
            self._sending.add(task)
            task.add_done_callback(self._sending.discard)

    async def close(self) -> None:
        """Send the rest."""
        import asyncio

        self.flush()
        if self._sending:
            await asyncio.wait(self._sending, timeout=SEND_TIMEOUT_S)

    async def _send(self, records: list[tuple[str, Iterable[str]]]) -> None:
        body = "".join(record for record, _ in records)
        keys = dict.fromkeys(key for _, keys in records for key in keys)
        try:
            await self._sender.deliver(self._sender.prepare(Message(self.topic, body, keys=tuple(keys))))
        except KeroloxError as error:
            log.warning("trace_not_sent records=%d error=%r", len(records), str(error))


def _word(flag: bool) -> str:
    return "true" if flag else "false"
