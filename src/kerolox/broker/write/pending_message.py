"""Messages that may still change before they are stored, and messages that the broker itself stores.

A plain message is appended directly. A delayed message, or one of a transaction, is parked under another
topic first. A parked message that is due, or one that a consumer sent back, is stored again. All of these are
pending messages.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache

from kerolox.protocol import properties as packed
from kerolox.protocol.message import StoredMessage
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
    prepared_offset: int = 0  # offset of the transaction's half message in the log
    store_host: bytes | None = None  # None: this broker; a parked message keeps its store host
    recall_handle: str | None = None  # handle by which the sender may recall it
    is_parked: bool = False  # waits for another event than a time; delays apply after it
    parked_at: int = -1  # offset in the log of the parked message, if this one is due
    deliver_ms: int | None = None  # earliest delivery, for a message that is to wait on another broker
    refused: str | None = None  # reason why it became a dead letter

    @classmethod
    def of(cls, stored: StoredMessage, topic: str, queue_id: int, properties: bytes) -> PendingMessage:
        """Return a stored message on its way to another queue, with other properties."""
        return cls(
            topic,
            queue_id,
            stored.body,
            properties,
            stored.born_timestamp,
            stored.born_host,
            flag=stored.flag,
            sys_flag=stored.sys_flag,
            reconsume_times=stored.reconsume_times,
            store_host=stored.store_host,
            parked_at=stored.physical_offset,
        )


Rewrite = Callable[[PendingMessage], None]
OnParked = Callable[[PendingMessage, Place], None]  # called with the place of a parked message


@lru_cache(4096)
def real_queue(topic: str, queue_id: int) -> bytes:
    """Return the properties that hold the real destination of a parked message."""
    return packed.pack({packed.REAL_TOPIC: topic, packed.REAL_QUEUE_ID: str(queue_id)})
