"""Files of the timer: wheel, log and checkpoint, and their recovery at a start.

They are written in this order, each flushed before the next: units, slots, checkpoint. So the wheel has all
units that the checkpoint counts as flushed, and a start needs to read only later ones. If wheel or log do not
match the checkpoint, more is read, up to the whole log.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from dataclasses import dataclass, field

from kerolox.descriptors import PROCESS
from kerolox.store.disk.files import Files, PathLike
from kerolox.store.disk.read_failures import ReadFailures
from kerolox.store.disk.segment import OpenFiles
from kerolox.store.errors import OffsetOutOfRange
from kerolox.store.timer.checkpoint import TimerCheckpoint
from kerolox.store.timer.log import DELETE, PLAIN, ROLL, UNIT_BYTES, TimerLog, TimerUnit, encode_unit
from kerolox.store.timer.wheel import SLOTS, Change, Slot, TimerWheel

log = logging.getLogger(__name__)

_BLANK_SLOTS = 60  # RocketMQ's distance between the oldest moments and the newest
_SEEN_MAX = 1_000_000
CHECKED_MAX = 300_000  # units compared with the wheel at a start: about a second


@dataclass(slots=True)
class Entering:
    """Message to be entered: its place, due time and kind."""

    physical: int
    size: int
    due_ms: int
    topic_hash: int
    deletes: bool = False


@dataclass(slots=True)
class TimerRecovered:
    """Result of a start."""

    read_ms: int  # all messages due before this time were delivered
    scanned: int = 0  # number of units read
    # Commit-log offsets of messages whose units came after the checkpoint: they need not be entered again.
    seen: set[int] = field(default_factory=set)
    last: TimerUnit | None = None  # newest unit
    damage: str = ""  # damage of the files; if set, all messages are entered again


class TimerStore:
    """Store of timer messages by moment. One event loop owns it."""

    def __init__(
        self,
        files: Files,
        root: PathLike,
        *,
        precision_ms: int = 1000,
        log_file_bytes: int = 100 << 20,
        roll_slots: int = 172_800,
        failures: ReadFailures | None = None,
    ) -> None:
        self.precision_ms = precision_ms
        if not 2 <= roll_slots <= SLOTS // 2 - _BLANK_SLOTS:
            roll_slots = SLOTS // 2 - _BLANK_SLOTS
        self.roll_slots = roll_slots
        root = os.fspath(root)
        self.wheel = TimerWheel(files, os.path.join(root, "timerwheel"))
        open_files = OpenFiles(files, PROCESS.timer_files, failures=failures)
        self.log = TimerLog(files, os.path.join(root, "timerlog"), log_file_bytes, open_files)
        self.checkpoint = TimerCheckpoint(files, os.path.join(root, "config", "timercheck"))

    def moment(self, time_ms: int) -> int:
        return time_ms // self.precision_ms

    # --- entering ------------------------------------------------------------------------------------

    def place(self, due_ms: int, now_ms: int) -> tuple[int, int]:
        """Return the moment whose slot a message enters, and its magic. A message too far ahead enters an
        earlier moment, and is rolled there."""
        window = self.roll_slots * self.precision_ms
        ahead = due_ms - now_ms
        if ahead < window:
            return due_ms // self.precision_ms, PLAIN
        # Not just before it is due, because the roll must be done by then.
        slots = self.roll_slots // 2 if ahead - window < self.roll_slots // 3 * self.precision_ms else 0
        return now_ms // self.precision_ms + (slots or self.roll_slots), PLAIN | ROLL

    def enter(self, messages: list[Entering], now_ms: int) -> int:
        """Enter as many messages as the log's file has room for; return their number. All or none of these:
        raise with nothing changed. ``now_ms`` is a multiple of the precision."""
        at = self.log.end
        precision_ms = self.precision_ms
        units: list[bytes] = []
        # New slots; the wheel changes only once the units are written.
        slots: dict[int, tuple[int, int, int]] = {}
        for message in messages[: self.log.room]:
            moment, magic = self.place(message.due_ms, now_ms)
            first, last, count = slots.get(moment) or self.wheel.get(moment) or (-1, -1, 0)
            if message.deletes:
                magic |= DELETE
            ahead_ms = moment * precision_ms - now_ms
            units.append(
                encode_unit(
                    (last, magic, now_ms, ahead_ms, message.physical, message.size, message.topic_hash)
                )
            )
            slots[moment] = (at if first < 0 else first, at, count - 1 if message.deletes else count + 1)
            at += UNIT_BYTES
        if units:
            self.log.append(units)
            for moment, slot in slots.items():
                self.wheel.put(moment, *slot)
        return len(units)

    # --- flushing ------------------------------------------------------------------------------------

    def flush(self, changes: list[Change], checkpoint: bytes) -> None:
        """Flush units, slots and checkpoint, in this order. Runs in a thread; ``checkpoint`` is true after
        it."""
        self.log.segments.flush()
        self.wheel.write(changes)
        self.checkpoint.save(checkpoint)

    def close(self) -> None:
        for part in (self.wheel, self.checkpoint):
            part.close()
        self.log.segments.close()

    # --- start ---------------------------------------------------------------------------------------

    def check_files(self) -> None:
        """Raise the errors for which :meth:`open` rejects the files. Wait for the disk."""
        self.checkpoint.load()
        self.log.segments.load()
        self.wheel.is_there()

    def open(
        self, now_ms: int, noted: bytes | None = None, is_message: Callable[[int, int], bool] | None = None
    ) -> TimerRecovered:
        """Load the files and make them consistent. Runs in a thread. Raise without having changed a file of a
        wrong size.

        ``noted`` is the saved copy of the checkpoint; ``is_message`` returns True if a message of this size
        is at this commit-log offset.
        """
        checkpoint = self.checkpoint
        known = checkpoint.load(noted, now_ms)
        read_ms = checkpoint.read_ms
        if not read_ms:
            # The delivered messages are unknown. Older messages cannot be distinguished from waiting ones.
            read_ms = now_ms - now_ms % self.precision_ms
            if known or self.log_exists:
                read_ms -= (SLOTS // 2 - _BLANK_SLOTS) * self.precision_ms
        since = self.moment(read_ms)
        self.log.segments.load()
        self.wheel.load(since)
        found = TimerRecovered(read_ms)
        start = min(checkpoint.log_flushed, self.log.end)
        if self.wheel.missing and self.log.end > self.log.start:
            log.warning(
                "timer_wheel_missing path=%s next='no action needed: it is rebuilt from the timer log'",
                self.wheel.path,
            )
            start = 0
        elif start > self.log.start and not self._unit_ends(start):
            start = max(0, start - self.log.segments.size)
        due = self.moment(now_ms)
        end = self._revise(start, since, due, found)
        self._truncate(start, end)
        broken = [(moment, slot) for moment, slot in self.wheel.slots() if slot.last >= end]
        if broken:
            first = min(slot.first for _, slot in broken)
            log.warning("timer_slots_behind_log count=%d end=%d first=%d", len(broken), end, first)
            for moment, _ in broken:
                self.wheel.done(moment)
            self._revise(first, since, due, found, only={moment for moment, _ in broken})
        found.last = self.log.unit_before(end)
        if end < checkpoint.log_flushed:
            found.damage = f"the timer log ends at {end}, but was flushed up to {checkpoint.log_flushed}"
        else:
            found.damage = self._damage(since, due, is_message)
        if broken and not found.damage:
            # Units that slots name are unreadable: their messages are unknown.
            found.damage = f"{len(broken)} moments of the wheel point after the end of the timer log, {end}"
        return found

    def _damage(self, since: int, due: int, is_message: Callable[[int, int], bool] | None) -> str:
        """Return the first contradiction between wheel and log; empty without any. Moments that are due may
        be partly delivered."""
        known = {moment: slot for moment, slot in self.wheel.slots() if moment >= since}
        chains: dict[int, tuple[int, int, int]] = {}
        for number, (at, unit) in enumerate(self.log.scan(self.log.start)):
            if number >= CHECKED_MAX:
                log.info("timer_check_ended units=%d reason='the limit of checked units is reached'", number)
                return ""
            if unit is None:
                break
            moment = unit.due_ms // self.precision_ms
            if moment < since:
                continue
            if moment not in known:
                if moment > due and moment not in self.wheel.emptied:
                    return f"the wheel lacks the moment {moment} of the unit at {at}"
                continue
            first, last, count = chains.get(moment, (at, -1, 0))
            if unit.previous == -1:  # earlier ones were delivered
                first, last, count = at, -1, 0
            if moment > due and unit.previous != last and not (last < 0 and unit.previous < self.log.start):
                return f"the unit at {at} does not follow the one at {last}"
            if is_message is not None and not is_message(unit.physical, unit.size):
                return (
                    f"the unit at {at} names {unit.size} bytes at {unit.physical}, where no such message is"
                )
            chains[moment] = (first, at, count - 1 if unit.magic & DELETE else count + 1)
        for moment, slot in known.items():
            chain = chains.get(moment)
            if chain is None or chain[1] != slot.last or (moment > due and not self._is_all(chain, slot)):
                return f"{self.wheel.path} has {tuple(slot)} for the moment {moment}, the log {chain}"
        return ""

    def _is_all(self, chain: tuple[int, int, int], slot: Slot) -> bool:
        first, _, count = chain
        return count == slot.waiting and (first == slot.first or slot.first < self.log.start)

    def begin_anew(self) -> None:
        """Remove all messages, which are then entered again. Runs in a thread."""
        self.wheel.forget()
        self.log.segments.delete_all()

    @property
    def log_exists(self) -> bool:
        return bool(self.log.segments.files.list_dir(self.log.segments.directories[0]))

    def _unit_ends(self, end: int) -> bool:
        try:
            return self.log.unit_before(end) is not None
        except OffsetOutOfRange:
            return False

    def _revise(
        self, start: int, since: int, due: int, found: TimerRecovered, only: set[int] | None = None
    ) -> int:
        """Enter units that the wheel lacks; return the end of the log."""
        wheel, precision_ms = self.wheel, self.precision_ms
        for at, unit in self.log.scan(start):
            if unit is None:
                return at
            found.scanned += 1
            if only is None and len(found.seen) < _SEEN_MAX:
                found.seen.add(unit.physical)
            moment = unit.due_ms // precision_ms
            if moment < since or (only is not None and moment not in only):
                continue
            first, last, count = wheel.get(moment) or (-1, -1, 0)
            if at <= last:
                continue
            may_be_cut = moment <= due
            if only is None and not wheel.missing and not self._follows(unit.previous, last, may_be_cut):
                # Power was lost while it was written. Its message is entered again from the queue.
                log.warning("timer_unit_torn at=%d previous=%d expected=%d", at, unit.previous, last)
                return at
            wheel.put(moment, at if first < 0 else first, at, count - 1 if unit.magic & DELETE else count + 1)
        return self.log.end

    def _follows(self, previous: int, last: int, may_be_cut: bool) -> bool:
        """Return True if a unit's ``previous`` is consistent with the wheel's last unit."""
        if previous == last or (previous == -1 and may_be_cut):  # earlier ones were delivered
            return True
        return 0 <= previous < self.log.start and last < self.log.start  # both were deleted

    def _truncate(self, start: int, end: int) -> None:
        segments = self.log.segments
        if segments.last is not None and end < segments.wrote:
            segments.truncate_to(end)
        segments.doubt_from(start)
