"""Failed reads of the store's files: their classification, and the account of those that last.

A read fails for one of two reasons. The store itself removed the file (retention, a deleted topic, a cut of
the log): then the data is gone, and readers skip it. Or the file cannot be read at the moment (EIO, EMFILE,
EACCES, an unmounted disk): then its content is unknown, no reader may skip it, and the same read is retried.
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

PLACES_MAX = 256  # places that are read again to detect the end of a failure
PROBE_BYTES_MAX = 1 << 20
PROBES_MAX = 16  # places read again in one round
_KINDS = {
    "consumequeue": Kind.QUEUE,
    "consumequeue_ext": Kind.QUEUE,
    "index": Kind.INDEX,
    "timerlog": Kind.TIMER,
}
QUIET_S = 60.0  # a cause that returns within this time is counted, not reported again


def failed_read(segment: Segment, error: StoreError) -> StoreError:
    """Return SegmentGone or Unreadable for a failed read of a segment; any other error unchanged."""
    if not isinstance(error, DiskError | WrongFileSize) or isinstance(error, Unreadable):
        return error
    if segment.gone:
        return SegmentGone(f"{segment.path} was removed", path=segment.path)
    return Unreadable.of(error)


class _Cause:
    """Failed reads of one kind of file with one error number."""

    __slots__ = ("count", "is_reported", "places", "reported_s", "since_s", "text")

    def __init__(self) -> None:
        self.count = 0  # failed reads since it began
        self.since_s = 0.0
        self.is_reported = False  # True if a log line has reported it since it began
        self.reported_s: float | None = None  # time of the last report
        self.text = ""  # text of the last error
        self.places: dict[str, tuple[Segment, int, int]] = {}  # path → segment, offset in the file, bytes


class ReadFailures:
    """Failed reads that last. Any thread may report one; one prober reads the places again."""

    def __init__(self, files: Files, root: str = "", clock: Clock = SYSTEM_CLOCK) -> None:
        self._files = files
        self._root = root
        self._clock = clock
        self._lock = threading.Lock()
        self._causes: dict[tuple[str, str], _Cause] = {}
        self.total: Counter[tuple[str, str]] = Counter()  # failed reads since the start, by file and error

    def note(self, error: Unreadable, segment: Segment, offset: int, size: int) -> None:
        """Count a failed read of these bytes of a file, and report a new cause."""
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
                "store_unreadable file=%r error=%r next='if this does not end automatically, follow the "
                "step in the error; readers wait and retry'",
                key[0], str(error),
            )  # fmt: skip

    @property
    def lasting(self) -> dict[tuple[str, str], tuple[int, str]]:
        """Return, by file and error, the number of files that cannot be read now, and the last error text."""
        with self._lock:
            return {
                key: (len(cause.places), cause.text) for key, cause in self._causes.items() if cause.places
            }

    def probe(self) -> None:
        """Read some of the failed places again, and drop those that can be read. Waits: call it in a
        thread."""
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
        """Return the kind of a file, by its directory in the store."""
        words = os.path.relpath(path, self._root).split(os.sep) if self._root else [""]
        if words[0].startswith("dledger") and words[1:2] == ["index"]:
            return Kind.LEDGER_INDEX.value
        return _KINDS.get(words[0], Kind.LOG).value  # the log may be in another directory


def error_name(number: int | None) -> str:
    """Return the name of an error number, such as EIO."""
    return errno.errorcode.get(number or 0, "short read" if number is None else str(number))
