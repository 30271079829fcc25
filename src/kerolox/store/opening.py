"""Open a store: examine its files, and bring queues and index in step with the log.

Data that the saved sums cover is trusted. Data that they do not cover, or that contradicts the log, is
rebuilt from the log, with a log line. A store whose log is damaged is not opened.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import msgspec

from kerolox.protocol.record_scan import PHYSICAL_OFFSET, QUEUE_ID, SIZE, TOPIC, Entry
from kerolox.store.delay_table import parse_levels
from kerolox.store.disk.cut_note import Cut
from kerolox.store.disk.progress_notes import UNKNOWN, ProgressNotes
from kerolox.store.disk.sums import CHECKED_BYTES, Sums
from kerolox.store.dispatch.comparing import Comparison
from kerolox.store.errors import DiskError, QueueGap, StoreError
from kerolox.store.ledger import StoredLedger
from kerolox.store.log.commit_log import CommitLog
from kerolox.store.log.framing import position_of
from kerolox.store.notes import Notes
from kerolox.store.offline.half_made import refuse_half_made
from kerolox.store.offline.index_check import IndexCheck
from kerolox.store.offline.layout import Finding, OnlyReading, find_layout, ledgers_in
from kerolox.store.offline.repair_note import refuse_unfinished
from kerolox.store.parts import Derived, StoreDirectory
from kerolox.store.queue.consume_queue import ConsumeQueue
from kerolox.store.queue.consume_queues import flush
from kerolox.store.queue.entry import SIMPLE
from kerolox.store.recovery import (
    Circumstances,
    Recovered,
    choose_start,
    cut_behind,
    dispatch_found,
    find_end,
    record_starts,
    refuse_early_end,
    refuse_gaps,
)
from kerolox.store.saving import ProgressSaver
from kerolox.store.truncate import clear_log, clear_timer
from kerolox.store.verdict import doubtful_from, noted_end, refuse_lost_log, refuse_strange_files

log = logging.getLogger(__name__)

# Queues without sums are compared with the whole log if it is no larger than this: some seconds, once.
COMPARED_BYTES_MAX = 2 << 30
SUMMED_BESIDE = 4
_LIGHT_QUEUE_PREFIX = "%LMQ%"


class Opening:
    """One start of one store. It blocks: run it in a thread, before anything else uses the store."""

    def __init__(
        self,
        directory: StoreDirectory,
        log: CommitLog,
        derived: Derived,
        notes: Notes,
        saver: ProgressSaver,
        ledger: StoredLedger | None,
    ) -> None:
        self._directory = directory
        self._log = log
        self._queues, self._index = derived.queues, derived.index
        self._derived = derived
        self._notes = notes
        self._saver = saver
        self._ledger = ledger
        self._sums: Sums | None = None
        # Queues to be refilled from the log, and the log offset from which on.
        self._floors: dict[tuple[str, int], int] = {}
        self._counts: dict[tuple[str, int], int] = {}  # the queue offsets these had reached
        self._verified_ends: dict[ConsumeQueue, int] = {}  # sums cover only entries before these offsets
        self._confirmed_end = 0  # end of the confirmed log; later messages wait to be confirmed

    def recover(self, progress: Callable[[int], None] | None) -> Recovered:
        place, notes, segments = self._directory, self._notes, self._log.segments
        filler = self._derived.queue_filler
        refuse_half_made(place.root, place.files)
        refuse_unfinished(place.root, place.files)
        place.files.make_dirs(place.root)
        place.lock.take()
        if place.options.private_files:
            self._close_to_others()
        marks, crashed = notes.load(place.clock.wall_ms())
        segments.load()
        if self._ledger is not None:
            self._ledger.place()
        self._refuse_other_log()
        sums = self._sums = notes.sums.load()
        cut, untold = notes.cut.found(crashed=crashed)
        self._judge_files(cut, marks, crashed)
        if cut is not None:
            marks = self._finish_cut(cut, marks)
            sums = self._sums = None
        self._queues.load()
        if sums is None:
            safe = marks.dispatched if crashed and marks.dispatched != UNKNOWN else None
            self._queues.recover(crashed=crashed, safe_physical=safe)
            if cut is not None:
                self._queues.truncate_to_physical(cut.end)
        else:
            self._judge_queues(sums, crashed)
        filler.rule.deleted = notes.deleted.load()
        self._index.load(
            after_crash=crashed,
            checkpoint_ms=notes.checkpoint.index_ms,
            sums=None if sums is None else sums.index,
        )
        if segments.first is None:
            self._refuse_lost_log(marks, cut)
            self._queues.delete_all()
            self._index.delete_all()
            segments.roll()
            notes.fit(0)
            found = Recovered(crashed=crashed, start=0, end=0, stop="a new log")
        else:
            found = self._recover_all(marks, crashed, progress)
        filler.rule.deleted = {}  # from here on all messages are new
        if self._ledger is not None:
            found.end = self._ledger.begin(found.end)
        found.flushed_ms = max(found.last_store_timestamp, notes.checkpoint.commit_log_ms)
        self._saver.save_sums(self._begin(found))
        notes.progress.save(self._saver.note())
        place.lock.sign()
        notes.note_running()
        if cut is not None:
            found.cut = cut
            notes.checkpoint.save()
            # The note stays until the tables fit, too: after a kill before that the next start notifies them.
            notes.cut.save_untold(cut)
        elif untold is not None:
            if found.end <= untold.end:
                found.cut = untold
            else:
                notes.cut.forget(untold)
        return found

    def _begin(self, found: Recovered) -> int:
        """Set log, progress and dispatch to the recovered log; return the offset up to which it is
        dispatched."""
        commit_log = self._log
        self._queues.correct_min_offsets(commit_log.min_offset)
        commit_log.begin()
        commit_log.progress.reset()
        waiting = commit_log.undispatched
        dispatched = position_of(commit_log.segments, waiting[0][PHYSICAL_OFFSET]) if waiting else found.end
        if self._notes.controlled and self._confirmed_end:
            # The blank record at the end of a file is no message, and needs no confirmation.
            dispatched = min(dispatched, self._confirmed_end)
        self._derived.dispatcher.begin(dispatched)
        if self._notes.controlled or (self._ledger is not None and not self._ledger.alone):
            commit_log.progress.confirm_to(dispatched)
            commit_log.renew_cursors()
        commit_log.recovered(found.last_store_timestamp, found.flushed_ms)
        return dispatched

    def _refuse_other_log(self) -> None:
        """Raise if the messages of this store are in a log that the options do not name."""
        place, ledger = self._directory, self._ledger
        own = None if ledger is None else os.path.basename(ledger.directory)
        others = [name for name in ledgers_in(place.root, place.files) if name != own]
        if others:
            set_to = (
                "enableDLegerCommitLog is not set" if own is None else f"dLegerSelfId={own.partition('-')[2]}"
            )
            raise StoreError(
                f"{place.path(others[0])} holds the log of a DLedger group member, but {set_to}. Nothing "
                "was changed. Start the broker with enableDLegerCommitLog=true and "
                f"dLegerSelfId={others[0].partition('-')[2]}: the messages are in no other log. To return to "
                "a plain log, send the messages anew.",
                path=place.path(others[0]),
            )

    def _judge_files(self, cut: Cut | None, marks: ProgressNotes, crashed: bool) -> None:
        """Raise if the log's first file is missing, or a file belongs to another log."""
        identity = self._notes.identity.load(trusted=self._directory.lock.signed)
        if identity is not None and cut is not None:
            identity = identity.before(cut.end)
        doubtful = doubtful_from(marks, self._notes.boot, crashed=crashed)
        refuse_strange_files(self._log.segments, identity, self._directory.root, doubtful)

    def _close_to_others(self) -> None:
        for path in (self._directory.root, *self._log.segments.directories):
            try:
                count = self._directory.files.close_to_others(path)
            except DiskError as error:
                log.warning(
                    "store_open_to_others path=%s error=%r next='remove the rights of other users, because "
                    "access control is on: chmod -R go= %s'", path, str(error), path,
                )  # fmt: skip
                continue
            if count:
                log.info("store_closed_to_others path=%s changed=%d", path, count)

    def _finish_cut(self, cut: Cut, marks: ProgressNotes) -> ProgressNotes:
        """Finish a cut during which the process died. Data that the cut may have changed is not trusted."""
        log.warning("cut_finished offset=%d reason='the process died while the log was cut'", cut.end)
        self._notes.lower_to(cut)
        self._notes.clear_behind(cut)
        self._log.segments.truncate_to(min(cut.end, self._log.segments.wrote))
        clear_log(self._log.segments, cut)
        self._log.segments.close()
        self._log.segments.load()  # all data in the files counts as written until it was read
        clear_timer(self._directory, cut)
        return ProgressNotes(
            boot=marks.boot, dispatched=min(marks.dispatched, cut.end), flushed=min(marks.flushed, cut.end)
        )

    def _refuse_lost_log(self, marks: ProgressNotes, cut: Cut | None) -> None:
        """Raise if a store without log files had messages and was not being truncated to nothing."""
        if cut is None:
            ends = len(self._queues), self._queues.max_physical
            refuse_lost_log(self._log.segments, marks, self._sums, *ends, self._directory.root)

    def circumstances(self, marks: ProgressNotes, crashed: bool) -> Circumstances:
        """Return the facts known before the log is read."""
        queues_end = self._queues.max_physical if self._sums is None else self._sums.end
        # If the noted end of the store is its end now, kerolox used the store last: missing queues and index
        # files have vanished and are rebuilt from the log. With sums this is not needed, because they list
        # the queues and files.
        ours = self._sums is None and (crashed or (marks.log_end != UNKNOWN and queues_end <= marks.log_end))
        queue_files = sum(queue.file_count for queue in self._queues)
        queues_vanished = ours and (len(self._queues) < marks.queues or queue_files < marks.queue_files)
        index_vanished = self._directory.options.index_enabled and (
            (
                self._sums is None
                and not len(self._index)
                and (marks.index_files > 0 or (not crashed and marks.index_files != 0))
            )
            or (ours and not crashed and len(self._index) < marks.index_files)
        )
        if queues_vanished or index_vanished:
            log.warning(
                "rebuilding queues=%d of %d queue_files=%d of %d index_files=%d of %d "
                "reason='files have vanished' next='no action needed: the whole log is read'",
                len(self._queues),
                marks.queues,
                queue_files,
                marks.queue_files,
                len(self._index),
                marks.index_files,
            )
        if self._directory.options.index_enabled and self._index.damage:
            log.warning(
                "index_damaged reason=%r next='no action needed: it is rebuilt from the whole log'",
                self._index.damage,
            )
            index_vanished = True
        elif self._compares_all and crashed and self._directory.options.index_enabled and len(self._index):
            log.info("index_made_again reason='no saved sums cover it'")
            index_vanished = True
        return Circumstances(
            crashed=crashed,
            power_lost=not marks.boot or not self._notes.boot or marks.boot != self._notes.boot,
            marks=marks,
            queues_end=queues_end,
            queues_vanished=queues_vanished,
            index_vanished=index_vanished,
            vouched_to=UNKNOWN if self._sums is None else self._sums.end,
        )

    # --- queues --------------------------------------------------------------------------------------

    def _judge_queues(self, sums: Sums, crashed: bool) -> None:
        """Compare every queue with its sums. Changes nothing."""
        log_min = max(0, self._log.segments.min_offset)
        known = {(queue.topic, queue.queue_id): queue for queue in sums.queues}
        queues = [(queue, known.get((queue.topic, queue.queue_id))) for queue in self._queues]
        # All entries are read, twenty bytes for each message, by several threads: computing sums releases the
        # interpreter.
        with ThreadPoolExecutor(SUMMED_BESIDE, thread_name_prefix="kerolox-sums") as pool:
            judged = list(
                pool.map(lambda pair: None if pair[1] is None else pair[0].verified_end(pair[1]), queues)
            )
        for (queue, of_queue), unlike in zip(queues, judged, strict=True):
            key = queue.topic, queue.queue_id
            if unlike is not None and of_queue is not None:
                self._refuse_light(queue)
                log.warning(
                    "queue_damaged topic=%r queue=%d path=%s first=%d end=%d reason='not the bytes that were "
                    "written' next='no action needed: its later entries are rebuilt from the log'",
                    *key,
                    queue.path,
                    unlike,
                    of_queue.end // SIMPLE.size,
                )
                self._verified_ends[queue] = unlike
                self._counts[key] = of_queue.end // SIMPLE.size
                self._floors[key] = max(log_min, queue.physical_before(unlike))
            elif crashed and not self._is_light(queue):
                # Later entries have no sum, and their messages are read again anyway.
                self._verified_ends[queue] = 0 if of_queue is None else of_queue.end // SIMPLE.size
        for key, of_queue in known.items():
            if self._queues.find(*key) is None:
                log.warning(
                    "queue_missing topic=%r queue=%d next='no action needed: it is rebuilt from the log'",
                    *key,
                )
                self._counts[key] = of_queue.end // SIMPLE.size
                self._floors[key] = log_min

    def _recover_queues(self, sums: Sums, crashed: bool) -> None:
        """Find the end of every queue; truncate entries that the sums do not cover."""
        known = {(queue.topic, queue.queue_id): queue for queue in sums.queues}
        self._queues.recover(crashed=crashed, verified_ends=self._verified_ends)
        for queue in self._queues:
            key = queue.topic, queue.queue_id
            if key in self._floors:
                if queue.max_physical < self._log.min_offset:
                    queue.delete()  # its remaining entries have no message in the log
            elif key in known:
                queue.adopt(known[key])

    def _is_light(self, queue: ConsumeQueue) -> bool:
        return queue.topic.startswith(_LIGHT_QUEUE_PREFIX) and not self._directory.options.multi_dispatch

    def _refuse_light(self, queue: ConsumeQueue) -> None:
        if self._is_light(queue):
            raise StoreError(
                f"{queue.path} is damaged, and light queues are rebuilt from the log only with "
                "enableMultiDispatch=true and enableLmq=true. Set both and restart.",
                path=queue.path,
            )

    @property
    def _compares_all(self) -> bool:
        """Return True if there are no sums, and the log is small enough to compare queues and index with
        it."""
        segments = self._log.segments
        return self._sums is None and segments.wrote - max(0, segments.min_offset) <= COMPARED_BYTES_MAX

    def _wanted(self, trusted: int) -> Callable[[Entry], bool]:
        """Return a test for messages that may be missing in their queue: those from ``trusted`` on, and for
        some queues earlier ones.

        Earlier messages of queues that do not exist belong to deleted topics.
        """
        floors = {(topic.encode(), queue_id): floor for (topic, queue_id), floor in self._floors.items()}
        light = [floor for (topic, _), floor in self._floors.items() if topic.startswith(_LIGHT_QUEUE_PREFIX)]
        all_from = min([trusted, *light])

        def wanted(entry: Entry) -> bool:
            physical = entry[PHYSICAL_OFFSET]
            floor = floors.get((entry[TOPIC], entry[QUEUE_ID]), all_from)
            return physical >= all_from or physical >= floor

        return wanted

    # --- the log -------------------------------------------------------------------------------------

    def _recover_all(
        self, marks: ProgressNotes, crashed: bool, progress: Callable[[int], None] | None
    ) -> Recovered:
        known = self.circumstances(marks, crashed)
        try:
            found = self._recover_log(known, progress)
        except QueueGap as gap:
            log.warning("rebuilding reason=%r next='no action needed: the whole log is read'", str(gap))
            found = self._recover_log(msgspec.structs.replace(known, queues_vanished=True), progress)
        self._notes.fit(found.end)
        self._queues.truncate_to_physical(found.end)
        self._index.truncate_to(found.end)
        for key, count in self._counts.items():
            queue = self._queues.queue(*key)
            if queue.next_offset < count:
                queue.count_from(count)
        self._notes.deleted.finish(self._queues)
        if crashed:
            # Data that was read may still be only in memory: it is flushed before it counts as safe.
            self._log.segments.flush_again_from(found.start)
            self._log.segments.flush()
        # The progress notes saved next state that queues and index hold all of it, so the next start may skip
        # it.
        flush(self._queues.write())
        self._index.sync(self._index.write())
        return found

    def _confirmed(self, known: Circumstances, found: Recovered) -> int:
        """Return the offset up to which messages are dispatched.

        In a DLedger group: the offset that a majority is known to have. Under a controller: the last noted
        confirmed offset, or the end of the queues, because only confirmed messages enter them. Later messages
        wait until this broker leads, or its leader confirms them.
        """
        if self._ledger is not None:
            seen = max(known.queues_end, known.marks.dispatched)
            return self._ledger.recover(found.start, found.end, seen)
        if not self._notes.controlled:
            return found.end
        noted = max(self._notes.checkpoint.confirmed_offset, known.marks.dispatched)
        return max(noted, known.queues_end, self._log.min_offset)

    def _give(self, entries: list[Entry]) -> None:
        """Dispatch the confirmed entries, and keep the rest for later."""
        confirmed = self._bounded(entries)
        if confirmed:
            self._derived.dispatcher.give(confirmed)
        self._log.undispatched.extend(entries[len(confirmed) :])

    def _bounded(self, entries: list[Entry]) -> list[Entry]:
        last = entries[-1]
        if last[PHYSICAL_OFFSET] + last[SIZE] <= self._confirmed_end:
            return entries
        return [entry for entry in entries if entry[PHYSICAL_OFFSET] + entry[SIZE] <= self._confirmed_end]

    def _with_bound(self, take: Callable[[list[Entry]], None]) -> Callable[[list[Entry]], None]:
        def bounded(entries: list[Entry]) -> None:
            if confirmed := self._bounded(entries):
                take(confirmed)

        return bounded

    def _recover_log(self, known: Circumstances, progress: Callable[[int], None] | None) -> Recovered:
        sums = self._sums
        segments, checkpoint = self._log.segments, self._notes.checkpoint
        self._log.undispatched.clear()
        # The queues hold all messages before this, even if earlier ones are read for the index.
        trusted = choose_start(segments, checkpoint, msgspec.structs.replace(known, index_vanished=False))
        start = min([trusted, *self._floors.values()])
        if self._compares_all or known.rebuild:
            start = self._log.min_offset
        read_from = start
        if read_from > self._log.min_offset:
            # The end of the log is checked at every start: a crash or a copy may have damaged it.
            read_from = min(start, self._checked_from(start))
        refuse_gaps(segments, read_from, self._directory.root)
        found, kept = find_end(
            segments,
            read_from,
            known,
            checkpoint,
            check_crc=self._directory.options.check_crc,
            root=self._directory.root,
            progress=progress,
        )
        refuse_early_end(segments, found, noted_end(known.marks, sums), self._directory.root)
        self._confirmed_end = self._confirmed(known, found)
        if (
            self._compares_all
            and not known.rebuild
            and len(self._index)
            and not self._index_agrees(found, kept)
        ):
            known = msgspec.structs.replace(known, index_vanished=True)
        # The log is good. Nothing is changed before this line.
        found.dispatched_from = start
        self._index.settle()
        if sums is not None:
            self._recover_queues(sums, known.crashed)
        if known.rebuild:
            self._notes.note_unfinished(0)
        if known.queues_vanished:
            for queue in self._queues:
                # A queue whose messages have all left the log keeps its files, because they hold its offset.
                if queue.max_physical > self._log.min_offset:
                    queue.delete()
        elif sums is None or not known.crashed:
            self._compare(found, kept, start if sums is None else trusted, trusted)
        if known.index_vanished:
            self._index.delete_all()
        cut_behind(segments, found)
        wanted = None if known.queues_vanished else self._wanted(trusted)
        with self._derived.queue_filler.refilling(wanted, fill_gaps=start <= self._log.min_offset):
            dispatch_found(segments, found, kept, self._give, start)
        self._derived.key_filler.put_pending()
        return found

    def _checked_from(self, start: int) -> int:
        """Return an offset at least :data:`CHECKED_BYTES` before ``start`` at which a record begins.

        Without sums, or if no record begins any more at the offset they name, it is the beginning of a file.
        """
        segments, first = self._log.segments, self._log.min_offset
        before = start - CHECKED_BYTES
        if self._sums is not None and self._sums.before != UNKNOWN:
            before = self._sums.before
            if before > first and record_starts(segments, before):
                return before
        if before <= first:
            return first
        segment = segments.segment_at(before)
        return before - before % segments.size if segment is None else segment.start

    def _compare(self, found: Recovered, kept: list[Entry] | None, start: int, trusted: int) -> None:
        """Truncate queues where they contradict the log: those entries are then rebuilt from it."""
        comparison = Comparison(self._queues, self._log)
        levels = parse_levels(self._directory.options.delay_levels)
        filler = comparison.filler(levels, multi_dispatch=self._directory.options.multi_dispatch)
        filler.rule.deleted = self._derived.queue_filler.rule.deleted
        dispatch_found(self._log.segments, found, kept, self._with_bound(filler.fill), start)
        if comparison.unlike:
            self._notes.note_unfinished(start)
        for queue, offset, physical in comparison.unlike:
            key = queue.topic, queue.queue_id
            if offset < queue.next_offset or physical < trusted or not found.crashed:
                log.warning(
                    "queue_damaged topic=%r queue=%d path=%s first=%d end=%d reason='differs from the log' "
                    "next='no action needed: its later entries are rebuilt from the log'",
                    *key,
                    queue.path,
                    offset,
                    queue.next_offset,
                )
                self._counts.setdefault(key, queue.next_offset)
            queue.cut_at(offset)
            self._floors[key] = min(self._floors.get(key, start), start)

    def _index_agrees(self, found: Recovered, kept: list[Entry] | None) -> bool:
        """Return True if the index that another broker left has every key, and no other."""
        findings: list[Finding] = []
        layout = find_layout(self._directory.root, self._directory.options)
        check = IndexCheck(layout, OnlyReading(), self._log.min_offset, findings, clean=True)
        dispatch_found(self._log.segments, found, kept, self._with_bound(check.check))
        end = min(found.end, self._confirmed_end)
        check.finish(end, crashed=False, dispatched=end)
        for path, physical, time_ms in self._index.claims():
            said_ms = self._log.store_timestamp_at(physical)
            if physical >= self._log.min_offset and said_ms != time_ms:
                what = f"its header gives the message at {physical} the time {time_ms}, not {said_ms}"
                findings.append(Finding("index header", path, what))
        for finding in findings[:1]:
            log.warning(
                "index_damaged path=%s reason=%r next='no action needed: it is rebuilt from the log'",
                finding.path,
                finding.what,
            )
        return not findings
