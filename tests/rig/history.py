"""What clients did, and what they were told: one line for every send."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass, field

OK = "SEND_OK"
CLOCK_S = 0.01  # how exact times are: Java's are whole milliseconds
STORED = frozenset({OK, "FLUSH_DISK_TIMEOUT", "FLUSH_SLAVE_TIMEOUT", "SLAVE_NOT_AVAILABLE"})


@dataclass(frozen=True)
class Send:
    """One try to send one message. Times are seconds of the wall clock, which all clients share."""

    client: str
    body: bytes
    began_s: float
    ended_s: float
    status: str  # as Java's clients call it; else the name of the error
    queue: int = -1
    offset: int = -1  # in its queue
    place: int = -1  # in the log, from the id the broker gave
    host: str = ""  # who stored it, from the same id

    @property
    def ok(self) -> bool:
        return self.status == OK

    @property
    def stored(self) -> bool:
        """The broker that answered had stored it, whether or not others have it."""
        return self.status in STORED


@dataclass
class History:
    """All sends to one group of brokers."""

    sends: list[Send] = field(default_factory=list)
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)

    def add(self, *sends: Send) -> None:
        with self._lock:
            self.sends += sends

    def count(self, client: str | None = None, since_s: float = 0.0) -> int:
        """How many were acknowledged that began since then."""
        with self._lock:
            return sum(
                one.ok and one.began_s >= since_s and client in (None, one.client) for one in self.sends
            )

    def statuses(self) -> Counter[tuple[str, str]]:
        with self._lock:
            return Counter((one.client, one.status) for one in self.sends)


def place_of(offset_message_id: str) -> int:
    """Where in the log the message lies: the end of the id, behind the broker's address."""
    return int(offset_message_id[-16:], 16)


def host_of(offset_message_id: str) -> str:
    """Who stored it: the address the id begins with, four bytes and a port of four."""
    ip = bytes.fromhex(offset_message_id[:8])
    return f"{ip[0]}.{ip[1]}.{ip[2]}.{ip[3]}:{int(offset_message_id[8:16], 16)}"
