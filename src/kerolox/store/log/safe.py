"""Results of waiting for the safety of a message, and the answers to its producer."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum


class Safe(Enum):
    """Results from good to bad, by the code of the answer. From 10 to 12 the message is stored and will be
    read."""

    YES = 0, "safe"
    NO_MAJORITY = (
        1,
        "in-sync replicas not enough: no majority of the group has the message yet, it may still come",
    )
    NO_LEADER = 1, "this broker does not lead its group any more: the message may be kept, or not"
    FLUSH_TIMEOUT = 10, "FLUSH_DISK_TIMEOUT"  # not known to be on the medium within the time limit
    NO_REPLICA = 11, "SLAVE_NOT_AVAILABLE"  # fewer replicas are in sync than must have it
    REPLICA_TIMEOUT = 12, "FLUSH_SLAVE_TIMEOUT"  # not known to be on enough replicas within the time limit
    FAILED = 14, "the flush failed: the store is fenced"
    CUT = 14, "the log was cut back before this message: another broker leads, and does not have it"

    def __init__(self, code: int, words: str) -> None:
        self.code = code
        self.words = words

    @property
    def failed(self) -> bool:
        """Return True if the message is not known to be stored."""
        return self in (Safe.FAILED, Safe.CUT, Safe.NO_MAJORITY, Safe.NO_LEADER)

    def and_also(self, other: Safe) -> Safe:
        """Return the combined result of two waits: the one with the higher code; for equal codes this one."""
        return self if self.code >= other.code else other


OnSafe = Callable[[Safe], None]
