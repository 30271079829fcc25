"""One follower, as its leader sees it: a connection, how far it was sent the log, how far it has it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from kerolox.errors import ProtocolError
from kerolox.net.address import address_text
from kerolox.net.tls import CLIENT_HELLO
from kerolox.protocol.ha import RANGE_BYTES_MAX, ReportReader, pack_head
from kerolox.protocol.ha_proof import OPENING, REFUSAL, ProofRefused
from kerolox.replication.entrance import REFUSE_AFTER_S, Entrance
from kerolox.replication.rate import Rate
from kerolox.replication.turned_away import Why
from kerolox.store.errors import StoreError

if TYPE_CHECKING:
    from kerolox.clock import TimerHandle
    from kerolox.replication.leader import Leader

READ_HOT_BYTES = 256 << 10  # in one turn of the loop
READ_COLD_BYTES = 1 << 20
UNSENT_BYTES_MAX = 1 << 20  # more is not given to a socket that does not take it

# By the first byte. A log that ends where these would be a report has 1 EiB at least.
_OTHER_PROTOCOLS = {
    CLIENT_HELLO: "it speaks TLS, and this port does not: tls.server.mode=disabled here, useTLS=true there",
    OPENING[
        0
    ]: "it proves who it is, and nobody is asked for that here: authenticationEnabled is set there alone",
}


class FollowerConnection(asyncio.Protocol):
    """Sends the log from where the follower's ends; hears how far it has come.

    These are the frames of brokers without a controller; :class:`kerolox.replication.epoch_connection` has
    the others.
    """

    follower_id: int | None = None  # of a follower under a controller
    batch_bytes_max = RANGE_BYTES_MAX

    def __init__(self, leader: Leader) -> None:
        self.address = ""
        self.next = -1  # offset of what is sent next; -1 until the follower said where it wants to begin
        self.acked = -1  # the follower has everything before this
        self.rate = Rate(leader.clock)
        self._leader = leader
        self._reports = ReportReader()
        self._head: Callable[[int, int], bytes] = pack_head  # what goes before so many bytes of the log
        self._transport: asyncio.Transport | None = None
        self._entrance: Entrance | None = None  # until it has proved who it is
        self._has_spoken = False
        self._paused = False  # the socket takes no more
        self._reading: asyncio.Task[None] | None = None  # from the disk
        self._later: TimerHandle | None = None  # when the limit lets more through
        self._heard_s = self._said_s = 0.0
        # The log ended at the mark then; a follower that has it all was there at that time.
        self._mark, self._mark_s = -1, 0.0
        self._was_there_s = 0.0

    @property
    def heard_s(self) -> float:
        """When something came from it."""
        return self._heard_s

    @property
    def joined(self) -> bool:
        return self.next >= 0

    @property
    def behind(self) -> int:
        """How many bytes it does not have yet."""
        return self._leader.store.progress.committed - self.acked

    @property
    def behind_s(self) -> float:
        """How old the log is that it has: for so long at most it has lacked something. Counted from its
        connection at the earliest."""
        return self._leader.clock.monotonic_s() - self._was_there_s if self.behind > 0 else 0.0

    @property
    def in_sync(self) -> bool:
        return self.joined and self.behind < self._leader.store.options.replica_gap_bytes

    # --- the socket -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=UNSENT_BYTES_MAX)
        self.address = address_text(transport.get_extra_info("peername"))
        self._heard_s = self._said_s = self._leader.clock.monotonic_s()
        if self._leader.trust is None:
            self._leader.connected(self)
        else:
            self._entrance = Entrance(self._leader.trust, self.address.rpartition(":")[0])
            self._leader.enters(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        if self._reading is not None:
            self._reading.cancel()
        if self._later is not None:
            self._later.cancel()
        self._leader.disconnected(self)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.abort()

    def pause_writing(self) -> None:
        self._paused = True

    def resume_writing(self) -> None:
        self._paused = False
        self.pump()

    # --- what it says ---------------------------------------------------------------------------------

    def data_received(self, data: bytes) -> None:
        if self._transport is None or self._transport.is_closing():
            return
        self._heard_s = self._leader.clock.monotonic_s()
        if self._entrance is not None:
            data = self._enter(self._entrance, data)
        if not data or self._transport.is_closing():
            return
        if not self._has_spoken:
            self._has_spoken = True
            other = _OTHER_PROTOCOLS.get(data[0])
            if other is not None:
                self._leader.turn_away(self, Why.NOT_A_REPORT, other)
                return
        try:
            self._hear(data)
        except ProtocolError as error:
            self._leader.turn_away(self, Why.NOT_A_REPORT, str(error))

    def _enter(self, entrance: Entrance, data: bytes) -> bytes:
        """Let it prove who it is; what came behind that."""
        assert self._transport is not None
        if self._later is not None:
            return b""  # it is refused in a moment
        try:
            answer = entrance.feed(data)
        except ProofRefused as error:
            text = (
                f"{error}. Followers sign with innerClientAuthenticationCredentials of a Super user here; "
                "for one that cannot, as RocketMQ's, name its address in haTrustedAddresses"
            )
            if entrance.began:
                self._later = self._leader.clock.call_later(REFUSE_AFTER_S, lambda: self._refuse(text))
            else:
                self._leader.turn_away(self, Why.NOT_KNOWN, text)
            return b""
        self._transport.write(answer)
        if not entrance.done:
            return b""
        self._entrance = None
        self._leader.connected(self)
        return entrance.rest

    def _refuse(self, text: str) -> None:
        self._later = None
        if self._transport is not None:
            self._transport.write(REFUSAL)
            self._leader.turn_away(self, Why.NOT_KNOWN, text)

    def _hear(self, data: bytes) -> None:
        """Take what it says. Raises ProtocolError."""
        offset = self._reports.feed(data)
        if offset is not None:
            self._reported(offset)

    def _reported(self, offset: int) -> None:
        leader = self._leader
        low, end = leader.store.log.min_offset, leader.store.progress.committed
        if offset > end:
            leader.turn_away(
                self,
                Why.AHEAD,
                f"the follower's log ends at {offset} and this leader's at {end}. If this leader has lost "
                f"messages, let the follower lead; if not, stop the follower and run there `{leader.resync}`",
            )
        elif self.joined:
            if offset > self.next:
                leader.turn_away(
                    self,
                    Why.UNSENT,
                    f"the follower has the log up to {offset}, it says, and was sent it up to {self.next}",
                )
            elif offset > self.acked:
                self.acked = offset
                self._look_at_mark(end)
                leader.acked(self, offset)
            else:
                self._heard_again()
        elif 0 < offset < low:
            leader.turn_away(
                self,
                Why.TOO_OLD,
                f"the follower's log ends at {offset} and this leader's begins at {low}: what lies between "
                f"was deleted. Stop the follower and run there `{leader.resync}`",
            )
        else:
            self.next = self.acked = offset or self._first(low, end)
            self._was_there_s = self._heard_s
            self._look_at_mark(end)
            leader.joined(self)
            leader.acked(self, offset)
            if self.next == end:
                self._beat()  # it waits to hear that it has all there is
            self.pump()

    def _first(self, low: int, end: int) -> int:
        """What is sent first to who has nothing: all there is. (RocketMQ sends its last file only.)"""
        return low

    def _heard_again(self) -> None:
        """It is as far as it was."""

    def _look_at_mark(self, end: int) -> None:
        if self.acked >= self._mark:
            if self._mark >= 0:
                self._was_there_s = self._mark_s
            self._mark, self._mark_s = end, self._heard_s

    # --- what it is sent ------------------------------------------------------------------------------

    def pump(self) -> None:
        """Send what there is, as much as the socket takes now and a turn of the loop should take."""
        leader = self._leader
        transport = self._transport
        if transport is None or transport.is_closing() or self._paused or not self.joined:
            return
        if self._reading is not None or self._later is not None:
            return
        there = self._available()
        if not there:
            if self.next < leader.store.progress.committed:
                leader.turn_away(
                    self,
                    Why.TOO_OLD,
                    f"the follower was too slow: it has to go on at {self.next}, which was deleted here; the "
                    f"log begins at {leader.store.log.min_offset}. Stop it and run there `{leader.resync}`",
                )
            return
        if leader.settings.ha_limited:
            there = min(there, self.rate.allowance(leader.settings.ha_bytes_per_s))
            if not there:
                self._later = leader.clock.call_later(self.rate.next_window_s(), self._go_on)
                return
        try:
            data = leader.ranges.read_hot(self.next, min(there, READ_HOT_BYTES))
        except StoreError as error:
            leader.turn_away(self, Why.UNREADABLE, str(error))
            return
        if data is None:
            size = min(there, READ_COLD_BYTES)
            self._reading = asyncio.get_running_loop().create_task(self._send_cold(size))
            return
        self._send(transport, data)
        if self.next < leader.store.progress.committed:
            asyncio.get_running_loop().call_soon(self.pump)

    def _available(self) -> int:
        """How many bytes can be sent together."""
        return self._leader.ranges.available(self.next)

    def look(self) -> None:
        """Is it time for a heartbeat? Is anybody there?"""
        leader, transport = self._leader, self._transport
        if transport is None:
            return
        now_s = leader.clock.monotonic_s()
        silent_s = now_s - self._heard_s
        if silent_s * 1000 > leader.settings.ha_silence_ms:
            leader.turn_away(
                self,
                Why.SILENT,
                f"nothing was heard of the follower for {silent_s:.0f} s"
                + ("" if self.joined else ", not even where its log ends"),
            )
        elif (
            self.joined
            and ((now_s - self._said_s) * 1000 >= leader.settings.ha_heartbeat_ms or self._has_news())
            and not transport.get_write_buffer_size()
            and self._reading is None
        ):
            self._beat()

    def _has_news(self) -> bool:
        """Whether there is something to say without any more of the log."""
        return False

    def _beat(self) -> None:
        """Say that there is nothing more at the moment."""
        if self._transport is not None:
            self._said_s = self._leader.clock.monotonic_s()
            self._transport.write(self._head(self.next, 0))

    async def _send_cold(self, size: int) -> None:
        try:
            data = await self._leader.ranges.read_cold(self.next, size)
        except StoreError as error:
            self._leader.turn_away(self, Why.UNREADABLE, str(error))
            return
        finally:
            self._reading = None
        if self._transport is not None and not self._transport.is_closing():
            self._send(self._transport, data)
            self.pump()

    def _send(self, transport: asyncio.Transport, data: bytes) -> None:
        batch = min(self._leader.settings.ha_batch_bytes, self.batch_bytes_max)
        if len(data) <= batch:
            transport.writelines([self._head(self.next, len(data)), data])
        else:
            view = memoryview(data)
            parts: list[bytes | memoryview] = []
            for at in range(0, len(data), batch):
                piece = view[at : at + batch]
                parts += (self._head(self.next + at, len(piece)), piece)
            transport.writelines(parts)
        self.next += len(data)
        self.rate.count(len(data))
        self._said_s = self._leader.clock.monotonic_s()

    def _go_on(self) -> None:
        self._later = None
        self.pump()
