"""One entry of a DLedger log, as its members see it: a place, a term, and bytes that are not looked into.

The channel and both checksums are 0 and the magic is 1 in all that RocketMQ writes, so they are no members.
"""

from __future__ import annotations

import msgspec

ENTRY_HEAD_BYTES = 48
ENTRY_MAGIC = 1
ENTRY_BYTES_MAX = 4_194_304  # with its head: the buffer Apache's members encode into
NO_INDEX = -1  # the last index of a log without entries; its term is -1 as well


class LedgerEntry(msgspec.Struct, frozen=True, gc=False):
    """An entry. Two are the same when all four agree, which is how members compare their logs."""

    index: int  # from 0, without gaps
    term: int  # in which its leader wrote it
    pos: int  # where it begins in the data log, the same on every member
    body: bytes

    @property
    def size(self) -> int:
        return ENTRY_HEAD_BYTES + len(self.body)

    @property
    def end(self) -> int:
        return self.pos + ENTRY_HEAD_BYTES + len(self.body)
