"""Start of a streaming query with retries, for machines too busy for Spark's timeout."""

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
    """Start a query, and start it again if Spark did not wait long enough for Python.

    A source in Python runs in a separate process, which Spark gives 10 s to start; there is no setting for
    that. A failed start reads and writes nothing, and does not change the checkpoint. Returns when the query
    has started, or has ended in another way: see ``query.exception()`` as always.
    """
    for left in reversed(range(tries)):
        query = writer.start()
        while query.isActive and not _has_begun(query):
            time.sleep(LOOK_EVERY_S)
        if query.isActive or not left or TOO_LATE not in str(query.exception()):
            break
        log.warning("python_too_late query=%s tries_left=%d next='restarted automatically'", query.name, left)
    return query


def _has_begun(query: StreamingQuery) -> bool:
    """Return True if the sources have started and the query looks for a first batch."""
    status = query.status
    return bool(status["isTriggerActive"]) or not str(status["message"]).startswith("Initializing")
