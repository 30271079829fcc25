"""What hangs on a client: producers and consumers, and what the client wants of them.

A client speaks for all its members: one heartbeat tells brokers of all of them, and what brokers ask of
a client is handed to the member it is about, by its group. All names here are the wire's, with their
namespace. Methods are called on the client's event loop, inside its read pass: they must not block, and
start a task for what takes time.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kerolox.client.calls.routes import Route
    from kerolox.client.messages import Queue, Received
    from kerolox.front.requests import Request
    from kerolox.protocol.bodies.clients import ConsumeDirectlyResult, ConsumerRunningInfo
    from kerolox.protocol.bodies.heartbeat import ConsumerData
    from kerolox.protocol.headers.transaction import CheckTransaction


class Member:
    """A producer or a consumer on a client."""

    group: str  # with its namespace
    everywhere: bool = False  # tell all brokers of it, not only those of our routes

    def topics(self) -> Iterable[str]:
        """Topics whose routes are to be kept fresh."""
        return ()

    def route_changed(self, route: Route) -> None:
        """A route is new or has changed; of any topic of the client."""


class ProducingMember(Member):
    """A producer of a group."""

    def check_transaction(self, asked: Request[CheckTransaction], message: Received) -> None:
        """A broker asks how a transaction ended. Answer with END_TRANSACTION over ``asked.caller``."""


class ConsumingMember(Member):
    """A consumer of a group."""

    def heartbeat(self) -> ConsumerData | None:
        """What the group wants, for the next heartbeat; None while there is nothing to say."""
        raise NotImplementedError

    def members_changed(self) -> None:
        """Somebody joined or left the group: divide the queues again."""

    def reset_offsets(self, topic: str, offsets: Mapping[Queue, int]) -> None:
        """Go on from these offsets."""

    def offsets(self, topic: str) -> Mapping[Queue, int]:
        """How far the queues of a topic are consumed."""
        return {}

    def running_info(self) -> ConsumerRunningInfo | None:
        """What the consumer is doing, for the admin side. The client adds stacks when asked for."""
        return None

    async def consume_directly(self, message: Received) -> ConsumeDirectlyResult | None:
        """Hand this one message to the handler now, and say how it went."""
        return None
