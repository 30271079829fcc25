"""The follower: replicates the leader's log while this broker follows.

Before it appends, it compares the overlap of the two logs. A leader whose log does not match is rejected with
a named state (:class:`kerolox.replication.link_state.LinkState`) and retried slowly, because the leader may
be replaced. Until then this store is unchanged and readable.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable

import msgspec

from kerolox.clock import Clock
from kerolox.errors import ConnectFailed, KeroloxError, sentences
from kerolox.net.dialer import Dialer
from kerolox.net.signing import Credentials
from kerolox.net.tls import ClientContext, ClientTls
from kerolox.observers import Observers
from kerolox.protocol.ha_epochs import Welcome
from kerolox.protocol.ha_proof import FollowersProof
from kerolox.replication.epoch_agreement import agreement
from kerolox.replication.epoch_link import EpochLink
from kerolox.replication.epoch_mode import EpochMode
from kerolox.replication.leader_link import LeaderLink
from kerolox.replication.leader_questions import LeaderQuestions, LogRange
from kerolox.replication.leaders_end import LeaderNote, LeadersEnd
from kerolox.replication.link_state import BeginAt, CannotFollow, LinkState, not_writable, resync_command
from kerolox.replication.overlap import Overlap, overlap_of, when_stored
from kerolox.replication.settings import HaSettings
from kerolox.store.message_store import MessageStore
from kerolox.store.state import NotWritable, Obstacle
from kerolox.store.truncate import CannotTruncate

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0
RETRY_FIRST_S = 0.2  # after a connection ended or failed
RETRY_MAX_S = 5.0
ASK_FIRST_S = 0.5  # interval of looking up the leader while it cannot be reached; doubles up to
ASK_MAX_S = 10.0
RETRY_REFUSED_S = 30.0  # after an error that requires an operator or another leader
ASK_END_S = 3.0  # interval of requests for the leader's log end
_TRYING = (LinkState.CONNECTING, LinkState.COMPARING)


class Follower:
    """Replicates from the current leader. Part of a broker's leadership."""

    def __init__(
        self,
        store: MessageStore,
        settings: HaSettings,
        clock: Clock,
        dialer: Dialer,
        *,
        ha_address: str = "",
        mode: EpochMode | None = None,
        tls: ClientTls | None = None,
        credentials: Credentials | None = None,
        proves: bool = False,
        promotion: Callable[[], int] = lambda: 0,
    ) -> None:
        """``mode``: set for a broker under a controller; its ``own_id`` must be set before :meth:`start`.
        ``tls``: used with leaders that support it. ``credentials``: proof of identity for leaders that
        require it; ``proves``: also for leaders that cannot be asked. ``promotion``: returns this broker's
        number of promotions."""
        self.mode = mode
        self.state = LinkState.OFF
        self.text = LinkState.OFF.value  # the state with all details
        self.leader = ""  # address of the leader's port for followers
        self.link: LeaderLink | None = None  # the last connection to the leader
        self.refusals = 0
        # called when replication begins, and begins again
        self.on_copying: Observers[[]] = Observers("copying began")
        self.leaders_end = LeadersEnd(store.root)
        # called when the leader should be looked up
        self.on_doubt: Observers[[]] = Observers("leader doubted")
        self._asked_s = -ASK_MAX_S  # time of the last such call,
        self._ask_s = ASK_FIRST_S  # and the minimum interval to the next
        self._store = store
        self._settings = settings
        self._clock = clock
        self._dialer = dialer
        self._fixed = ha_address  # set by an option: addresses from name servers are then ignored
        self._ha_address = ha_address
        self._broker_address = ""
        self._tls = None if tls is None else ClientContext(tls)
        self._credentials = credentials
        self._proves = proves
        self._promotion = promotion
        self._leaders_promotion: int | None = None  # None: unknown
        self._plainly = ""  # leader about which missing TLS was logged
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._is_loaded = False
        self._refusal = ""  # reason of the last rejection since replication worked
        store.state.on_change.append(self._store_changed)

    def lead_by(self, ha_address: str, broker_address: str) -> None:
        """Replicate from this address; `broker_address` is the leader's broker, for questions about its log.
        Empty: no leader is known."""
        ha_address = self._fixed or ha_address
        if (ha_address, broker_address) != (self._ha_address, self._broker_address):
            # A leader that name servers no longer list is retried at its previous address.
            self._broker_address = broker_address
            if ha_address and ha_address != self._ha_address:
                self._ha_address = ha_address
                if self.link is not None:
                    self.link.close()
            self._changed.set()

    def part(self) -> None:
        """Stop using the previous leader: another broker leads, and its address is not known yet."""
        self._ha_address = self._fixed
        self._broker_address = ""

    @property
    def copying(self) -> bool:
        return self.state is LinkState.COPYING

    @property
    def agrees(self) -> bool:
        """True if the leader's log is known to continue this one, or if this one is empty."""
        return self.copying or self._store.log.min_offset == self._store.log.max_offset

    async def has_followed(self) -> bool:
        """Return whether this broker followed another one when it last ran."""
        await self._load()
        note = self.leaders_end.note
        return note.followed or bool(note.address)

    async def _load(self) -> None:
        if not self._is_loaded:
            self._is_loaded = True
            await self.leaders_end.load()
            self._refusal = self.leaders_end.note.refused

    async def start(self) -> None:
        if self._task is None:
            self._set(LinkState.CONNECTING if self._ha_address else LinkState.NO_LEADER)
            await self._load()
            self._task = asyncio.get_running_loop().create_task(self._run())
            self._asking = asyncio.get_running_loop().create_task(self._ask_end())

    async def stop(self) -> None:
        """Stop. Afterwards nothing more is appended or truncated."""
        asking, self._asking = self._asking, None
        if asking is not None:
            asking.cancel()
            await asyncio.gather(asking, return_exceptions=True)
        await self.leaders_end.close()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            await self._store.cuts_over()
        self._set(LinkState.OFF)

    def _store_changed(self) -> None:
        """Retry if the store may have room again."""
        if self.state is LinkState.NOT_WRITABLE and not self._store.state.obstacles.keys() - {
            Obstacle.FOLLOWER
        }:
            self._changed.set()

    # --- lag ------------------------------------------------------------------------------------------

    @property
    def lacking(self) -> int:
        """Number of bytes that the leader is known to have in addition."""
        return max(0, self.leaders_end.note.end - self._store.log.max_offset)

    async def forget_leader(self) -> None:
        """This broker leads now: drop the note about the previous leader."""
        self._refusal = ""
        await self.leaders_end.keep(LeaderNote())

    async def _ask_end(self) -> None:
        while True:
            if self._broker_address:
                await self._hear_end(self._broker_address)
            await self._clock.sleep(ASK_END_S)

    async def _hear_end(self, address: str) -> None:
        try:
            end = await LeaderQuestions(self._dialer, address).end()
        except KeroloxError:
            return  # keep the previous note
        await self._note_end(address, end)

    async def _note_end(self, address: str, end: int) -> None:
        before = self.leaders_end.note
        note = msgspec.structs.replace(
            before, address=address or before.address, end=end, refused=self._refusal
        )
        if note != before:
            await self.leaders_end.keep(msgspec.structs.replace(note, at_ms=self._clock.wall_ms()))

    # --- retries --------------------------------------------------------------------------------------

    async def _run(self) -> None:
        failures = 0
        while True:
            self._changed.clear()
            address = self._ha_address
            if not address:
                self._set(LinkState.NO_LEADER)
                await self._changed.wait()
                continue
            if address != self.leader:
                self.leader, failures = address, 0
            try:
                await self._follow(address)
                continue
            except CannotFollow as error:
                self._refused(error)
                await self._note_end(self._broker_address, self.leaders_end.note.end)
                wait_s = RETRY_REFUSED_S
            except (KeroloxError, OSError, ValueError) as error:  # ValueError: an invalid address
                if self.state is LinkState.COPYING:
                    failures = 0
                self._lost(error)
                wait_s = min(RETRY_MAX_S, RETRY_FIRST_S * 2 ** min(failures, 10))
                failures += 1
            timer = self._clock.call_later(wait_s, self._changed.set)
            await self._changed.wait()
            timer.cancel()

    async def _follow(self, address: str) -> None:
        """Replicate until the connection ends. Raises the reason; returns if it should be retried at once."""
        store = self._store
        try:
            # A follower that cannot write must not connect: the leader would count on its copy.
            store.state.check_writable(besides=Obstacle.FOLLOWER)
        except NotWritable as error:
            raise not_writable(store, error) from error
        self._set(LinkState.CONNECTING)
        there = await self._leaders_range()
        if self.mode is not None:
            await self._follow_by_epochs(self.mode, address, there)
            return
        overlap: Overlap | None = None
        begin: int | None = None
        if store.log.min_offset == store.log.max_offset:
            begin = await self._begin_with_nothing(there)
        else:
            self._check_range(there)
            overlap = await overlap_of(store, 0 if there is None else there.low)
        link = LeaderLink(
            store,
            self._settings,
            self._clock,
            address,
            overlap=overlap,
            begin=begin,
            on_copying=lambda: self._copying(address),
            proof=self._proof(there),
        )
        if overlap is not None:
            self._set(LinkState.COMPARING)
        # Stored before connecting: the leader may die before its log end is known here.
        await self.leaders_end.keep(msgspec.structs.replace(self.leaders_end.note, followed=True))
        await self._connect(link, address, there)
        await self._until_it_ends(link)

    def _proof(self, there: LogRange | None) -> FollowersProof | None:
        """Return the proof that this leader requires; None if it requires none. Raises CannotFollow."""
        if not (self._proves if there is None else there.wants_proof):
            return None
        if self._credentials is None:
            raise CannotFollow(
                LinkState.NOT_LET_IN,
                "the leader requires followers to authenticate",
                "set innerClientAuthenticationCredentials to the leader's value",
            )
        return FollowersProof(self._credentials.access_key, self._credentials.secret_key)

    async def _context(self, address: str, there: LogRange | None) -> ssl.SSLContext | None:
        """Return the TLS context for a leader; None for a plain connection to RocketMQ's leaders, which do
        not support TLS."""
        if self._tls is None:
            return None
        if there is not None and not there.speaks_tls:
            if self._plainly != address:
                self._plainly = address
                log.warning(
                    "copied_plainly leader=%r next='its port for followers does not support TLS: use a "
                    "trusted network'",
                    address,
                )
            return None
        return await asyncio.get_running_loop().run_in_executor(None, self._tls.current)

    async def _connect(self, link: LeaderLink, address: str, there: LogRange | None) -> None:
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        context = await self._context(address, there)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await asyncio.get_running_loop().create_connection(
                    lambda: link,
                    host,
                    int(port) if port.isdigit() else 0,
                    ssl=context,
                    server_hostname=None if context is None else host,
                )
        except (OSError, TimeoutError) as error:
            link.close()
            raise ConnectFailed(address, error or f"no answer in {CONNECT_TIMEOUT_S:.0f} s") from error
        self.link = link

    async def _until_it_ends(self, link: LeaderLink) -> None:
        try:
            await asyncio.shield(link.ended)  # cancelling this task must not cancel the link's future
        except BeginAt as begin:
            await self._begin_at(begin.offset)
        finally:
            link.close()

    # --- under a controller -----------------------------------------------------------------------------

    async def _follow_by_epochs(self, mode: EpochMode, address: str, there: LogRange | None) -> None:
        """Replicate from a leader under a controller, which first sends the epochs of its log."""
        link = EpochLink(
            self._store,
            self._settings,
            self._clock,
            address,
            mode,
            on_copying=lambda: self._copying(address),
            proof=self._proof(there),
            tells_process=there is not None and there.hears_process,
        )
        await self._connect(link, address, there)
        try:
            await self._agree(mode, link, await asyncio.shield(link.welcome), there)
        except BaseException:
            link.close()
            raise
        await self._until_it_ends(link)

    async def _agree(self, mode: EpochMode, link: EpochLink, leader: Welcome, there: LogRange | None) -> None:
        """Truncate the log to the part common with the leader and continue from there. Raises
        CannotFollow."""
        store, history = self._store, mode.history
        found = agreement(store, history.entries, leader)
        if found.end < store.log.max_offset:
            self._set(LinkState.COMPARING)
            try:
                await store.truncate(found.end)
            except CannotTruncate as error:
                raise CannotFollow(LinkState.DIVERGED, str(error), resync=True) from error
        if store.log.min_offset == store.log.max_offset:
            await history.take(())
            link.copy(None, store.log.max_offset or None, None)
            return
        await history.cut(found.end)  # removes an epoch that began at the end, without a byte
        if there is None:
            # the leader certainly has its last file
            low = (found.end - 1) // store.segments.size * store.segments.size
        else:
            low = there.low
            if found.end < low:
                self._check_range(there)
        if leader.epochs and leader.epochs[0].start < found.end:
            low = max(low, leader.epochs[0].start)  # Apache's leader sends nothing from before
        takes = tuple(epoch for epoch in leader.epochs if epoch.start < found.end)
        link.copy(await overlap_of(store, low), None, takes if found.takes_epochs else None)

    # --- start offset -----------------------------------------------------------------------------------

    async def _leaders_range(self) -> LogRange | None:
        """Return the range of the leader's log; None if it cannot be asked and the range is not required."""
        self._leaders_promotion = None
        if not self._broker_address:
            return None
        try:
            address = self._broker_address
            found = await LeaderQuestions(self._dialer, address).log_range()
            await self._note_end(address, found.end)
            self._leaders_promotion = found.promotion
            return found
        except KeroloxError as error:
            if self.mode is None and self._store.log.min_offset == self._store.log.max_offset:
                raise  # the start must be known, or history would be missing
            log.info("leader_not_asked address=%s error=%r", self._broker_address, str(error))
            return None

    def _check_range(self, there: LogRange | None) -> None:
        """Raise unless the leader has the bytes that follow this log."""
        if there is None:
            return
        own = self._store.log
        last = when_stored(own.last_store_timestamp)
        if own.max_offset > there.end:
            raise CannotFollow(
                LinkState.LEADER_BEHIND,
                f"the leader's log holds {there.low} to {there.end} and this follower's {own.min_offset} to "
                f"{own.max_offset}, where the last message was stored {last}: the leader lost messages, "
                "or restarted with another disk",
                "make this broker the leader to keep those messages",
                resync=True,
            )
        if own.max_offset < there.low:
            raise CannotFollow(
                LinkState.TOO_OLD,
                f"the leader's log begins at {there.low} and this follower's ends at {own.max_offset}, where "
                f"the last message was stored {last}: the messages between were deleted at the leader",
                resync=True,
            )

    async def _begin_with_nothing(self, there: LogRange | None) -> int | None:
        """Return the start offset for replicating the whole log; None: the leader chooses it."""
        store = self._store
        at = store.log.max_offset
        if there is None:
            return at or None
        if there.low > 0:
            if at != there.low:
                await self._begin_at(there.low)
            return there.low
        if at:
            await self._begin_at(0)
        if there.end >= store.segments.size:
            # RocketMQ's leader treats an empty log as a request for its last file only. So this log is
            # started with the first record, which is requested like any message.
            store.log.append_raw(await LeaderQuestions(self._dialer, self._broker_address).record_at(0))
            return store.log.max_offset
        return 0

    async def _begin_at(self, offset: int) -> None:
        size = self._store.segments.size
        if offset % size:
            raise CannotFollow(
                LinkState.OTHER_FILE_SIZE,
                f"the leader's log begins at {offset}, which is not a multiple of {size}, the size of a log "
                "file here (mappedFileSizeCommitLog)",
                "set the leader's file size on this broker",
            )
        await self._store.begin_at(offset)
        log.info("follower_begins offset=%d", offset)

    # --- state and log lines --------------------------------------------------------------------------

    def _copying(self, address: str) -> None:
        self._refusal = ""
        if self.state is not LinkState.COPYING:
            self._set(LinkState.COPYING)
            self._ask_s = ASK_FIRST_S
            self._ask_who_leads()  # name servers may have lost it, too
            log.info("follower_copies leader=%r from=%d", address, self._store.log.max_offset)
            self.on_copying()

    def _refused(self, error: CannotFollow) -> None:
        self.refusals += 1
        text = str(error)
        own, leaders = self._promotion(), self._leaders_promotion
        if error.resync and leaders is not None and own > leaders:
            text = sentences(
                text,
                f"this broker was promoted after its leader (promotion {own} here, {leaders} there), so its "
                f"messages are newer: do not discard its log. Stop {self._broker_address} and "
                "make this broker the leader: kerolox broker promote",
            )
        elif error.resync:
            command = resync_command(self._store.root, self._broker_address)
            text = sentences(
                text, f"stop this broker and run `{command}` to continue from the common part of both logs"
            )
        if self.text != text:
            log.error("cannot_follow leader=%r state=%r reason=%r", self.leader, error.state.value, text)
        self.state, self.text = error.state, text
        self._refusal = text

    def _lost(self, error: Exception) -> None:
        text = str(error)
        if self.state is LinkState.COPYING or self.text != text:
            log.warning("leader_lost leader=%r error=%r next='retried automatically'", self.leader, text)
        self.state, self.text = LinkState.LOST, text
        self._ask_who_leads()

    def _ask_who_leads(self) -> None:
        """Look up the leader: at once when a connection broke or was restored, and at growing intervals while
        there is none."""
        now_s = self._clock.monotonic_s()
        if now_s - self._asked_s >= self._ask_s:
            self._asked_s = now_s
            self._ask_s = min(ASK_MAX_S, self._ask_s * 2)
            self.on_doubt()

    def _set(self, state: LinkState) -> None:
        if state in _TRYING and self.state not in (LinkState.OFF, LinkState.NO_LEADER, *_TRYING):
            return  # keep the reason of the failure until a connection works
        self.state, self.text = state, state.value
