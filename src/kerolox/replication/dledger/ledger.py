"""The log of a DLedger member, as the member that votes, follows and leads uses it.

The store is one. The member says who may write and how much is committed; the store keeps the bytes, gives
positions, and lets readers and the dispatcher see what is committed. One event loop owns a ledger.

Who writes: nobody at first. After :meth:`Ledger.lead` the broker appends what producers send, in the term it
was given, and tells ``on_appended``; :meth:`Ledger.append_follower` and :meth:`Ledger.truncate` raise then.
After :meth:`Ledger.follow` only those two write.

Who waits for an entry of its own waits in the ledger, too: until :meth:`Ledger.commit` covers it, until
:meth:`Ledger.follow` (the term changed: nobody knows whether it will be committed; it stays in the log), or
until its time is over.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from kerolox.observers import Observers
from kerolox.protocol.ledger_entry import LedgerEntry
from kerolox.store.errors import OutOfLedger

__all__ = ["ACKS_MAX", "ACK_TIMEOUT_MS", "Ledger", "OutOfLedger"]

ACK_TIMEOUT_MS = 2500  # as Apache's leader waits for a majority
ACKS_MAX = 10_000  # that many entries may wait at once


class Ledger(Protocol):
    """A log of entries without gaps from ``begin_index`` to ``end_index``."""

    on_appended: Observers[[]]  # hear that the broker appended, as leader, in one or many entries
    on_safe: Observers[[]]  # hear that ``safe_index`` grew

    @property
    def begin_index(self) -> int:
        """Index of the first entry; -1 while there is none."""

    @property
    def begin_pos(self) -> int:
        """Offset of the first entry; without entries, the offset at which the first would begin."""

    @property
    def end_index(self) -> int:
        """Index of the last entry; -1 while there is none."""

    @property
    def end_term(self) -> int:
        """The term of the last entry; -1 while there is none."""

    @property
    def safe_index(self) -> int:
        """Up to where this member may say that it has the log: its end, as Apache's; under synchronous flush,
        what is on the disk."""

    @property
    def committed_index(self) -> int:
        """Up to where entries are known to be on a majority. Kept over restarts as a floor, no more."""

    @property
    def takes_appends(self) -> str | None:
        """Why nothing can be appended now (a full disk, a fence); None when it can."""

    async def read(self, first: int, count_max: int, bytes_max: int) -> list[LedgerEntry]:
        """Entries from ``first`` on: one at least, then no more than so many and so many bytes.

        Returns without waiting when they are in memory, else reads in a thread. Raises OutOfLedger.
        """

    @property
    def leads(self) -> bool:
        """True between :meth:`lead` and :meth:`follow`."""

    def lead(self, term: int) -> None:
        """The broker may append from now on; its entries are of this term."""

    def follow(self) -> None:
        """The broker may no longer append. Waiting appends fail because the term changed."""

    def append_barrier(self) -> None:
        """Append one entry that means nothing, as leader.

        What earlier leaders wrote is committed by counting copies of an entry of the own term behind it,
        never its own: else a majority can have it and a later leader may still not (Raft's figure 8).
        DLedger 0.3 has no entry without meaning, and Apache's brokers cannot skip an empty one, so the store
        writes a message into a system topic. Asked for only when entries of unknown fate are there.
        """

    def pause(self, why: str | None) -> None:
        """It may not for now, because leadership is handed over; or, with None, it may again."""

    def append_leader(self, body: bytes, on_decided: Callable[[bool], None]) -> LedgerEntry:
        """Append what a tool sends (50001). ``on_decided`` is called once: was it committed in time? Raises
        when the broker may not append, or these bytes are nothing that belongs into its log."""

    def append_follower(self, entries: Sequence[LedgerEntry]) -> None:
        """Keep what the leader sent. Raises OutOfLedger, with nothing written, unless index, position and
        term continue the log."""

    async def truncate(self, entry: LedgerEntry) -> None:
        """Let this entry be the last: all behind it is dropped, and it takes the place of another one of its
        index. Where it touches nothing that is here, the log begins anew with it. Durable when it returns.
        """

    def commit(self, index: int) -> None:
        """Entries up to this index, which are here, are on a majority. Never falls."""
