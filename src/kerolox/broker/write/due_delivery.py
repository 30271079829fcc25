"""Storage of messages that are due, from the delay levels and from the timer.

They go to the log of this broker, or through the outlet while it may not write. A message that can never be
delivered becomes a dead letter, and the later ones do not wait for it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from kerolox.broker.write.delivery import Delivery, StillSaving
from kerolox.broker.write.intake import Intake
from kerolox.broker.write.outlet import Outlet
from kerolox.broker.write.pending_message import PendingMessage
from kerolox.errors import KeroloxError
from kerolox.protocol.message import StoredMessage
from kerolox.store.log.commit_log import AppendRefused, Place


class DueMessage(NamedTuple):
    """A parked message that is due, with its queue and its properties there."""

    parked: StoredMessage
    topic: str
    queue_id: int
    properties: bytes
    refused: str | None = None  # reason why it can never be delivered
    deliver_ms: int | None = None  # earliest delivery, for a message that is to wait on another broker

    def pending(self) -> PendingMessage:
        pending = PendingMessage.of(self.parked, self.topic, self.queue_id, self.properties)
        pending.deliver_ms = self.deliver_ms
        return pending


class Delivered(NamedTuple):
    """Topic and place of a delivered message; no place if another broker has it."""

    topic: str
    place: Place | None


class DueDelivery:
    """Storage of due messages for one part. ``acts``: this broker may not write, and uses the outlet."""

    def __init__(self, intake: Intake, delivery: Delivery, outlet: Outlet | None) -> None:
        self._intake = intake
        self._delivery = delivery
        self._outlet = outlet
        self.acts = False

    async def deliver(self, due: Sequence[DueMessage], stored: Callable[[list[Delivered]], None]) -> bool:
        """Store messages in this order. Call ``stored`` with those that are stored, in the turn of their
        write. Return False if the rest can be stored now, by another call. Raises the error of the first that
        is not stored.
        """
        if self.acts:
            return await self._send_away(due, stored)
        self._intake.renew_time()  # the store time must not be before the due time
        delivered: list[Delivered] = []
        failed: KeroloxError | None = None
        for message in due:
            try:
                delivered.append(self._append(message))
            except KeroloxError as error:
                failed = error
                break
        done: asyncio.Future[KeroloxError | None] = asyncio.get_running_loop().create_future()

        def written(error: KeroloxError | None) -> None:
            if error is None:
                stored(delivered)
            done.set_result(error)

        if delivered:
            self._intake.when_written(written)
        else:
            written(None)
        failed = await done or failed
        if isinstance(failed, StillSaving):
            failed = await failed.over()
        if failed is not None:
            raise failed
        return len(delivered) == len(due)

    def refusal(self, message: DueMessage) -> str | None:
        """Return why a message can never be delivered; None if it can."""
        try:
            refused = message.refused or self._delivery.refusal(message.topic, message.parked.physical_offset)
            if refused is None:
                self._intake.cursor(message.topic, message.queue_id)
        except AppendRefused as error:
            return str(error)
        return refused

    def _append(self, message: DueMessage) -> Delivered:
        parked, topic, queue_id, properties, refused, _ = message
        if refused is None:
            refused = self._delivery.refusal(topic, parked.physical_offset)
        if refused is None:
            try:  # directly: it must not be parked again, and there are many
                place = self._intake.append_plain(
                    self._intake.cursor(topic, queue_id),
                    parked.body,
                    properties,
                    flag=parked.flag,
                    sys_flag=parked.sys_flag,
                    born_timestamp=parked.born_timestamp,
                    born_host=parked.born_host,
                    reconsume_times=parked.reconsume_times,
                    light_queues=self._intake.fills_light_queues(topic, properties),
                    store_host=parked.store_host,
                )
                return Delivered(topic, place)
            except AppendRefused as error:
                refused = str(error)
        pending = message.pending()
        self._delivery.refuse(pending, refused)
        place = self._delivery.append_as_is(pending)
        return Delivered(pending.topic, place)

    async def _send_away(self, due: Sequence[DueMessage], stored: Callable[[list[Delivered]], None]) -> bool:
        assert self._outlet is not None  # otherwise the broker does not act
        wanted: list[PendingMessage] = []
        for message in due:
            pending = message.pending()
            if message.refused is not None:
                self._delivery.refuse(pending, message.refused)
            wanted.append(pending)
        taken = await self._outlet.put(wanted)
        stored([Delivered(pending.topic, None) for pending in wanted[:taken]])
        return taken == len(wanted)
