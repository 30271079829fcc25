"""Key index: from a key to the messages that carry it. The files of ``index/``.

The index holds hashes of ``topic#key``, not keys: callers compare the keys. A flush round is
:meth:`KeyIndex.write` on the event loop, then :meth:`KeyIndex.sync` in a thread.

After a crash RocketMQ deletes every file except those known to be full and flushed, and fills the gap only as
far as its recovery reads the log again. Here a file is kept as far as its entries are valid: the entries that
the header counts were on disk before the header, and each entry is checked against the chain it continues.
Keys from the log that the index already has are not added twice.
"""

from __future__ import annotations

import logging
import os
import threading
from datetime import datetime

from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.descriptors import PROCESS
from kerolox.protocol.java import index_hash, java_hash
from kerolox.store.disk.files import Files, PathLike
from kerolox.store.disk.read_failures import ReadFailures
from kerolox.store.disk.segment import OpenFiles, remove_segment
from kerolox.store.disk.sums import UNKNOWN, IndexSum
from kerolox.store.errors import SegmentGone, StoreError, WrongFileSize
from kerolox.store.index.index_file import IndexFile, IndexItem, file_size

logger = logging.getLogger(__name__)

SLOTS = 5_000_000
ENTRIES = 20_000_000
_TAIL_MAX = 256 * 1024
_NAME_DIGITS = 17
_FOREVER_MS = (1 << 63) - 1


def hash_key(topic: str, key: str) -> int:
    """Return the hash that the index stores for a key."""
    return index_hash(java_hash(key, java_hash(topic + "#")))


class KeyHasher:
    """Hasher of many keys that caches repeated beginnings.

    The unique keys of one client differ only in their last four characters for hours.
    """

    _HEAD = 28
    _KEPT = 8192
    _HEADS_OF_A_TOPIC = 1024
    _LEARNED_MAX = 65_536  # heads of all topics

    def __init__(self) -> None:
        self._topics: dict[bytes, int] = {}
        self._heads: dict[bytes, int] = {}
        # By topic: beginning of the packed properties → hash so far, times 31⁴.
        self._leading: dict[bytes, dict[bytes, int]] = {}
        self._learned = 0  # number of cached heads in all of them, at most

    def heads(self, topic: bytes) -> dict[bytes, int]:
        """Return the heads that :meth:`learn` cached for a topic. Call it again for every batch."""
        heads = self._leading.get(topic)
        if heads is None:
            if len(self._leading) >= self._KEPT:
                self._leading.clear()
            heads = self._leading[topic] = {}
        return heads

    def learn(self, topic: bytes, key: bytes) -> None:
        """Cache the beginning of properties that start with this unique key, if it is an ordinary one."""
        if len(key) != 32 or not key.isascii():
            return
        if self._learned >= self._LEARNED_MAX:
            self._leading.clear()
            self._learned = 0
        heads = self.heads(topic)
        if len(heads) >= self._HEADS_OF_A_TOPIC:
            heads.clear()
        self._learned += 1
        code = java_hash(key[: self._HEAD], self._seed(topic)) & 0xFFFF_FFFF
        heads[b"UNIQ_KEY\x01" + key[: self._HEAD]] = code * 923521 & 0xFFFF_FFFF

    def unique_key(self, topic: bytes, key: bytes) -> int:
        """Return the index hash of a message's unique key."""
        if len(key) != 32 or not key.isascii():
            return self.key(topic, key)
        head = topic + key[:28]
        code = self._heads.get(head)
        if code is None:
            if len(self._heads) >= self._KEPT:
                self._heads.clear()
            code = self._heads[head] = java_hash(key[: self._HEAD], self._seed(topic)) & 0xFFFF_FFFF
        a, b, c, d = key[28:]
        code = (code * 923521 + a * 29791 + b * 961 + c * 31 + d) & 0xFFFF_FFFF
        if code < 0x8000_0000:
            return code
        return 0x1_0000_0000 - code if code != 0x8000_0000 else 0

    def key(self, topic: bytes, key: bytes) -> int:
        """Return the index hash of any key."""
        return index_hash(java_hash(key, self._seed(topic)))

    def keys(self, topic: bytes, unique_key: bytes | None, keys: bytes | None) -> list[int]:
        """Return the hashes of one message: of its unique key, then of each of its keys, which are separated
        by spaces."""
        hashes = [self.unique_key(topic, unique_key)] if unique_key else []
        if keys:
            hashes += [self.key(topic, key) for key in keys.split(b" ") if key]
        return hashes

    def _seed(self, topic: bytes) -> int:
        seed = self._topics.get(topic)
        if seed is None:
            if len(self._topics) >= self._KEPT:
                self._topics.clear()
            seed = self._topics[topic] = java_hash(topic + b"#")
        return seed


