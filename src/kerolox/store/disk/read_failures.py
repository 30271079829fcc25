"""Failed reads of the store's files: the decision what one means, and the account of those that last.

A read fails for one of two reasons. The store itself removed the file (retention, a deleted topic, a cut
log): then the data is gone, and readers go on behind it. Or the file cannot be read at the moment (EIO,
EMFILE, EACCES, a mount that went away): then nothing is known of its content, no reader may move past it, and
the same read is tried again.
"""

from __future__ import annotations

import errno
import logging
import os
import threading
from collections import Counter
from typing import TYPE_CHECKING

from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.store.disk.files import Files
from kerolox.store.errors import DiskError, SegmentGone, StoreError, Unreadable, WrongFileSize
from kerolox.store.failures import Kind

if TYPE_CHECKING:
    from kerolox.store.disk.segment import Segment

log = logging.getLogger(__name__)

PLACES_MAX = 256  # places of files that are read again to learn whether the failure has passed
PROBE_BYTES_MAX = 1 << 20
PROBES_MAX = 16  # places read again in one round
_KINDS = {
    "consumequeue": Kind.QUEUE,
    "consumequeue_ext": Kind.QUEUE,
    "index": Kind.INDEX,
    "timerlog": Kind.TIMER,
}
QUIET_S = 60.0  # a cause that comes back within this time is counted, not reported again


def failed_read(segment: Segment, error: StoreError) -> StoreError:
    """Return what a failed read of a segment means: SegmentGone or Unreadable; any other error as it is."""
    if not isinstance(error, DiskError | WrongFileSize) or isinstance(error, Unreadable):
        return error
    if segment.gone:
        return SegmentGone(f"{segment.path} was removed", path=segment.path)
    return Unreadable.of(error)


class _Cause:
    """Failures of one kind of file with one error number."""

    __slots__ = ("count", "is_reported", "places", "reported_s", "since_s", "text")

    def __init__(self) -> None:
        self.count = 0  # failed reads since it began
        self.since_s = 0.0
        self.is_reported = False  # in a log line, since it began
        self.reported_s: float | None = None  # the last time it was
        self.text = ""  # of the last error
        self.places: dict[str, tuple[Segment, int, int]] = {}  # path → segment, offset in the file, bytes


class ReadFailures:
    """Failed reads that last. Any thread reports; one prober reads the places again."""

    def __init__(self, files: Files, root: str = "", clock: Clock = SYSTEM_CLOCK) -> None:
        self._files = files
        self._root = root
        self._clock = clock
        self._lock = threading.Lock()
        self._causes: dict[tuple[str, str], _Cause] = {}
        self.total: Counter[tuple[str, str]] = Counter()  # failed reads since the start, by file and error

    def note(self, error: Unreadable, segment: Segment, offset: int, size: int) -> None:
        """Count a failed read of these bytes of a file, and report a cause that is new."""
        key = (self._kind(segment.path), error_name(error.os_error))
        now_s = self._clock.monotonic_s()
        with self._lock:
            self.total[key] += 1
            cause = self._causes.setdefault(key, _Cause())
            if not cause.places:
                cause.count, cause.since_s, cause.is_reported = 0, now_s, False
            cause.count += 1
            cause.text = str(error)
            if segment.path in cause.places or len(cause.places) < PLACES_MAX:
                cause.places[segment.path] = (segment, offset, size)
            quiet = cause.reported_s is not None and now_s - cause.reported_s < QUIET_S
            reports = not cause.is_reported and not quiet
            if reports:
                cause.is_reported, cause.reported_s = True, now_s
        if reports:
            log.error(
                "store_unreadable file=%r error=%r next='readers wait at their place and read again; when "
                "this does not pass by itself, follow the step in the error'",
                key[0], str(error),
            )  # fmt: skip

    @property
    def lasting(self) -> dict[tuple[str, str], tuple[int, str]]:
        """File and error → how many files cannot be read now, and the last error in words."""
        with self._lock:
            return {
                key: (len(cause.places), cause.text) for key, cause in self._causes.items() if cause.places
            }

    def probe(self) -> None:
        """Read some of the failed places again, and drop those that can be read. For a thread: it waits."""
        with self._lock:
            places = [
                (key, path, place)
                for key, cause in self._causes.items()
                for path, place in list(cause.places.items())[:PROBES_MAX]
            ]
        for key, path, (segment, offset, size) in places:
            if segment.gone or self._reads(path, offset, size):
                self._passed(key, path)

    def _reads(self, path: str, offset: int, size: int) -> bool:
        size = min(size, PROBE_BYTES_MAX)
        try:
            with self._files.open(path, read_only=True) as file:
                return len(file.pread(size, offset)) == size
        except StoreError:
            return False

    def _passed(self, key: tuple[str, str], path: str) -> None:
        with self._lock:
            cause = self._causes[key]
            cause.places.pop(path, None)
            if cause.places or not cause.is_reported:
                return
            count, lasted_s = cause.count, self._clock.monotonic_s() - cause.since_s
        log.warning("store_readable_again file=%r error=%r failures=%d seconds=%.1f", *key, count, lasted_s)

    def _kind(self, path: str) -> str:
        """The kind of file, by the directory of the store it lies in."""
        words = os.path.relpath(path, self._root).split(os.sep) if self._root else [""]
        if words[0].startswith("dledger") and words[1:2] == ["index"]:
            return Kind.LEDGER_INDEX.value
        return _KINDS.get(words[0], Kind.LOG).value  # the log may lie elsewhere


def error_name(number: int | None) -> str:
    """The name of an error number: EIO."""
    return errno.errorcode.get(number or 0, "short read" if number is None else str(number))
