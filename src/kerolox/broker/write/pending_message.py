"""Messages that may still change before they are stored, and those the broker itself stores.

A plain message goes straight into the log. One that is to come later, or only if a transaction ends well, is
parked under another topic first; one that was parked comes back; one that could not be consumed is sent
again. All of these are pending messages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from kerolox.protocol import properties as packed
from kerolox.store.log.commit_log import Place


@dataclass(slots=True)
class PendingMessage:
    """A message on its way into the log. Rewrites change it in place."""

    topic: str
    queue_id: int
    body: bytes
    properties: bytes  # packed
    born_timestamp: int
    born_host: bytes
    flag: int = 0
    sys_flag: int = 0
    reconsume_times: int = 0
    prepared_offset: int = 0  # where the half message of a transaction lies
    store_host: bytes | None = None  # None: this broker; a message that was parked keeps what it had
    recall_handle: str | None = None  # by which the sender may take it back
    is_parked: bool = False  # it waits for something else than time: delays apply when that has come
    parked_at: int = -1  # where it lies in the log as it was parked, of one that falls due
    deliver_ms: int | None = None  # it is not due before this time, of one that is to wait elsewhere
    refused: str | None = None  # why it became a dead letter instead of being delivered


Rewrite = Callable[[PendingMessage], None]
OnParked = Callable[[PendingMessage, Place], None]  # told where a message was parked


@lru_cache(4096)
def real_queue(topic: str, queue_id: int) -> bytes:
    """The properties that say where a parked message is to go."""
    return packed.pack({packed.REAL_TOPIC: topic, packed.REAL_QUEUE_ID: str(queue_id)})
