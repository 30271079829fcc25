"""Spark's daemon of Python workers, whose workers end quietly when the JVM is gone.

A session that ends, or is killed, closes the sockets of its workers. One that was about to write, to read
the secret it is to show, or to say that it has started, prints a traceback then, behind whatever the program
has to say; with Unix sockets more often than by TCP. Nobody is left to read what it wrote, and nothing is
wrong: it just ends. Spark starts this by
``spark.python.daemon.module``; all else is PySpark's. The workers in which Spark plans reads and writes come
from PySpark's own daemon, whatever that setting says: they call :func:`end_quietly` when they load our
formats.
"""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from typing import Any, Final

from pyspark import daemon

GONE = 1  # exit code of a worker whose JVM has ended
# Errors of a worker whose JVM has closed the socket. PySpark itself handles an EOFError within tasks.
ENDS: Final = (BrokenPipeError, ConnectionResetError, EOFError)


def quietly(work: Callable[..., int]) -> Callable[..., int]:
    def worker(*args: Any) -> int:
        try:
            return work(*args)
        except ENDS:
            return GONE

    return worker


class ToldTracebacks:
    """Replacement of the module ``traceback`` in the daemon, without tracebacks of a JVM that has ended."""

    format_exc = staticmethod(traceback.format_exc)

    @staticmethod
    def print_exc() -> None:
        if not isinstance(sys.exc_info()[1], ENDS):
            traceback.print_exc()


def end_quietly() -> None:
    """Suppress these tracebacks in a worker of PySpark's own daemon. Does nothing in other processes."""
    main = sys.modules.get("__main__")
    if getattr(getattr(main, "__spec__", None), "name", None) == daemon.__name__:
        vars(main).update(traceback=ToldTracebacks)


if __name__ == "__main__":
    daemon.worker = quietly(daemon.worker)
    vars(daemon).update(traceback=ToldTracebacks)
    daemon.manager()
