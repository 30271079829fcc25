"""Graceful stop: clients are asked to move to other brokers before their connections are closed.

Only newer clients understand that; older ones are served until the end. One-way requests are still handled,
because their senders could not be told to send them elsewhere.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from kerolox.broker.consume.message_waits import MessageWaits
from kerolox.broker.options import BrokerOptions
from kerolox.clock import Clock
from kerolox.errors import Refused
from kerolox.front.requests import Request
from kerolox.net.server import Server
from kerolox.protocol.codes import VERSION_BEFORE_GO_AWAY, ResponseCode

log = logging.getLogger(__name__)

LOOK_S = 0.05  # interval of checks whether all clients have left


class GracefulStop:
    """Redirection of clients before the ports of a broker close."""

    def __init__(
        self, servers: Iterable[Server], waits: MessageWaits, options: BrokerOptions, clock: Clock
    ) -> None:
        self._servers = tuple(servers)
        self._waits = waits
        self._options = options
        self._clock = clock

    async def send_away(self) -> None:
        """Answer requests with GO_AWAY until all clients have left or the time is over. Does nothing unless
        the option is set."""
        if not self._options.graceful_stop:
            return
        log.info("going_away peers=%d seconds=%d", self._peers, self._options.graceful_stop_s)
        for server in self._servers:
            server.handlers.add_gate(_send_away)
        self._waits.wake_all()
        until_s = self._clock.monotonic_s() + self._options.graceful_stop_s
        while self._peers and self._clock.monotonic_s() < until_s:
            await self._clock.sleep(LOOK_S)

    @property
    def _peers(self) -> int:
        return sum(len(server.peers) for server in self._servers)


def _send_away(request: Request[Any]) -> None:
    """Reject a request of a client that understands GO_AWAY. A gate of the handlers."""
    if request.caller.version > VERSION_BEFORE_GO_AWAY and not request.is_one_way:
        raise Refused(ResponseCode.GO_AWAY, "please go away: this broker is stopping")
