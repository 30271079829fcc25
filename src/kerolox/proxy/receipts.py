"""Receipt handles: the handle of a popped message with the place of its record in the commit log.

Nine fields, separated by one space. A handle is text from a client: what it names is checked by the broker.
"""

from __future__ import annotations

from typing import NamedTuple

from kerolox.errors import InvalidRequest
from kerolox.protocol.grpc.messages import Code
from kerolox.protocol.pop.handle import Handle
from kerolox.protocol.pop.retry_topics import V2, real_topic
from kerolox.proxy.checks import Rejected

_FIELDS = 9
_TEXT_MAX = 1024


class Receipt(NamedTuple):
    """A delivered message: its handle at the broker, and the offset of its record."""

    handle: Handle
    log_offset: int  # -1: unknown

    @classmethod
    def parse(cls, text: str) -> Receipt:
        """Read a receipt handle. Raise Rejected if it is none: clients then give up the message."""
        try:
            handle = Handle.parse(text[:_TEXT_MAX])
            if handle.retry not in ("0", "1", V2):
                raise InvalidRequest(f"the retry form {handle.retry[:10]!r} does not exist")
            fields = text.split(" ")
            log_offset = int(fields[8]) if len(fields) >= _FIELDS else -1
        except (InvalidRequest, ValueError) as error:
            raise Rejected(Code.INVALID_RECEIPT_HANDLE, f"no receipt handle: {error}") from error
        return cls(handle, log_offset)

    def __str__(self) -> str:
        return f"{self.handle} {self.log_offset}"

    def has_expired(self, now_ms: int) -> bool:
        return self.handle.pop_time + self.handle.invisible_time <= now_ms

    def topic(self, topic: str, group: str) -> str:
        """Return the topic that holds the message: the normal one or a retry topic."""
        return real_topic(topic, group, self.handle.retry)

    def changed(self, pop_time: int, invisible_ms: int, revive_queue: int) -> Receipt:
        """Return the receipt after a change of the invisible time: a pop of this message only."""
        handle = self.handle._replace(
            start_offset=self.handle.offset,
            pop_time=pop_time,
            invisible_time=invisible_ms,
            revive_queue=revive_queue,
        )
        return Receipt(handle, self.log_offset)

    @property
    def place(self) -> tuple[str, int, int]:
        """Broker, queue and offset, which stay the same while the handle is renewed."""
        return self.handle.broker_name, self.handle.queue_id, self.handle.offset
