"""Spark's daemon of Python workers, whose workers end quietly when the JVM is gone.

A session that ends, or is killed, closes the sockets of its workers. One that was about to write prints a
traceback then, behind whatever the program has to say; with Unix sockets more often than by TCP. Nobody is
left to read what it wrote, and nothing is wrong: it just ends. Spark starts this by
``spark.python.daemon.module``; all else is PySpark's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from pyspark import daemon

GONE = 1  # the exit code of a worker that does not go on


def quietly(work: Callable[..., int]) -> Callable[..., int]:
    def worker(*args: Any) -> int:
        try:
            return work(*args)
        except (BrokenPipeError, ConnectionResetError):
            return GONE

    return worker


if __name__ == "__main__":
    daemon.worker = quietly(daemon.worker)
    daemon.manager()
