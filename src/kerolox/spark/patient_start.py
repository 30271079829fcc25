"""Start a streaming query although the machine is too busy for Spark's own patience."""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery
    from pyspark.sql.streaming.readwriter import DataStreamWriter

log = logging.getLogger(__name__)

TOO_LATE: Final = "Python worker failed to connect back"
TRIES: Final = 3
LOOK_EVERY_S: Final = 0.05


def start(writer: DataStreamWriter, *, tries: int = TRIES) -> StreamingQuery:
    """Start a query, and start it again when Spark did not wait for Python long enough.

    A source in Python runs in a process of its own, to which Spark gives 10 s to start, and there is no
    setting for more. Nothing has been read or written then, and the checkpoint is as it was. Returns when the
    query is past that, or has ended in another way: see ``query.exception()`` as always.
    """
    for left in reversed(range(tries)):
        query = writer.start()
        while query.isActive and not _has_begun(query):
            time.sleep(LOOK_EVERY_S)
        if query.isActive or not left or TOO_LATE not in str(query.exception()):
            break
        log.warning("python_too_late query=%s tries_left=%d next='it is started again'", query.name, left)
    return query


def _has_begun(query: StreamingQuery) -> bool:
    """Sources are there: a first batch is being looked for, or has been."""
    status = query.status
    return bool(status["isTriggerActive"]) or not str(status["message"]).startswith("Initializing")
