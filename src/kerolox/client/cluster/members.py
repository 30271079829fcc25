"""Interfaces of a client's members: producers and consumers.

A client acts for all its members: one heartbeat registers all of them, and requests of brokers are dispatched
by group. All names here are wire names, with the namespace. Methods are called on the client's event loop,
inside its read pass: they must not block, and must start a task for longer work.
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
    """Producer or consumer of a client."""

    group: str  # with its namespace
    everywhere: bool = False  # send heartbeats to all brokers, not only to those of the routes

    def topics(self) -> Iterable[str]:
        """Return the topics whose routes must be refreshed."""
        return ()

    def route_changed(self, route: Route) -> None:
        """React to a new or changed route of any topic of the client."""


class ProducingMember(Member):
    """Producer of a group."""

    def check_transaction(self, asked: Request[CheckTransaction], message: Received) -> None:
        """Answer a broker's transaction check with END_TRANSACTION over ``asked.caller``."""


class ConsumingMember(Member):
    """Consumer of a group."""

    def heartbeat(self) -> ConsumerData | None:
        """Return the subscriptions for the next heartbeat; None before there are any."""
        raise NotImplementedError

    def members_changed(self) -> None:
        """Rebalance after a member joined or left the group."""

    def reset_offsets(self, topic: str, offsets: Mapping[Queue, int]) -> None:
        """Continue from these offsets."""

    def offsets(self, topic: str) -> Mapping[Queue, int]:
        """Return the progress in the queues of a topic."""
        return {}

    def running_info(self) -> ConsumerRunningInfo | None:
        """Return the consumer's state for administrators. The client adds stack traces on request."""
        return None

    async def consume_directly(self, message: Received) -> ConsumeDirectlyResult | None:
        """Call the handler with this message now, and return the outcome."""
        return None
