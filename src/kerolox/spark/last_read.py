"""Identity of the last message read in a queue, which a resuming reader verifies first.

Offsets do not distinguish a topic from a later one of the same name. When a topic is deleted and created
again, its queues begin at 0; a reader that resumes at offset 100 would skip the first 100 messages of the
new topic. So the next offset is stored together with the identity of the message before it. That message
must still be at its offset, unless the broker has deleted it by age.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

from kerolox.client.messages import Queue

if TYPE_CHECKING:
    from kerolox.protocol.message import StoredMessage


class LastRead(NamedTuple):
    """Identity of a stored message: four numbers, small enough to store for each queue in every commit."""

    queue_offset: int
    physical_offset: int
    stored_ms: int
    id_hash: int  # 63-bit hash of the message id

    @classmethod
    def of(cls, record: StoredMessage) -> LastRead:
        digest = hashlib.blake2b(record.message_id.encode(), digest_size=8).digest()
        return cls(
            record.queue_offset,
            record.physical_offset,
            record.store_timestamp,
            int.from_bytes(digest, "big") >> 1,
        )

    def is_same(self, other: LastRead) -> bool:
        """Compare store time, and physical offset or id: Apache's tiered store gives a message another
        physical offset."""
        return self.stored_ms == other.stored_ms and (
            self.physical_offset == other.physical_offset or self.id_hash == other.id_hash
        )

    def __str__(self) -> str:
        try:
            stored = datetime.fromtimestamp(self.stored_ms / 1000, UTC).isoformat(timespec="milliseconds")
        except (ValueError, OverflowError, OSError):  # a damaged record may have any value
            stored = f"{self.stored_ms} ms after 1970"
        return f"stored {stored} at physical offset {self.physical_offset}"


LastReads = dict[Queue, LastRead]
