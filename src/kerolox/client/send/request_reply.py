"""Request and reply: a message, and the reply of its consumer, forwarded by a broker."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING
from uuid import uuid4

from kerolox.client.errors import InvalidMessage, NoReply
from kerolox.client.messages import Message, Receipt, Received
from kerolox.client.send.sending import Sender
from kerolox.protocol import properties as names
from kerolox.protocol.codes import RequestCode
from kerolox.protocol.reserved import REPLY_SUFFIX

if TYPE_CHECKING:
    from kerolox.client.cluster.client import Client


class Requests:
    """Requests and replies of one producer."""

    def __init__(self, sender: Sender) -> None:
        self.client: Client = sender.client
        self._sender = sender
        self._announced: set[str] = set()  # topics whose brokers received a heartbeat of this client

    async def request(
        self, message: Message, timeout_s: float, send: Callable[[str, float], Awaitable[Receipt]]
    ) -> Received:
        """Send, and wait for the reply. ``send`` receives further properties and the remaining time."""
        clock = self.client.clock
        deadline_s = clock.monotonic_s() + timeout_s
        topic = self.client.wire_name(message.topic)
        await self._sender.publishing(topic, timeout_s)
        if topic not in self._announced:
            # Any broker of the topic may forward the reply, and must know this client.
            await self.client.heartbeat()
            self._announced.add(topic)
        correlation_id = str(uuid4())
        more = (
            f"{names.CORRELATION_ID}\x01{correlation_id}\x02"
            f"{names.REPLY_TO_CLIENT}\x01{self.client.client_id}\x02"
            f"{names.TTL}\x01{round(timeout_s * 1000)}\x02"
        )
        reply: asyncio.Future[Received] = asyncio.get_running_loop().create_future()
        self.client.replies[correlation_id] = reply
        try:
            await send(more, deadline_s - clock.monotonic_s())
            try:
                async with asyncio.timeout(max(0.0, deadline_s - clock.monotonic_s())):
                    return await reply
            except TimeoutError:
                raise NoReply(message.topic, correlation_id, timeout_s) from None
        finally:
            self.client.replies.pop(correlation_id, None)

    async def reply(
        self, request: Received, body: bytes | str, properties: dict[str, str], timeout_s: float | None
    ) -> Receipt:
        """Reply to a request."""
        values = {
            name: request.get(name)
            for name in (names.CORRELATION_ID, names.REPLY_TO_CLIENT, names.TTL, names.CLUSTER)
        }
        missing = [name for name, value in values.items() if not value and name != names.TTL]
        if missing:
            raise InvalidMessage(
                f"message {request.msg_id} cannot be replied to: it has no {', '.join(missing)}. "
                "Only messages sent with request() have them"
            )
        topic = values.pop(names.CLUSTER) + REPLY_SUFFIX
        more = f"{names.MESSAGE_TYPE}\x01reply\x02" + "".join(
            f"{name}\x01{value}\x02" for name, value in values.items() if value
        )
        outgoing = self._sender.prepare(Message(topic, body, properties=properties), more)
        outgoing.topic = topic  # it has no namespace
        outgoing.code = RequestCode.SEND_REPLY_MESSAGE_V2
        publishing = await self._sender.publishing(topic, timeout_s)
        # The requester is connected to the broker of the request, but possibly not to others.
        near = [target for target in publishing.targets if target.queue.broker == request.broker]
        return await self._sender.deliver(outgoing, timeout_s, pinned=near[0] if near else None)