class KeyIndex:
    """All files of the index, oldest first; the last one is written.

    ``end_physical`` is the log offset of the last message entered, -1 without any, and ``end_ms`` its store
    time. ``full_files_end_ms``, for the checkpoint, is the end time of the last file that is full and
    flushed.
    """

    def __init__(
        self,
        files: Files,
        directory: PathLike,
        *,
        slots: int = SLOTS,
        entries: int = ENTRIES,
        clock: Clock = SYSTEM_CLOCK,
        failures: ReadFailures | None = None,
    ) -> None:
        if slots < 1 or entries < 2:
            raise ValueError(f"key index has {slots} slots and {entries} entries, expected at least 1 and 2")
        self.directory = os.fspath(directory)
        self.slots = slots
        self.entries = entries
        self.end_physical = -1
        self.full_files_end_ms = 0
        self._files = files
        self._clock = clock
        self._open_files = OpenFiles(files, PROCESS.index_files, failures=failures)
        self._all: list[IndexFile] = []  # replaced, never changed, because threads read it
        self._change = threading.Lock()  # held while ``_all`` is replaced
        self._unsynced: list[IndexFile] = []  # changed since the last write(), oldest first
        self._failed: list[IndexFile] = []  # written, and not flushed because of a failure
        self._new_dirs: list[str] = []
        # Loaded files without a sum, to be removed: their keys are rebuilt
        self._unvouched: list[IndexFile] = []
        self.damage = ""  # damage of the loaded files; if set, all are rebuilt

    def __len__(self) -> int:
        return len(self._all)

    @property
    def end_ms(self) -> int:
        return self._all[-1].end_ms if self._all else 0

    # Filling

    def put_many(self, items: list[IndexItem]) -> None:
        """Enter hashes: ``(hash, physical offset, store time)``, in the order of the log.

        All items of one message belong in one call. Messages up to :attr:`end_physical` are in the index
        already and are skipped, so a failed call is simply repeated.
        """
        if not items:
            return
        if items[0][1] <= self.end_physical:
            items = [item for item in items if item[1] > self.end_physical]
        while items:
            file = self._all[-1] if self._all else self._add_file()
            if not file.room:
                file = self._add_file()
            count = min(file.room, len(items))
            if count < len(items):
                count = _whole_messages(items, count)
                if not count and file.count > 1:
                    self._add_file()  # the next message goes into the next file as a whole
                    continue
                count = count or file.room
            file.put(items[:count])
            self.end_physical = file.end_physical
            if not self._unsynced or self._unsynced[-1] is not file:
                self._unsynced.append(file)
            if file.unwritten > _TAIL_MAX:
                file.write_entries()
            items = items[count:]

    def _add_file(self) -> IndexFile:
        if not self._files.is_dir(self.directory):
            self._new_dirs += self._files.make_dirs(self.directory)
        name = file_name(self._clock.wall_ms())
        if self._all:
            # The order of names is the order of age, even if the clock was set back.
            last = os.path.basename(self._all[-1].path)
            name = max(name, f"{int(last) + 1:0{_NAME_DIGITS}d}")
        path = os.path.join(self.directory, name)
        size = file_size(self.slots, self.entries)
        handle = self._files.create(path)
        try:
            # Without allocated blocks, as RocketMQ's: most stores never fill the 420 million bytes.
            handle.truncate(size)
        except StoreError:
            handle.close()
            self._files.remove(path)
            raise
        file = IndexFile(self._open_files, path, self.slots, self.entries, named=False)
        self._open_files.adopt(file.segment, handle)
        self._open_files.release(file.segment)
        file.new_table()
        with self._change:
            if self._all:
                older = self._all[-1]
                file.inherit(older)
                if older not in self._unsynced:
                    self._unsynced.append(older)  # its slots must be written now
            self._all = [*self._all, file]
        return file

    # Flushing

    def write(self) -> list[tuple[IndexFile, bytes]]:
        """Write new entries to their files; return what to :meth:`sync` in a thread."""
        unsynced = list(dict.fromkeys(self._failed + self._unsynced))
        written: list[tuple[IndexFile, bytes]] = []
        for file in unsynced:
            try:
                file.write_entries()
            except SegmentGone:
                continue  # deleted meanwhile
            written.append((file, file.header))
        self._failed = []
        self._unsynced = []
        return written

    def sync(self, written: list[tuple[IndexFile, bytes]], *, all_of_it: bool = False) -> None:
        """Flush the written entries, then the header that counts them.

        Slots are written with full files, or with ``all_of_it``.
        """
        active = self._all[-1] if self._all else None
        for file, header in written:
            # A file that became full after write() is not complete yet: the next round writes its slots.
            full = file is not active and header == file.header
            whole = full or all_of_it
            try:
                if whole:
                    file.write_table()
                file.sync()
                if not file.segment.named:
                    self._sync_names(file)
                file.write_header(header)
                file.sync()  # the progress notes of this round rely on it
            except SegmentGone:
                continue
            except StoreError:
                self._failed = [file for file, _ in written]
                raise
            if full:
                file.drop_table()
                self.full_files_end_ms = max(self.full_files_end_ms, file.end_ms)

    def _sync_names(self, file: IndexFile) -> None:
        for directory in self._new_dirs:
            self._files.sync_dir(os.path.dirname(directory))
        self._new_dirs = []
        self._files.sync_dir(self.directory)
        file.segment.named = True

    def flush(self) -> None:
        """Write and flush everything including slots, at the end or before a copy. Wait for the disk."""
        written = self.write()
        if self._all and all(file is not self._all[-1] for file, _ in written):
            written.append((self._all[-1], self._all[-1].header))
        self.sync(written, all_of_it=True)

    # Queries

    def query(
        self, topic: str, key: str, count_max: int, begin_ms: int = 0, end_ms: int = _FOREVER_MS
    ) -> list[int]:
        """Return the physical offsets of messages with this key, or one of the same hash, newest first. May
        wait.

        Times are kept in whole seconds since the first entry of a file, so a message may count as up to a
        second older than it is.
        """
        return self.query_hash(hash_key(topic, key), count_max, begin_ms, end_ms)

    def query_hash(
        self, key_hash: int, count_max: int, begin_ms: int = 0, end_ms: int = _FOREVER_MS
    ) -> list[int]:
        found: list[int] = []
        for file in reversed(self._all):
            if file.covers(begin_ms, end_ms):
                try:
                    file.collect(key_hash, count_max, begin_ms, end_ms, found)
                except SegmentGone:
                    break  # the oldest files are being deleted
            if len(found) >= count_max or (file.count > 1 and file.begin_ms < begin_ms):
                break
        return found

    # Start, and truncation

    def load(self, *, after_crash: bool, checkpoint_ms: int = 0, sums: list[IndexSum] | None = None) -> None:
        """Find the files. Reject a file of another size: nothing in it can be addressed.

        With ``sums`` the index is the part that they cover, or :attr:`damage` names the reason why not.
        Without, after a crash, files not known to be full and flushed before ``checkpoint_ms`` are checked
        entry by entry. The index ends at the first damage. Later keys are rebuilt from the log.
        """
        found: list[IndexFile] = []
        size = file_size(self.slots, self.entries)
        self.damage = ""
        for name in self._files.list_dir(self.directory):
            path = os.path.join(self.directory, name)
            if len(name) != _NAME_DIGITS or not (name.isascii() and name.isdigit()):
                logger.warning("stray_file_ignored path=%s next='move it away'", path)
                continue
            actual = self._files.size(path)
            if not actual:  # created before a power loss
                self._files.remove(path)
                continue
            if actual != size:
                raise WrongFileSize(path, actual, size)
            file = IndexFile(self._open_files, path, self.slots, self.entries, named=not after_crash)
            if not file.load_header() and not after_crash:
                self.damage = f"{path} counts more than its maximum of {self.entries - 1} entries"
            found.append(file)
        self._all = found
        self._unsynced, self._unvouched = [], []
        if after_crash:
            self._new_dirs = [self.directory] if self._all else []
        if sums is not None:
            self._check_sums(sums, after_crash)
        elif after_crash:
            self._check_files(checkpoint_ms)
        self._set_end()
        self.full_files_end_ms = max((file.end_ms for file in self._all[:-1]), default=0)

    def _check_sums(self, sums: list[IndexSum], after_crash: bool) -> None:
        """Keep the files that match their sums; other keys are rebuilt from the log."""
        known = {known.name: known for known in sums}
        missing = sorted(known.keys() - set(map(_name, self._all)))
        if missing:
            self.damage = self.damage or f"{os.path.join(self.directory, missing[0])} is missing"
            return
        self._unvouched = [file for file in self._all if _name(file) not in known]
        self._all = [file for file in self._all if _name(file) in known]
        for file in self._all:
            expected = known[_name(file)]
            header = bytes.fromhex(expected.header)
            as_noted = file.header == header and not after_crash
            if not file.take_header(header) or file.sum_entries(header) != expected.entries:
                self.damage = f"{file.path}: its entries do not match their checksum"
            elif as_noted and expected.slots != UNKNOWN:
                if file.sum_slots() != expected.slots:
                    self.damage = f"{file.path}: its slots do not match their checksum"
            elif not (after_crash and expected.slots != UNKNOWN and file.sum_slots() == expected.slots):
                if not after_crash:
                    logger.warning(
                        "index_header_replaced path=%s reason='another broker wrote it, or it was damaged' "
                        "next='no action needed: its later keys are rebuilt from the log'",
                        file.path,
                    )
                if file.rebuild():
                    self._unsynced.append(file)
                else:
                    self.damage = f"{file.path}: its chains are broken"
            if self.damage:
                return

    def settle(self) -> None:
        """Remove files without a sum, once the log is known to be good. Wait for the disk."""
        for file in self._unsynced:
            # Now, because entries added next must not be counted by an old header with a higher count.
            file.write_header(file.header)
            file.sync()
        unvouched, self._unvouched = self._unvouched, []
        self._remove(unvouched)

    def claims(self) -> list[tuple[str, int, int]]:
        """Return the first and last messages that headers name: path, log offset and store time."""
        used = [file for file in self._all if file.count > 1]
        return [(file.path, file.begin_physical, file.begin_ms) for file in used] + [
            (file.path, file.end_physical, file.end_ms) for file in used
        ]

    def headers(self) -> list[tuple[IndexFile, bytes]]:
        """Return all files with their current headers: after :meth:`write`, for :meth:`sum_up`."""
        return [(file, file.header) for file in self._all if file.count > 1]

    def sum_up(self, headers: list[tuple[IndexFile, bytes]], *, whole: bool) -> list[IndexSum]:
        """Return the sums of the written and flushed data; ``whole``: including the slots of all files. Runs
        in a thread."""
        sums: list[IndexSum] = []
        for file, header in headers:
            try:
                slots = file.sum_slots() if whole or not file.slots_in_memory else UNKNOWN
                sums.append(IndexSum(_name(file), header.hex(), file.sum_entries(header), slots))
            except SegmentGone:
                continue  # deleted by retention
        return sums

    def _check_files(self, checkpoint_ms: int) -> None:
        # Full files may end in the same millisecond, and the checkpoint refers to the first of them.
        ends = [file.end_ms for file in self._all[:-1]]
        trusted_ms = checkpoint_ms if ends.count(checkpoint_ms) == 1 else checkpoint_ms - 1
        for position, file in enumerate(self._all):
            is_last = position == len(self._all) - 1
            if not is_last and file.end_ms <= trusted_ms:
                continue
            whole = file.rebuild()
            self._unsynced.append(file)
            if not whole:
                logger.warning(
                    "index_cut path=%s entries=%d files_removed=%d next='no action needed: later keys are "
                    "rebuilt from the log'",
                    file.path,
                    file.count - 1,
                    len(self._all) - position - 1,
                )
                self._remove(self._all[position + 1 :])
                self._all = self._all[: position + 1]
                break
        while self._all and self._all[-1].count <= 1:
            self._remove(self._all[-1:])
            self._all = self._all[:-1]
        self._unsynced = [file for file in self._unsynced if file in self._all]

    def _set_end(self) -> None:
        # A file without entries has inherited its end, or has zeros if there was none to inherit.
        ends = [file.end_physical for file in self._all if file.count > 1 or file.end_ms]
        self.end_physical = ends[-1] if ends else -1

    def truncate_to(self, physical: int) -> None:
        """Remove messages at or after this log offset. Wait for the disk."""
        while self._all and self.end_physical >= physical:
            file = self._all[-1]
            if file.count > 1:
                file.truncate_to(physical)
            if file.count > 1:
                # Now, because entries added next must not be counted by the header of the removed ones.
                file.write_header(file.header)
                file.sync()
                if file not in self._unsynced:
                    self._unsynced.append(file)
            else:
                self._unsynced = [other for other in self._unsynced if other is not file]
                self._all = self._all[:-1]
                self._remove([file])
            self._set_end()
            # The last file is filled again, so it no longer counts as full and flushed.
            self.full_files_end_ms = max((file.end_ms for file in self._all[:-1]), default=0)

    def delete_before(self, log_min: int) -> int:
        """Remove files whose messages have all left the commit log, never the last one; return their number.
        Runs in a thread."""
        count = 0
        while len(self._all) > 1 and self._all[0].end_physical < log_min:
            file = self._all[0]
            self._remove([file])
            with self._change:
                self._all = [other for other in self._all if other is not file]
            count += 1
        return count

    def delete_all(self) -> None:
        """Remove every file."""
        gone, self._all, self._unvouched = self._all + self._unvouched, [], []
        self._unsynced, self._failed = [], []
        self._remove(gone)
        self._set_end()
        self.full_files_end_ms = 0

    def _remove(self, files: list[IndexFile]) -> None:
        for file in reversed(files):
            remove_segment(self._open_files, file.segment)
        if files and self._files.is_dir(self.directory):
            self._files.sync_dir(self.directory)

    def abandon(self) -> None:
        """Close the descriptors and write nothing, after a store could not be opened."""
        self._open_files.close_all_idle()

    def close(self) -> None:
        """Write everything, close the descriptors and release the memory."""
        self.flush()
        for file in self._all:
            self._open_files.close_idle(file.segment)
            file.drop_table()


def file_name(wall_ms: int) -> str:
    """Return the name of a file created at this time: local time to the millisecond, 17 digits."""
    return datetime.fromtimestamp(wall_ms // 1000).strftime("%Y%m%d%H%M%S") + f"{wall_ms % 1000:03d}"


def _name(file: IndexFile) -> str:
    return os.path.basename(file.path)


def _whole_messages(items: list[IndexItem], count: int) -> int:
    """Return the largest number of items up to ``count`` after which another message begins."""
    while count and items[count][1] == items[count - 1][1]:
        count -= 1
    return count
