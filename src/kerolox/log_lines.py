"""Log format of the kerolox programs: one line per record, limited in length and repetition.

Data from peers appears in log lines as names, addresses and errors. The formatter truncates and quotes it,
regardless of the line's format. The handler writes lines of one format at most LINES_MAX times in WINDOW_S,
counts the others, and writes their number at the end of the window.
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from typing import Any, Final, TextIO

from kerolox.shown_text import shortened, visible

FORMAT: Final = "%(asctime)s %(levelname)s %(name)s %(message)s"
VALUE_CHARS_MAX: Final = 512  # per value
LINE_CHARS_MAX: Final = 4096
TRACE_CHARS_MAX: Final = 16_384
LINES_MAX: Final = 100  # per format and window
WINDOW_S: Final = 10.0
FORMATS_MAX: Final = 1000  # formats counted separately; further ones are counted together

_PLAIN = (int, float, type(None))


class _Short:
    """A value of a log line that is truncated when it is written."""

    __slots__ = ("_value",)

    def __init__(self, value: object) -> None:
        self._value = value

    def __str__(self) -> str:
        return shortened(str(self._value), VALUE_CHARS_MAX)

    def __repr__(self) -> str:
        return shortened(repr(self._value), VALUE_CHARS_MAX)


def _short(value: object) -> object:
    if isinstance(value, str):
        return shortened(value, VALUE_CHARS_MAX)
    return value if isinstance(value, _PLAIN) else _Short(value)


class LineFormatter(logging.Formatter):
    """Formats a record as one line without control characters, and a stack trace in separate lines."""

    def __init__(self) -> None:
        super().__init__(FORMAT)

    def format(self, record: logging.LogRecord) -> str:
        short = logging.makeLogRecord(record.__dict__)
        if isinstance(short.args, dict):
            short.args = {key: _short(value) for key, value in short.args.items()}
        elif short.args:
            short.args = tuple(_short(value) for value in short.args)
        try:
            return super().format(short)
        except TypeError:  # a numeric format needs the original value
            short.args = record.args
            return super().format(short)

    def formatMessage(self, record: logging.LogRecord) -> str:
        record.message = visible(shortened(record.message, LINE_CHARS_MAX))
        return super().formatMessage(record)

    def formatException(self, ei: Any) -> str:
        return visible(shortened(super().formatException(ei), TRACE_CHARS_MAX), lines=True)


class CountingHandler(logging.StreamHandler[TextIO]):
    """Writes lines to a stream and counts repeated ones. DEBUG lines, and records with ``extra={"every":
    True}``, are always written."""

    def __init__(self, stream: TextIO | None = None) -> None:
        super().__init__(stream or sys.stderr)
        self.setFormatter(LineFormatter())
        self._counts: dict[tuple[str, str], int] = {}
        self._ends_s = 0.0
        self._timer: threading.Timer | None = None

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno <= logging.DEBUG or getattr(record, "every", False):
            super().emit(record)
            return
        now_s = time.monotonic()
        if now_s >= self._ends_s:
            self._tell()
            self._ends_s = now_s + WINDOW_S
        key = record.name, str(record.msg)
        if key not in self._counts and len(self._counts) >= FORMATS_MAX:
            key = "", "others"
        count = self._counts[key] = self._counts.get(key, 0) + 1
        if count <= LINES_MAX:
            super().emit(record)
        elif self._timer is None:
            self._timer = threading.Timer(self._ends_s - now_s, self._window_over)
            self._timer.daemon = True
            self._timer.start()

    def close(self) -> None:
        self.acquire()
        try:
            self._tell()
        finally:
            self.release()
        super().close()

    def _window_over(self) -> None:
        self.acquire()
        try:
            self._tell()
        finally:
            self.release()

    def _tell(self) -> None:
        """Write the number of lines omitted in the past window."""
        counts, self._counts = self._counts, {}
        timer, self._timer = self._timer, None
        if timer is not None:
            timer.cancel()
        for (name, text), count in counts.items():
            if count > LINES_MAX:
                super().emit(
                    logging.LogRecord(
                        name or __name__, logging.WARNING, __file__, 0,
                        "lines_left_out event=%r count=%d next='the first %d lines of %g s are above'",
                        (text.partition(" ")[0], count - LINES_MAX, LINES_MAX, WINDOW_S), None,
                    )
                )  # fmt: skip


def log_to(stream: TextIO, level: str) -> None:
    """Write the log of this process to a stream."""
    logging.basicConfig(level=level, handlers=[CountingHandler(stream)])


class _LastResort(CountingHandler):
    """The handler of a process that has chosen none: warnings, to what is stderr at that time."""

    def __init__(self) -> None:
        super().__init__()
        self.setLevel(logging.WARNING)

    def emit(self, record: logging.LogRecord) -> None:
        self.stream = sys.stderr
        super().emit(record)


def guard_last_resort() -> None:
    """Let lines that no handler takes be written by the same rules: commands have no log, clients warn."""
    logging.lastResort = _LastResort()
