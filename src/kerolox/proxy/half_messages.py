"""Places of half messages, by which transactions end: clients know only the id."""

from __future__ import annotations

from collections import OrderedDict
from typing import Final

import msgspec

KEPT_MAX: Final = 200_000


class HalfMessage(msgspec.Struct, frozen=True, gc=False):
    """Place of a half message."""

    broker_name: str
    queue_offset: int  # in the queue of half messages
    log_offset: int


class HalfMessages:
    """The newest half messages whose transactions are open."""

    def __init__(self) -> None:
        self._places: OrderedDict[tuple[str, str], HalfMessage] = OrderedDict()

    def __len__(self) -> int:
        return len(self._places)

    def add(self, topic: str, transaction_id: str, half: HalfMessage) -> None:
        """Note a half message; a check of its transaction notes it again."""
        key = topic, transaction_id
        self._places[key] = half
        self._places.move_to_end(key)
        if len(self._places) > KEPT_MAX:
            self._places.popitem(last=False)

    def get(self, topic: str, transaction_id: str) -> HalfMessage | None:
        return self._places.get((topic, transaction_id))

    def forget(self, topic: str, transaction_id: str) -> None:
        """Forget a half message whose transaction has ended."""
        self._places.pop((topic, transaction_id), None)
