"""The leader's connection to one follower: the offset sent and the offset acknowledged."""

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

READ_HOT_BYTES = 256 << 10  # per turn of the loop
READ_COLD_BYTES = 1 << 20
UNSENT_BYTES_MAX = 1 << 20  # limit of buffered bytes per socket

# By the first byte. A log end that begins with one of these bytes would be at least 1 EiB.
_OTHER_PROTOCOLS = {
    CLIENT_HELLO: "it uses TLS, which this port does not support: tls.server.mode=disabled here, useTLS=true "
    "there",
    OPENING[0]: "it authenticates, but authenticationEnabled is not set on this leader",
}


class FollowerConnection(asyncio.Protocol):
    """Sends the log from the end of the follower's log, and receives its progress.

    It uses the protocol of brokers without a controller; :class:`kerolox.replication.epoch_connection` has
    the other one.
    """

    follower_id: int | None = None  # id of a follower under a controller
    batch_bytes_max = RANGE_BYTES_MAX

    def __init__(self, leader: Leader) -> None:
        self.address = ""
        self.next = -1  # offset of the next byte to send; -1 until the follower has reported its start
        self.acked = -1  # the follower has everything before this offset
        self.rate = Rate(leader.clock)
        self._leader = leader
        self._reports = ReportReader()
        self._head: Callable[[int, int], bytes] = pack_head  # encodes the head of a range
        self._transport: asyncio.Transport | None = None
        self._entrance: Entrance | None = None  # None once the follower is authenticated
        self._has_spoken = False
        self._paused = False  # the socket's buffer is full
        self._reading: asyncio.Task[None] | None = None  # read from disk in progress
        self._later: TimerHandle | None = None  # timer of the rate limit
        self._heard_s = self._said_s = 0.0
        # The log end at the time of the mark; a follower that reaches it had everything at that time.
        self._mark, self._mark_s = -1, 0.0
        self._was_there_s = 0.0

    @property
    def heard_s(self) -> float:
        """Time of the last data from the follower."""
        return self._heard_s

    @property
    def joined(self) -> bool:
        return self.next >= 0

    @property
    def behind(self) -> int:
        """Number of bytes that the follower lacks."""
        return self._leader.store.progress.committed - self.acked

    @property
    def behind_s(self) -> float:
        """Upper bound of the time for which the follower has lacked bytes, counted at the earliest from its
        connection."""
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

    # --- received -------------------------------------------------------------------------------------

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
        """Authenticate the follower. Return the bytes after the proof."""
        assert self._transport is not None
        if self._later is not None:
            return b""  # a delayed rejection is pending
        try:
            answer = entrance.feed(data)
        except ProofRefused as error:
            text = (
                f"{error}. Followers need innerClientAuthenticationCredentials of a Super user of this "
                "leader; for RocketMQ's followers, which cannot authenticate, add their address to "
                "haTrustedAddresses"
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
        """Process received bytes. Raises ProtocolError."""
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
                f"the follower's log ends at {offset} and this leader's at {end}. If this leader lost "
                "messages, make the follower the leader; if not, stop the follower and run "
                f"`{leader.resync}` there",
            )
        elif self.joined:
            if offset > self.next:
                leader.turn_away(
                    self,
                    Why.UNSENT,
                    f"the follower reports the log up to {offset}, but was sent it only up to {self.next}",
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
                f"the follower's log ends at {offset} and this leader's begins at {low}: the part between "
                f"was deleted. Stop the follower and run `{leader.resync}` there",
            )
        else:
            self.next = self.acked = offset or self._first(low, end)
            self._was_there_s = self._heard_s
            self._look_at_mark(end)
            leader.joined(self)
            leader.acked(self, offset)
            if self.next == end:
                self._beat()  # tells the follower that it has everything
            self.pump()

    def _first(self, low: int, end: int) -> int:
        """Return the first offset to send to an empty follower: the start of the log. (RocketMQ sends only
        its last file.)"""
        return low

    def _heard_again(self) -> None:
        """The follower repeated its last report."""

    def _look_at_mark(self, end: int) -> None:
        if self.acked >= self._mark:
            if self._mark >= 0:
                self._was_there_s = self._mark_s
            self._mark, self._mark_s = end, self._heard_s

    # --- sent -----------------------------------------------------------------------------------------

    def pump(self) -> None:
        """Send the next range, limited by the socket's buffer and by one turn of the loop."""
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
                    f"the follower was too slow: it needs the log from {self.next}, which was deleted here; "
                    f"the log begins at {leader.store.log.min_offset}. Stop it and run `{leader.resync}` "
                    "there",
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
        """Return the number of bytes that can be sent together."""
        return self._leader.ranges.available(self.next)

    def look(self) -> None:
        """Send a heartbeat if it is due; close a silent connection. Called regularly."""
        leader, transport = self._leader, self._transport
        if transport is None:
            return
        now_s = leader.clock.monotonic_s()
        silent_s = now_s - self._heard_s
        if silent_s * 1000 > leader.settings.ha_silence_ms:
            leader.turn_away(
                self,
                Why.SILENT,
                f"the follower sent nothing for {silent_s:.0f} s"
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
        """Return whether a frame without log bytes must be sent."""
        return False

    def _beat(self) -> None:
        """Send an empty range: there is nothing more at the moment."""
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
