"""A follower's connection to its leader in a group with a controller.

The leader first sends its epochs. The follower compares them, truncates its log and continues with
:meth:`EpochLink.copy`. An epoch is on disk before its first byte is appended. The leader's confirmed offset
applies here too, as far as the log is replicated.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterable

from kerolox.clock import Clock
from kerolox.errors import ProtocolError
from kerolox.protocol.ha_epochs import (
    Epoch,
    EpochPiece,
    Hello,
    LeaderFrames,
    Welcome,
    pack_epoch_report,
    pack_hello,
)
from kerolox.protocol.ha_proof import FollowersProof
from kerolox.replication.epoch_mode import EpochMode
from kerolox.replication.leader_link import LeaderLink
from kerolox.replication.link_state import BeginAt, CannotFollow, LinkState, not_writable
from kerolox.replication.overlap import Overlap
from kerolox.replication.settings import HaSettings
from kerolox.store.errors import StoreError
from kerolox.store.message_store import MessageStore


class EpochLink(LeaderLink):
    """Connection to the leader. ``welcome`` is the leader's answer to the hello."""

    def __init__(
        self,
        store: MessageStore,
        settings: HaSettings,
        clock: Clock,
        address: str,
        mode: EpochMode,
        *,
        on_copying: Callable[[], None],
        proof: FollowersProof | None = None,
        tells_process: bool = False,
    ) -> None:
        """``tells_process``: the leader supports the number of this process."""
        super().__init__(
            store, settings, clock, address, overlap=None, begin=None, on_copying=on_copying, proof=proof
        )
        self.welcome: asyncio.Future[Welcome] = asyncio.get_running_loop().create_future()
        self.welcome.add_done_callback(lambda done: done.cancelled() or done.exception())
        self.ended.add_done_callback(self._no_welcome)
        self.confirmed = -1  # the leader's confirmed offset, as received last
        self._mode = mode
        self._start = mode.start if tells_process else None
        self._frames = LeaderFrames()
        self._pack_report = pack_epoch_report
        self._takes: tuple[Epoch, ...] | None = None  # epochs to take over once the bytes have been compared
        self._is_open = False  # the log end may be reported to the leader
        self._held: deque[EpochPiece] | None = None  # pieces received while waiting for the disk
        self._waiting: asyncio.Task[None] | None = None

    @property
    def epoch(self) -> int:
        """The last epoch of this log; 0 if there is none."""
        return self._mode.history.last

    # --- handshake ------------------------------------------------------------------------------------

    def _open(self) -> None:
        mode = self._mode
        assert self._transport is not None
        # In one write, and once: see pack_hello and EpochConnection.
        hello = Hello(mode.own_id, mode.from_last_file, mode.is_learner)
        self._transport.write(pack_hello(hello, self._start))

    def _no_welcome(self, ended: asyncio.Future[None]) -> None:
        if not self.welcome.done():
            error = None if ended.cancelled() else ended.exception()
            if error is None:
                self.welcome.cancel()
            else:
                self.welcome.set_exception(error)

    def copy(self, overlap: Overlap | None, begin: int | None, takes: tuple[Epoch, ...] | None) -> None:
        """Start replication after the log was truncated to the common part: compare the overlap, take over
        these epochs if given, and continue. ``begin``: as in :class:`LeaderLink`."""
        if self.ended.done():
            return
        self._is_open = True
        self._overlap, self._begin, self._takes = overlap, begin, takes
        self._next = overlap.equal if overlap is not None else begin
        self._report(self._next or 0)
        if overlap is not None and overlap.done:
            self._guard(lambda: self._go_through(deque()))

    def _report(self, offset: int) -> None:
        if self._is_open:
            super()._report(offset)

    # --- received -------------------------------------------------------------------------------------

    def _take(self, data: bytes) -> None:
        pieces: deque[EpochPiece] = deque()
        for said in self._frames.feed(data):
            if not isinstance(said, Welcome):
                pieces.append(said)
            elif not self.welcome.done():
                self.welcome.set_result(said)
        if pieces and not self._is_open:
            raise ProtocolError(f"the leader sent its log from {pieces[0].offset} before it was requested")
        if self._held is not None:
            self._held += _kept(pieces)
        elif pieces:
            self._go_through(pieces)

    def _go_through(self, pieces: deque[EpochPiece]) -> None:
        """Compare, then append in one write, up to the first byte of an epoch that is new here."""
        if self._overlap is not None and not self._compare(self._overlap, pieces):
            return
        parts: list[memoryview] = []
        confirmed = -1
        place = self._next
        while pieces:
            piece = pieces.popleft()
            offset, data, epoch, confirmed = piece
            if place is None:
                if offset > 0:
                    raise BeginAt(offset)
                place = self._next = 0
            if offset != place and not (offset < 0 and not data):  # -1: the leader's log is empty
                raise self._other_place(offset, place)
            if data and self._is_new(epoch, offset):
                pieces.appendleft(piece)
                self._hold(pieces, self._mode.history.heard(epoch))
                break
            if data:
                parts.append(data)
                place += len(data)
        if not self._agreed:
            self._agree()
        if parts and place is not None:
            self._next = place
            self._confirm(confirmed)
            self._append(b"".join(parts))
        elif confirmed >= 0:
            self._confirm(confirmed)
            self._store.progress.advance()

    def _compare(self, overlap: Overlap, pieces: deque[EpochPiece]) -> bool:
        """Compare the overlap before the end of this log with the leader's bytes. Return whether all of it is
        equal, so that the rest may be appended."""
        while pieces and not overlap.done:
            offset, data, epoch, confirmed = pieces.popleft()
            if offset != overlap.equal:
                raise self._other_place(offset, overlap.equal)
            if not data:
                self._heartbeat(offset)
            rest = overlap.compare(bytes(data))
            if overlap.equal == overlap.end:  # the rest may contain only the confirmed offset
                pieces.appendleft(EpochPiece(overlap.equal, memoryview(rest), epoch, confirmed))
        self._next = overlap.equal
        if not overlap.done:
            self._report(overlap.equal)
            return False
        if self._takes is not None:
            takes, self._takes = self._takes, None
            self._hold(pieces, self._mode.history.take(takes))
            return False
        self._agree()
        self._report(self.safe_end)
        return True

    def _is_new(self, epoch: Epoch, offset: int) -> bool:
        """Return whether a byte begins an epoch that is new here. Apache's leader sends the last range of an
        epoch with the number of the next one, whose start is then behind the range."""
        entries = self._mode.history.entries
        if epoch.start > offset or (entries and epoch == entries[-1]):
            return False
        if entries and epoch.number <= entries[-1].number:
            raise CannotFollow(
                LinkState.DIVERGED,
                f"the leader sent its log from {offset} in epoch {epoch.number} from {epoch.start}, and this "
                f"log is in epoch {entries[-1].number} from {entries[-1].start} there",
                resync=True,
            )
        return True

    def _confirm(self, confirmed: int) -> None:
        """Store the leader's confirmed offset, up to the end of this log, and the readable offset that
        follows from it."""
        self.confirmed = confirmed
        progress = self._store.progress
        if confirmed >= 0 and self._next is not None:
            progress.replicated = max(progress.replicated or 0, min(confirmed, self._next))

    # --- waiting for the disk ---------------------------------------------------------------------------

    def _hold(self, pieces: Iterable[EpochPiece], work: Awaitable[None]) -> None:
        """Process nothing more until this work is done."""
        assert self._transport is not None
        self._transport.pause_reading()
        self._held = deque(_kept(pieces))
        self._waiting = asyncio.ensure_future(self._go_on_after(work))

    async def _go_on_after(self, work: Awaitable[None]) -> None:
        try:
            await work
        except StoreError as error:
            self._end(not_writable(self._store, error))
        if self.ended.done() or self._transport is None:
            return
        held, self._held = self._held or deque(), None
        if self._overlap is not None and self._overlap.done:
            self._agree()
            self._report(self.safe_end)
        self._guard(lambda: self._go_through(held))
        if self._held is None and self._transport is not None and not self._transport.is_closing():
            self._heard_s = self._clock.monotonic_s()
            self._transport.resume_reading()


def _kept(pieces: Iterable[EpochPiece]) -> list[EpochPiece]:
    """Return the pieces with copies of their bytes, independent of the receive buffer."""
    return [piece._replace(data=memoryview(bytes(piece.data))) for piece in pieces]
