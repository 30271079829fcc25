"""Errors without tracebacks for users of Spark.

Spark prints the traceback of an exception before its message, which is then at the end of 30 lines. PySpark
omits tracebacks if the variable SPARK_HIDE_TRACEBACK is set when an exception arrives. A worker ends after
an exception, so setting it there for an error of kerolox hides no other traceback. Unexpected errors keep
their tracebacks; with the variable KEROLOX_TRACEBACKS all errors do.
"""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import ReadLimit, SupportsTriggerAvailableNow

from kerolox.errors import KeroloxError
from kerolox.spark.java import SHOW as SHOW
from kerolox.spark.worker_daemon import end_quietly
from kerolox.spark.worker_memory import put_aside

end_quietly()

HIDE: Final = "SPARK_HIDE_TRACEBACK"
OF_WORKERS: Final = "PYTHON_WORKER_FACTORY_"  # prefix of variables that only Spark's Python processes have

C = TypeVar("C", bound=type)


def is_worker() -> bool:
    """Return True if Spark started this process to run Python code."""
    return any(name.startswith(OF_WORKERS) for name in os.environ)


@contextmanager
def short_errors() -> Iterator[None]:
    """Hide the tracebacks of kerolox's errors raised in the block."""
    try:
        yield
    except KeroloxError:
        if is_worker() and not os.environ.get(SHOW):
            os.environ[HIDE] = "1"
        raise


def tells_shortly(kind: C) -> C:
    """Class decorator that hides tracebacks of kerolox's errors in public methods, which Spark calls.

    After each call it also excludes loaded modules from garbage collection.
    """
    for name, work in vars(kind).copy().items():
        if inspect.isfunction(work) and not name.startswith("_"):
            setattr(kind, name, _short(work))
    return kind


def _short(work: Any) -> Any:
    if inspect.isgeneratorfunction(work):

        @functools.wraps(work)
        def generate(*args: Any, **kwargs: Any) -> Any:
            try:
                with short_errors():
                    yield from work(*args, **kwargs)
            finally:
                put_aside()

        return generate

    @functools.wraps(work)
    def call(*args: Any, **kwargs: Any) -> Any:
        try:
            with short_errors():
                return work(*args, **kwargs)
        finally:
            put_aside()

    return call


@tells_shortly
class RefusedStream(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """Stream reader that raises an error at the first call.

    An error raised while the reader is created would be lost: Spark 4.3 then reports an UnboundLocalError,
    because it has no reader.
    """

    def __init__(self, error: Exception) -> None:
        self._error = error

    def prepareForTriggerAvailableNow(self) -> None:
        raise self._error

    def getDefaultReadLimit(self) -> ReadLimit:
        raise self._error

    def initialOffset(self) -> dict[str, Any]:
        raise self._error

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:
        raise self._error

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> list[InputPartition]:
        raise self._error

    def read(self, partition: InputPartition) -> Iterator[Any]:
        raise self._error
