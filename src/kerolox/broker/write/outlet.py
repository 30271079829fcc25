"""Interface for storing due messages elsewhere, for a broker that may not write its own log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from kerolox.broker.write.pending_message import PendingMessage


class Outlet(Protocol):
    async def put(self, messages: Sequence[PendingMessage]) -> int:
        """Store the messages elsewhere. Return how many of them are stored, counted from the first.

        Messages stored behind a failed one are remembered, and not stored again when they are passed once
        more. Raises if the first is not stored. Every message needs :attr:`PendingMessage.parked_at`. Returns
        or raises within a few seconds.
        """
