"""What a streaming query tells its group at the broker: how far it is, right after each batch.

Spark tells a source that a batch is done when it plans the next one, and never for the last. A listener hears
of it at once. Offsets are the next to be read, as all consumers report them, and only go forward.
"""

from __future__ import annotations

import json
import logging
import threading
import weakref
from collections.abc import Mapping

from pyspark.sql import SparkSession
from pyspark.sql.streaming.listener import (
    QueryIdleEvent,
    QueryProgressEvent,
    QueryStartedEvent,
    QueryTerminatedEvent,
    StreamingQueryListener,
)

from kerolox.client.plain import OffsetGone, PlainCluster
from kerolox.errors import KeroloxError, RequestFailed
from kerolox.protocol.codes import ResponseCode
from kerolox.spark.option_table import CLUSTER, OptionTable, cluster_options
from kerolox.spark.places import Mark, Places, is_marked

log = logging.getLogger(__name__)

_TABLE = OptionTable("the progress of rocketmq sources", *CLUSTER)
_listening: weakref.WeakSet[SparkSession] = weakref.WeakSet()


def report_progress(spark: SparkSession, options: Mapping[str, str]) -> None:
    """Add the listener to a session, once."""
    if spark not in _listening:
        spark.streams.addListener(GroupProgress(options))
        _listening.add(spark)


class GroupProgress(StreamingQueryListener):
    """Reports the offsets of the session's rocketmq sources. ``options``: keys and the like, if needed."""

    def __init__(self, options: Mapping[str, str]) -> None:
        self._options = dict(options)
        _TABLE.parse(self._options)  # complains now rather than in the middle of a query
        self._clusters: dict[str, PlainCluster] = {}
        self._lock = threading.Lock()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        for source in event.progress.sources:
            try:
                end = json.loads(source.endOffset or "null")
            except ValueError:
                continue
            if is_marked(end):
                mark = Mark.decode(end)
                with self._lock:
                    tell_group(self._cluster(mark.nameserver), mark)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        with self._lock:
            for cluster in self._clusters.values():
                cluster.close()

    def _cluster(self, nameserver: str) -> PlainCluster:
        found = self._clusters.get(nameserver)
        if found is None:
            values = _TABLE.parse(self._options | {"nameserver": nameserver})
            found = self._clusters[nameserver] = PlainCluster(cluster_options(values), tries=1)
        return found


def tell_group(cluster: PlainCluster, mark: Mark) -> None:
    """Report the places of a mark that are further than what the group has. Never fails: it is for show."""
    places = {queue: at for queue, at in mark.places.items() if at > 0}
    patience_s, tries = cluster.patience_s, cluster.tries
    cluster.patience_s, cluster.tries = None, 1
    try:
        known = cluster.all_committed(list(places), mark.group)
        ahead = {queue: at for queue, at in places.items() if at > known.get(queue, -1)}
        try:
            cluster.commit_all(ahead, mark.group)
        except RequestFailed as error:
            if error.response_code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                raise
            _make_group(cluster, mark.group, ahead)
            cluster.commit_all(ahead, mark.group)
    except KeroloxError as error:
        log.warning(
            "progress_not_reported group=%s error=%r next='the next batch does'", mark.group, str(error)
        )
    finally:
        cluster.patience_s, cluster.tries = patience_s, tries


def _make_group(cluster: PlainCluster, group: str, places: Places) -> None:
    """Brokers make a group when it pulls, if at all; a query that found nothing to read has not pulled."""
    for queue, at in {queue.broker: (queue, at) for queue, at in places.items()}.values():
        try:
            next(cluster.blocks(queue, at, at + 1, group=group, count=1, ahead=1), None)
        except OffsetGone:
            pass
