"""A follower's connection to its leader: received bytes are compared, appended and acknowledged.

All of it happens when the bytes arrive: many ranges are appended in one write and acknowledged by one report.
There is no queue, so a follower with a slow disk reads slowly, and TCP slows the leader down.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import cast

from kerolox.clock import Clock, TimerHandle
from kerolox.errors import ConnectionLost, KeroloxError, ProtocolError
from kerolox.net.address import address_text
from kerolox.protocol.ha import RangeReader, pack_report
from kerolox.protocol.ha_proof import FollowersProof, ProofRefused
from kerolox.replication.link_state import BeginAt, CannotFollow, LinkState, not_writable
from kerolox.replication.overlap import Overlap, when_stored
from kerolox.replication.rate import Rate
from kerolox.replication.settings import HaSettings
from kerolox.store.errors import CorruptRecord, OtherFileSize, StoreError
from kerolox.store.message_store import MessageStore

LOOK_S = 1.0  # interval of checks of reports and silence


class LeaderLink(asyncio.Protocol):
    """Connection to the leader. It always ends with an error, which is in ``ended``.

    It uses the protocol of brokers without a controller; :mod:`kerolox.replication.epoch_link` has the other
    one.
    """

    def __init__(
        self,
        store: MessageStore,
        settings: HaSettings,
        clock: Clock,
        address: str,
        *,
        overlap: Overlap | None,
        begin: int | None,
        on_copying: Callable[[], None],
        proof: FollowersProof | None = None,
    ) -> None:
        """``overlap``: compared first. ``begin``: start offset without an overlap; None: the leader chooses
        it. ``proof``: authentication that the leader requires before."""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        # retrieve the error
        self.ended.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        self.rate = Rate(clock)
        self.heard_ms = 0  # wall time of the last received data
        self.said_ms = 0  # wall time of the last report
        self._store = store
        self._settings = settings
        self._clock = clock
        self._address = address
        self._overlap = overlap
        self._begin = begin
        self._on_copying = on_copying
        self._proof = proof
        self._reader = RangeReader()
        self._pack_report: Callable[[int], bytes] = pack_report
        self._next = overlap.equal if overlap is not None else begin  # expected offset of the next range
        self._agreed = False
        self._reported = -1
        self._heard_s = self._said_s = clock.monotonic_s()
        self._transport: asyncio.Transport | None = None
        self._look: TimerHandle | None = None

    @property
    def safe_end(self) -> int:
        """The offset that the leader may count on: equal to its own log, and as durable as this store
        promises."""
        if self._overlap is not None:
            return self._overlap.equal
        return self._store.acks.own_end(self._store.progress)

    @property
    def own_address(self) -> str:
        """Address of this follower as the leader sees it."""
        return "" if self._transport is None else address_text(self._transport.get_extra_info("sockname"))

    # --- the socket -----------------------------------------------------------------------------------

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        if self.ended.done():  # the connection is no longer needed
            self._transport.abort()
            return
        self._store.progress.on_committed.append(self._committed)
        self._store.flusher.on_flushed.append(self._flushed)
        self._look_soon()
        if self._proof is None:
            self._open()
        else:
            self._transport.write(self._proof.begin())

    def _open(self) -> None:
        """Send the first report."""
        if self._overlap is not None and self._overlap.done:
            self._agree()
        self._report(self._next or 0)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        silent = "" if self.heard_ms else " before it sent anything: its log has the reason"
        self._end(ConnectionLost(self._address, exc or f"the leader closed it{silent}"))

    def close(self) -> None:
        """Close the connection; nothing more is appended."""
        self._end(ConnectionLost(self._address, "this broker closed it"))

    def data_received(self, data: bytes) -> None:
        if self.ended.done():
            return
        self._heard_s = self._clock.monotonic_s()
        self.heard_ms = self._clock.wall_ms()
        self.rate.count(len(data))
        if self._proof is not None:
            data = self._prove(self._proof, data)
            if not data:
                return
        self._guard(lambda: self._take(data))

    def _prove(self, proof: FollowersProof, data: bytes) -> bytes:
        """Answer the leader's challenge. Return the bytes after the handshake."""
        assert self._transport is not None
        try:
            self._transport.write(proof.feed(data))
        except ProofRefused as error:
            self._end(
                CannotFollow(
                    LinkState.NOT_LET_IN,
                    f"{error}: both brokers need the same innerClientAuthenticationCredentials, of an "
                    "enabled Super user of the leader",
                    "the leader's log has the reason",
                )
            )
            return b""
        if not proof.done:
            return b""
        self._proof = None
        self._open()
        return proof.rest

    def _guard(self, take: Callable[[], None]) -> None:
        """Run `take`; close the connection with its error if it fails."""
        try:
            take()
        except (CannotFollow, BeginAt, ProtocolError) as error:
            self._end(error)
        except OtherFileSize as error:
            self._end(
                CannotFollow(
                    LinkState.OTHER_FILE_SIZE,
                    f"{error}; files here have {self._store.segments.size} bytes (mappedFileSizeCommitLog)",
                    "set the leader's file size on this broker and give it an empty store directory",
                )
            )
        except CorruptRecord as error:
            self._end(
                CannotFollow(
                    LinkState.NOT_A_LOG,
                    f"the data from the leader is rejected: {error}; this log ends at "
                    f"{self._store.log.max_offset}",
                    "check the leader's log: kerolox store verify",
                    resync=True,
                )
            )
        except StoreError as error:
            self._end(not_writable(self._store, error))

    # --- received -------------------------------------------------------------------------------------

    def _take(self, data: bytes) -> None:
        """Append all received ranges in one write."""
        parts: list[memoryview] = []
        place = self._next
        for offset, piece in self._reader.feed(data):
            if place is None:
                if offset:
                    raise BeginAt(offset)
                place = self._next = 0
            if offset != place:
                raise self._other_place(offset, place)
            place += len(piece)
            if not piece and not parts:
                self._heartbeat(offset)
            parts.append(piece)
        if self._overlap is None and not self._agreed:
            self._agree()
        if place is None or place == self._next:
            return
        self._next = place
        whole = parts[0] if len(parts) == 1 else b"".join(parts)
        self._append(bytes(whole))

    def _append(self, data: bytes) -> None:
        overlap = self._overlap
        if overlap is not None:
            data = overlap.compare(data)
            if not overlap.done:
                self._report(overlap.equal)
                return
            self._agree()
            self._report(self.safe_end)
        if data:
            store = self._store
            store.log.append_raw(data)
            store.acks.hasten(store.progress.appended)  # _flushed reports the result

    def _agree(self) -> None:
        """The overlap is equal: replicate from here on."""
        self._overlap = None
        self._agreed = True
        self._on_copying()

    def _heartbeat(self, offset: int) -> None:
        """Process a heartbeat: the leader has nothing more to send now."""
        overlap, store = self._overlap, self._store
        if overlap is not None:
            raise CannotFollow(
                LinkState.LEADER_BEHIND,
                f"the leader's log ends at {offset} and this follower's at {overlap.end}, where the last "
                f"message was stored {when_stored(store.log.last_store_timestamp)}: the leader lost the "
                "messages between",
                "make this broker the leader to keep those messages",
                resync=True,
            )

    def _other_place(self, offset: int, place: int) -> KeroloxError:
        store = self._store
        if store.log.min_offset == store.log.max_offset and self._overlap is None:
            # The leader began a new file since it was asked: to offset 0 it answers with its last file.
            return ConnectionLost(self._address, f"it sends from {offset}, but {place} was requested")
        return CannotFollow(
            LinkState.NOT_A_LOG,
            f"the leader sent its log from {offset}, but {place} is next",
            "check that its port for followers (haListenPort) is this one",
        )

    # --- reports --------------------------------------------------------------------------------------

    def _committed(self) -> None:
        if self._overlap is None:
            self._report(self.safe_end)

    def _flushed(self, flushed: int) -> None:
        if self._overlap is None:
            self._report(self.safe_end)

    def _report(self, offset: int) -> None:
        if offset > self._reported and self._proof is None:
            self._reported = offset
            self._say()

    def _say(self) -> None:
        if self._transport is not None and not self.ended.done():
            self._said_s = self._clock.monotonic_s()
            self.said_ms = self._clock.wall_ms()
            self._transport.write(self._pack_report(self._reported))

    def _look_soon(self) -> None:
        settings = self._settings
        look_s = min(LOOK_S, settings.ha_heartbeat_ms / 2000, settings.ha_silence_ms / 4000)
        self._look = self._clock.beat(look_s, self._look_at_it)

    def _look_at_it(self) -> None:
        self._look_soon()
        now_s = self._clock.monotonic_s()
        silent_s = now_s - self._heard_s
        if silent_s * 1000 > self._settings.ha_silence_ms:
            self._end(ConnectionLost(self._address, f"the leader sent nothing for {silent_s:.0f} s"))
        elif self._reported >= 0 and (now_s - self._said_s) * 1000 >= self._settings.ha_heartbeat_ms:
            self._say()

    def _end(self, error: KeroloxError) -> None:
        if self.ended.done():
            return
        self.ended.set_exception(error)
        if self._look is not None:
            self._look.cancel()
        if self._committed in self._store.progress.on_committed:
            self._store.progress.on_committed.remove(self._committed)
            self._store.flusher.on_flushed.remove(self._flushed)
        if self._transport is not None:
            self._transport.abort()
