"""Filling of consume queues with an extension: each entry gets a unit with the filter results of its
message."""

from __future__ import annotations

from collections.abc import Callable

from kerolox.protocol.record_scan import PROPERTIES, STORE_TIMESTAMP, TOPIC, Entry
from kerolox.store.dispatch.queues import QueueFiller
from kerolox.store.queue.consume_queues import ConsumeQueues

# Topic and properties → the bits of the filters that the message passes; b"" without any.
BitsOf = Callable[[bytes, bytes], bytes]


class UnitFiller(QueueFiller):
    """Filler that works message by message, because each has its own unit. Slower than without; therefore an
    option."""

    def __init__(
        self,
        queues: ConsumeQueues,
        delay_levels: tuple[int, ...],
        *,
        multi_dispatch: bool = False,
        bits_of: BitsOf | None = None,
    ) -> None:
        super().__init__(queues, delay_levels, multi_dispatch=multi_dispatch)
        self._noted = queues.noted
        self._bits_of = bits_of

    def fill(self, entries: list[Entry]) -> None:
        noted = self._noted
        bits_of = self._bits_of
        for entry in entries:
            noted.stored_ms = entry[STORE_TIMESTAMP]
            noted.bits = b"" if bits_of is None else bits_of(entry[TOPIC], entry[PROPERTIES])
            super().fill([entry])
