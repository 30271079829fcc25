"""Where messages are put that were parked and fall due, by a broker that may not write its own log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kerolox.broker.write.pending_message import PendingMessage


class Outlet(Protocol):
    async def put(self, messages: Sequence[PendingMessage]) -> int:
        """Store them; how many of them are stored, counted from the first one on. What is stored of the
        others is remembered, and not stored again when they come once more. Raises when the first is not
        stored.

        They need :attr:`PendingMessage.parked_at`. Returns or raises within a few seconds.
        """
