"""Errors as users of Spark see them: the message, without our traceback.

Spark writes the traceback of an exception before the exception itself, and what has to be read is at the end
of 30 lines. PySpark leaves tracebacks out where the variable SPARK_HIDE_TRACEBACK is set, and looks for it
when an exception arrives. A worker ends after an exception, so setting it there, for an error that says what
to do, hides the traceback of nothing else. Errors nobody thought of keep theirs, and where the variable
KEROLOX_TRACEBACKS is set all do.
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
OF_WORKERS: Final = "PYTHON_WORKER_FACTORY_"  # variables Spark gives to its Python processes, and to no other

C = TypeVar("C", bound=type)


def is_worker() -> bool:
    """Whether this process is one that Spark started to call our code in."""
    return any(name.startswith(OF_WORKERS) for name in os.environ)


@contextmanager
def short_errors() -> Iterator[None]:
    """Within the block our own errors are shown without their traceback."""
    try:
        yield
    except KeroloxError:
        if is_worker() and not os.environ.get(SHOW):
            os.environ[HIDE] = "1"
        raise


def tells_shortly(kind: C) -> C:
    """A class decorator: the methods that Spark calls show our own errors without their traceback, and leave
    the process in order."""
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
    """A stream that cannot be. It says so at the first call.

    Raised while the reader is made, the error would be lost: Spark 4.3 then stumbles over the reader it does
    not have (an UnboundLocalError), and tells that.
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
