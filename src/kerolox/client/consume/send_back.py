"""Rejected messages, sent back to the broker: for a later retry, or as dead letters."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from kerolox.client.calls.outgoing import Outgoing
from kerolox.client.cluster.queue_calls import QueueCalls
from kerolox.client.messages import Received
from kerolox.client.names import retry_topic
from kerolox.client.options import ProducerOptions
from kerolox.client.send.sending import Sender
from kerolox.errors import KeroloxError
from kerolox.protocol import properties as names
from kerolox.protocol.limits import PROPERTIES_BYTES_MAX

if TYPE_CHECKING:
    from kerolox.client.cluster.client import Client

log = logging.getLogger(__name__)

INNER_PRODUCER = "CLIENT_INNER_PRODUCER"
TIMEOUT_S = 5.0
RETRIES = 100  # the timeout ends them: a message that is not sent back holds up the progress of its queue
ATTEMPTS_MAX = 16
FIRST_RETRY_LEVEL = 3
ROOM_BYTES = 2048  # reserved for properties added in transit; a reason is kept only if it fits beside them


class SendBack:
    """Sending back of messages for one group."""

    def __init__(self, client: Client, group: str, calls: QueueCalls, attempts_max: int) -> None:
        self._client = client
        self._topic = retry_topic(group)
        self._calls = calls
        self.attempts_max = ATTEMPTS_MAX if attempts_max < 0 else attempts_max
        self._sender = Sender(
            client, INNER_PRODUCER, ProducerOptions(timeout_s=TIMEOUT_S, retries=RETRIES, compression="")
        )

    async def give_back(self, message: Received, level: int, reason: str = "") -> bool:
        """Send a message back. Return True if a broker stored it, so that its offset can be committed.

        Only kerolox brokers keep the ``reason``.
        """
        origin = self._client.wire_name(message.topic)
        try:
            await self._calls.send_back(message, origin, level, self.attempts_max, reason)
            return True
        except KeroloxError as error:
            log.warning(
                "not_given_back msg_id=%s broker=%s error=%r", message.msg_id, message.broker, str(error)
            )
        # The message's broker rejects it; any other broker may accept it as a new message.
        return await self.send_again(message, level, reason)

    async def send_again(self, message: Received, level: int, reason: str = "") -> bool:
        """Send a copy of a message to the retry topic, at any broker."""
        table = names.unpack(message.packed_properties)
        for name in (
            names.MIN_OFFSET,
            names.MAX_OFFSET,
            names.CONSUME_START_TIME,
            names.WAIT,
            names.RETRY_REASON,
        ):
            table.pop(name, None)
        if reason and len(message.packed_properties) < PROPERTIES_BYTES_MAX - ROOM_BYTES:
            table[names.RETRY_REASON] = reason
        # For a retried message, this is the topic that it named.
        table[names.RETRY_TOPIC] = self._client.wire_name(message.topic)
        table.setdefault(names.ORIGIN_MESSAGE_ID, message.offset_msg_id)
        table[names.DELAY] = str(level if level > 0 else FIRST_RETRY_LEVEL + message.reconsume_times)
        outgoing = Outgoing(
            self._topic,
            message.body,
            names.pack(table).decode(),
            message.msg_id,
            born_ms=message.born_timestamp,
            flag=message.flag,
        )
        # Above the limit, the broker stores it as a dead letter.
        outgoing.reconsume_times = self.attempts_max + 1 if level < 0 else message.reconsume_times + 1
        outgoing.max_reconsume_times = self.attempts_max
        try:
            await self._sender.deliver(outgoing, TIMEOUT_S)
            return True
        except KeroloxError as error:
            log.warning("not_sent_again msg_id=%s error=%r", message.msg_id, str(error))
            return False
