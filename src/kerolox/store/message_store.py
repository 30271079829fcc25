"""Message store: a commit log, the queues and indexes built from it, and their start and stop."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import msgspec

from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.descriptors import PROCESS
from kerolox.protocol.hosts import host_bytes
from kerolox.store.delay_table import parse_levels
from kerolox.store.disk.cut_note import Cut
from kerolox.store.disk.files import Files
from kerolox.store.disk.lock import StoreLock
from kerolox.store.disk.log_identity import LogIdentity
from kerolox.store.disk.progress_notes import boot_identity
from kerolox.store.disk.read_failures import ReadFailures
from kerolox.store.disk.readers import Readers
from kerolox.store.disk.segment import OpenFiles
from kerolox.store.disk.segments import Segments
from kerolox.store.dispatch.dispatcher import Dispatcher
from kerolox.store.dispatch.keys import KeyFiller
from kerolox.store.dispatch.queue_units import BitsOf, UnitFiller
from kerolox.store.dispatch.queues import QueueFiller
from kerolox.store.errors import StoreError
from kerolox.store.expiry import Expiry
from kerolox.store.failures import Kind
from kerolox.store.housekeeping import Housekeeper
from kerolox.store.index.key_index import KeyIndex
from kerolox.store.ledger import StoredLedger
from kerolox.store.log.acks import Acks
from kerolox.store.log.commit_log import CommitLog, Place
from kerolox.store.log.flush import LogFlusher
from kerolox.store.log.ledger_index import LedgerIndex
from kerolox.store.log.ledger_log import LedgerLog
from kerolox.store.log.majority_acks import MajorityAcks
from kerolox.store.log.progress import Progress
from kerolox.store.log.replicas import Replicas
from kerolox.store.log.set_acks import SetAcks
from kerolox.store.log.set_copies import SetCopies
from kerolox.store.notes import Notes
from kerolox.store.offline.layout import LEDGER_PREFIX
from kerolox.store.opening import Opening
from kerolox.store.options import FlushMode, StoreOptions
from kerolox.store.parts import Derived, StoreDirectory, Writes
from kerolox.store.queue.consume_queues import ConsumeQueues, flush
from kerolox.store.queue.named_records import NamedRecords
from kerolox.store.queue.queues import Queues
from kerolox.store.queue.reading import QueueReader
from kerolox.store.recovery import Recovered
from kerolox.store.saving import ProgressSaver
from kerolox.store.standing_failures import StandingFailures
from kerolox.store.state import Obstacle, StoreState
from kerolox.store.truncate import Truncation

log = logging.getLogger(__name__)

LOCAL_HOST = host_bytes("127.0.0.1:10911")


class MessageStore:
    """All message data that a broker keeps on disk. One event loop owns it."""

    def __init__(
        self,
        options: StoreOptions,
        *,
        files: Files | None = None,
        clock: Clock = SYSTEM_CLOCK,
        store_host: bytes = LOCAL_HOST,
        boot: str | None = None,
        controlled: bool = False,
        epoch_path: str = "",
        alone: bool = True,
        bits_of: BitsOf | None = None,
    ) -> None:
        """Set up the store without opening it.

        ``controlled``: a controller elects the leader. Readers then see only confirmed messages, also during
        the start, and the log has epochs, in ``epoch_path`` or in the store. ``alone``: with a DLedger log,
        the group has no other member. ``bits_of`` returns the results of filters, for extensions of queues.
        """
        self.options = options
        self.controlled = controlled
        self.root = os.path.abspath(options.store_path)
        self.files = files or Files()
        if options.private_files:
            self.files.keep_private()
        self.clock = clock
        self.state = StoreState()
        self.failing = StandingFailures(self.state, clock)
        self.recovered: Recovered | None = None
        self._lock = StoreLock(self.files, self.root)
        # Allocates the next file of the log.
        self.ahead = ThreadPoolExecutor(1, thread_name_prefix="kerolox-ahead")
        self.readers = Readers()
        self.keeper = ThreadPoolExecutor(1, thread_name_prefix="kerolox-keep")  # queue flushes, deletion
        # Saves small files that an election waits for: votes, epochs, in-sync sets. A flush of the queues can
        # take seconds, and they must not wait for it.
        self.urgent = ThreadPoolExecutor(1, thread_name_prefix="kerolox-urgent")
        self.reads = ReadFailures(self.files, self.root, clock)
        self._open_files = open_files = OpenFiles(self.files, PROCESS.files, failures=self.reads)
        plain = _paths(options.commit_log_paths) or [self.path("commitlog")]
        member = self.path(f"{LEDGER_PREFIX}{options.ledger_self_id}")
        self.segments = Segments(
            self.files,
            (_paths(options.ledger_paths) or [os.path.join(member, "data")]) if options.ledger else plain,
            options.commit_log_file_bytes,
            open_files=open_files,
            # A member of a DLedger group may have started with a plain log.
            read_only_directories=[*(plain if options.ledger else ()), *_paths(options.read_only_paths)],
            transient=options.transient and not options.ledger,
            warm=options.warm,
        )
        self.consume_queues = ConsumeQueues(
            self.files,
            self.path("consumequeue"),
            file_bytes=options.queue_file_size,
            open_files=open_files,
            extension_directory=self.path("consumequeue_ext"),
            extension_file_bytes=options.queue_extension_file_bytes,
            extended=options.queue_extension,
        )
        self.progress = Progress(
            self.segments,
            wait_for_flush=options.flush_mode is FlushMode.SYNC,
            replicated=0 if options.ledger and not alone else None,
        )
        of_entries = partial(
            LedgerLog, index=LedgerIndex(self.files, os.path.join(member, "index"), open_files)
        )
        make: Callable[..., CommitLog] = of_entries if options.ledger else CommitLog
        self.log = make(
            self.segments,
            options,
            self.progress,
            self.failing,
            clock=clock,
            store_host=store_host,
            executor=self.ahead,
            next_offset_of=self.consume_queues.next_offset,
        )
        self.index = KeyIndex(
            self.files,
            self.path("index"),
            slots=options.index_slots,
            entries=options.index_entries,
            clock=clock,
            failures=self.reads,
        )
        self.notes = Notes(
            self.files,
            self.root,
            boot=boot_identity() if boot is None else boot,
            controlled=controlled,
            epoch_path=epoch_path,
        )
        self.flusher = LogFlusher(self.log, options, self.failing, clock=clock)
        self.replicas = Replicas(self.progress, options)
        self.copies = SetCopies(self.progress)
        self.ledger: StoredLedger | None = None
        if isinstance(self.log, LedgerLog):
            self.ledger = StoredLedger(self, self.log, member, alone=alone)
        acks = (self.flusher, self.replicas, options, self.state)
        if self.ledger is not None and not alone:
            self.acks: Acks = MajorityAcks(
                *acks, clock=clock, waits=self.ledger.waits, uncommitted=self.ledger.uncommitted
            )
        elif controlled:
            self.acks = SetAcks(*acks, clock=clock, copies=self.copies)
        else:
            self.acks = Acks(*acks, clock=clock)
        self.reader = QueueReader(self.log, options, _memory_bytes())
        self.queues = Queues(self.consume_queues, self.reader, self.log, self.readers, self.root)
        self.named = NamedRecords(self.log, self.queues, self.readers)

        # In this order: a message is in its queue before any listener is notified.
        self.dispatcher = Dispatcher(self.log, self.failing)
        filler = partial(UnitFiller, bits_of=bits_of) if options.queue_extension else QueueFiller
        self.queue_filler: QueueFiller = filler(
            self.consume_queues, parse_levels(options.delay_levels), multi_dispatch=options.multi_dispatch
        )
        self.key_filler = KeyFiller(self.index, clock)
        self.dispatcher.fillers.append(self.queue_filler.fill)
        if options.index_enabled:
            self.dispatcher.fillers.append(self.key_filler.fill)

        # Called one after the other when the log was truncated: first the parts that note progress, last the
        # parts that let clients read on. Their changes are on disk when the call returns.
        self.on_truncated: list[Callable[[Cut], Awaitable[None]]] = []
        self._truncations: set[asyncio.Task[Cut | None]] = set()
        self._directory = StoreDirectory(self.root, options, self.files, clock, self._lock, self.reads)
        self._derived = Derived(
            self.consume_queues, self.index, self.dispatcher, self.queue_filler, self.key_filler
        )
        self._writes = Writes(self.log, self.flusher, self.acks, self.failing)
        self._saver = ProgressSaver(self.log, self.flusher, self._derived, self.notes)
        self.housekeeper = Housekeeper(
            self._directory,
            self._writes,
            self._derived,
            self.notes,
            self._saver,
            self.ledger,
            readers=self.readers,
            keeper=self.keeper,
        )
        self.expiry = Expiry(self, self.housekeeper.spawn)
        self._opened = False

    def path(self, name: str) -> str:
        return os.path.join(self.root, name)

    # --- life ------------------------------------------------------------------------------------

    async def open(self, progress: Callable[[int], None] | None = None) -> Recovered:
        """Lock the directory, recover the log and start. Raise without having changed a damaged store."""
        loop = asyncio.get_running_loop()
        try:
            self.recovered = await loop.run_in_executor(self.keeper, self._recover, progress)
        except BaseException:
            self._stop_threads()
            self._open_files.close_all_idle()
            self.index.abandon()
            self.notes.close()
            self._lock.release()
            raise
        self.key_filler.start()
        if self.ledger is not None and self.ledger.alone:
            self.ledger.lead(max(0, self.ledger.end_term))
        self.log.prepare_next()
        self.flusher.start()
        self.housekeeper.start()
        self.expiry.start()
        self._opened = True
        found = self.recovered
        log.info(
            "store_open root=%s log=%d..%d read=%d seconds=%.2f crashed=%s",
            self.root, self.log.min_offset, found.end, found.bytes_read, found.seconds, found.crashed,
        )  # fmt: skip
        return found

    async def close(self) -> None:
        """Write and flush everything, and mark the stop as clean if it was."""
        if not self._opened:
            return
        self._opened = False
        await self.cuts_over()
        try:
            self.log.write()
            if not self.state.fenced:
                await self.flusher.flush_all()
        except StoreError as error:
            log.error(
                "close_flush_failed error=%r next='no action needed: the next start recovers'", str(error)
            )
        await self.flusher.close()
        self.acks.close()
        self.state.set(Obstacle.CLOSED, "the store was closed")
        try:
            self.key_filler.close()
        except StoreError as error:
            self.failing.failed(Kind.INDEX, error, work="close")
        self.expiry.close()
        await self.housekeeper.close()
        loop = asyncio.get_running_loop()
        try:
            await loop.run_in_executor(self.keeper, self._close_files)
        finally:
            self._stop_threads()
            self._lock.release()

    async def __aenter__(self) -> MessageStore:
        await self.open()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.close()

    # --- messages in -------------------------------------------------------------------------------

    async def put(
        self,
        topic: str,
        queue_id: int,
        body: bytes,
        properties: bytes = b"",
        *,
        flag: int = 0,
        sys_flag: int = 0,
        born_timestamp: int | None = None,
        born_host: bytes = LOCAL_HOST,
    ) -> Place:
        """Store one message and wait until it is as safe as the store promises. To store many messages,
        append them to ``log``, write once and wait once."""
        self.state.check_writable()
        place = self.log.append(
            self.log.cursor(topic, queue_id),
            body,
            properties,
            flag=flag,
            sys_flag=sys_flag,
            born_timestamp=self.clock.wall_ms() if born_timestamp is None else born_timestamp,
            born_host=born_host,
        )
        self.log.write()
        await self.acks.safe(place[0] + place[2])
        return place

    # --- messages out ------------------------------------------------------------------------------

    async def message_at(self, physical_offset: int) -> bytes:
        """Return the record at an offset that the store itself noted; for offsets that peers name, see
        :attr:`named`. Raise CorruptRecord if no record starts there."""
        return await self.readers.read(lambda: self.log.record_at(physical_offset), limited=True)

    async def find_by_key(
        self, topic: str, key: str, count_max: int = 32, begin_ms: int = 0, end_ms: int = (1 << 63) - 1
    ) -> list[bytes]:
        """Return records with this key or unique key, oldest first. The index holds only hashes: the caller
        compares keys."""
        self.key_filler.put_pending()
        count = min(count_max, self.options.query_count_max)

        def look() -> list[bytes]:
            places = sorted(self.index.query(topic, key, count, begin_ms, end_ms))
            return [record for place in places if (record := self.log.record_if_there(place)) is not None]

        return await self.readers.read(look, limited=True)

    async def delete_topic(self, topic: str, *, before: int | None = None) -> bool:
        """Remove a topic's queues. Its messages leave the log when their files expire."""
        return await self.housekeeper.delete_topic(topic, before=before)

    # --- another broker leads ------------------------------------------------------------------------

    async def begin_at(self, offset: int) -> None:
        """Set the beginning of an empty log to the beginning of the leader's log.

        ``offset`` must be a multiple of the file size, because a log begins with a file.
        """
        low, end = self.log.min_offset, self.log.max_offset
        if low != end or offset % self.segments.size:
            raise StoreError(
                f"cannot begin the log at {offset}: it holds {low} to {end} in files of "
                f"{self.segments.size} bytes",
                offset=offset,
            )

        def begin() -> None:
            self.notes.identity.save(LogIdentity(begin=offset))
            self.segments.delete_all()
            self.segments.start_at(offset)

        await asyncio.get_running_loop().run_in_executor(self.keeper, begin)
        self.log.begin()
        self.progress.reset()
        self.dispatcher.begin(offset)
        self.log.prepare_next()

    async def truncate(self, offset: int, *, untold: bool = False) -> Cut | None:
        """Truncate a follower's log at ``offset``, because the leader does not have the rest.

        Return what was removed; None if the log already ends there. Raise
        :class:`kerolox.store.truncate.CannotTruncate` if no record begins there, and DiskFull if there is no
        room to note the cut, both with nothing changed. An offset before the first file must be a multiple of
        the file size: then the log begins anew there.

        ``untold``: the listeners are not registered yet; the next start notifies them (:meth:`finish_cut`).
        """
        # The cut runs to its end even when the caller is cancelled: only the next start can finish half a
        # cut.
        task = asyncio.get_running_loop().create_task(self._truncate(offset, untold=untold))
        self._truncations.add(task)
        task.add_done_callback(self._truncations.discard)
        return await asyncio.shield(task)

    async def _truncate(self, offset: int, *, untold: bool) -> Cut | None:
        cut = Truncation(
            offset, self._directory, self._writes, self._derived, self.notes, self.queues, self.housekeeper
        )
        async with self.expiry.paused():
            return await cut.run(None if untold else self.tell_truncated)

    async def cuts_over(self) -> None:
        """Wait until no cut is under way: cuts continue after their callers are cancelled."""
        if self._truncations:
            await asyncio.wait(self._truncations)

    async def tell_truncated(self, cut: Cut) -> None:
        """Notify the listeners of a cut."""
        for observer in self.on_truncated:
            await observer(cut)

    async def finish_cut(self) -> None:
        """Notify the listeners of a cut that this start, or an offline tool, has finished. Call it once the
        store is open and its tables are loaded, before anything is appended."""
        if self.recovered is not None and self.recovered.cut is not None:
            await self.tell_truncated(self.recovered.cut)
            await asyncio.get_running_loop().run_in_executor(self.keeper, self.notes.cut.remove)

    # --- start and stop, in threads ------------------------------------------------------------------

    def _recover(self, progress: Callable[[int], None] | None) -> Recovered:
        found = self._opening().recover(progress)
        self.flusher.recovered(found.flushed_ms)
        self.reader.recovered(found.start)
        return found

    def _opening(self) -> Opening:
        return Opening(self._directory, self.log, self._derived, self.notes, self._saver, self.ledger)

    def _close_files(self) -> None:
        clean = not self.state.fenced
        try:
            # Fails again if it failed before: the notes must not claim those keys.
            self.key_filler.put_pending()
            flush(self.consume_queues.write())
            self.index.flush()
            noted = self._saver.note()  # never more than the flushed log
            self._saver.save_sums(noted.dispatched, whole=True)
            clean = clean and noted.dispatched >= self.progress.appended
            if clean:
                noted = msgspec.structs.replace(
                    noted,
                    log_end=self.progress.appended,
                    queue_files=sum(queue.file_count for queue in self.consume_queues),
                )
            self._saver.save_notes(noted, self._saver.queues_ms())
        except StoreError as error:
            clean = False
            log.error("close_failed error=%r next='no action needed: the next start recovers'", str(error))
        for part in (self.consume_queues, self.index, self.ledger, self.segments, self.notes):
            try:
                if part is not None:
                    part.close()
            except StoreError as error:
                clean = False
                log.error("close_failed part=%s error=%r", type(part).__name__, str(error))
        if clean:
            try:
                self.notes.note_stopped()
            except StoreError as error:
                log.error("abort_not_removed error=%r", str(error))
        else:
            log.warning("abort_kept next='no action needed: the next start recovers as after a crash'")

    def _stop_threads(self) -> None:
        self.readers.close()
        for pool in (self.ahead, self.urgent, self.keeper):
            pool.shutdown(wait=True)


def _paths(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _memory_bytes() -> int:
    try:
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    except (AttributeError, ValueError, OSError):
        return 24 << 30  # RocketMQ's assumption when the size is unknown
