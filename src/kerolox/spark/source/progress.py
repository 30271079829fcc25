"""Commits of a streaming query's offsets for its group at the broker, right after each batch.

Spark notifies a source of a finished batch only when it plans the next one, and never of the last. A
listener is notified at once. Offsets are the next to be read, as for all consumers, and only increase.
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

from kerolox.client.errors import TopicNotFound
from kerolox.client.names import retry_topic
from kerolox.client.sockets.socket_cluster import OffsetGone, SocketCluster
from kerolox.errors import ConnectFailed, ConnectionLost, KeroloxError, RequestFailed
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.flags import PERM_READ_WRITE
from kerolox.protocol.headers.topic import CreateTopicRequest
from kerolox.protocol.reserved import TEMPLATE_TOPIC
from kerolox.spark.offsets import QueueOffsets, StreamOffset, is_marked
from kerolox.spark.option_table import CLUSTER, OptionTable, cluster_options

log = logging.getLogger(__name__)

_TABLE = OptionTable("the progress of rocketmq sources", *CLUSTER)
NEXT_BATCH = "the next batch tries again"
IS_IT_UP = f"{NEXT_BATCH}; check that the broker runs, and if it requires TLS"
OF_KEYS = (
    f"{NEXT_BATCH}; for keys and TLS: spark.kerolox.accessKey and the like of the session, "
    "kerolox.spark.register(spark, accessKey=...), or the environment of the driver"
)

_listening: weakref.WeakKeyDictionary[SparkSession, GroupProgress] = weakref.WeakKeyDictionary()
_visible: set[tuple[str, str]] = set()  # name servers and group
_warned: set[str] = set()  # groups; a warning for every batch would help nobody


def report_progress(spark: SparkSession, options: Mapping[str, str]) -> None:
    """Add the listener to a session, once; options given later are used from then on."""
    known = _listening.get(spark)
    if known is None:
        known = _listening[spark] = GroupProgress()
        spark.streams.addListener(known)
    if options:
        known.use(options)


class GroupProgress(StreamingQueryListener):
    """Reports the offsets of the session's rocketmq sources."""

    def __init__(self) -> None:
        self._options: dict[str, str] = {}
        self._clusters: dict[str, SocketCluster] = {}
        self._lock = threading.Lock()

    def use(self, options: Mapping[str, str]) -> None:
        """How to speak to brokers that ask for keys or TLS: offsets do not tell."""
        _TABLE.parse(options)  # complains now rather than in the middle of a query
        with self._lock:
            self._options = dict(options)
            self._close()

    def _close(self) -> None:
        for cluster in self._clusters.values():
            cluster.close()
        self._clusters.clear()

    def onQueryStarted(self, event: QueryStartedEvent) -> None:
        pass

    def onQueryProgress(self, event: QueryProgressEvent) -> None:
        for source in event.progress.sources:
            try:
                end = json.loads(source.endOffset or "null")
            except ValueError:
                continue
            if is_marked(end):
                mark = StreamOffset.decode(end)
                with self._lock:
                    tell_group(self._cluster(mark.nameserver), mark)

    def onQueryIdle(self, event: QueryIdleEvent) -> None:
        pass

    def onQueryTerminated(self, event: QueryTerminatedEvent) -> None:
        with self._lock:
            self._close()

    def _cluster(self, nameserver: str) -> SocketCluster:
        found = self._clusters.get(nameserver)
        if found is None:
            values = _TABLE.parse(_TABLE.completed({"nameserver": nameserver}, self._options))
            found = self._clusters[nameserver] = SocketCluster(cluster_options(values), tries=1)
        return found


def tell_group(cluster: SocketCluster, mark: StreamOffset) -> None:
    """Report the places of a mark that are further than what the group has. Never fails: it is for show."""
    places = {queue: at for queue, at in mark.places.items() if at > 0}
    try:
        with cluster.once():
            known = cluster.all_committed(list(places), mark.group)
            ahead = {queue: at for queue, at in places.items() if at > known.get(queue, -1)}
            try:
                cluster.commit_all(ahead, mark.group)
            except RequestFailed as error:
                if error.response_code != ResponseCode.SUBSCRIPTION_GROUP_NOT_EXIST:
                    raise
                _make_group(cluster, mark.group, ahead)
                cluster.commit_all(ahead, mark.group)
            _make_visible(cluster, mark.group, places)
        _warned.discard(mark.group)
    except KeroloxError as error:
        level = logging.DEBUG if mark.group in _warned else logging.WARNING
        step = after_error(error)
        log.log(level, "progress_not_reported group=%s error=%r next=%r", mark.group, str(error), step)
        _warned.add(mark.group)


def after_error(error: KeroloxError) -> str:
    """The next step after an error. A broker that does not answer at all says nothing of keys."""
    if isinstance(error, RequestFailed):
        said = (error.remark or "").lower()
        is_refused = error.response_code == ResponseCode.NO_PERMISSION or "acl" in said or "signature" in said
        return OF_KEYS if is_refused else NEXT_BATCH
    return IS_IT_UP if isinstance(error, (ConnectFailed, ConnectionLost)) else NEXT_BATCH


def _make_group(cluster: SocketCluster, group: str, places: QueueOffsets) -> None:
    """Brokers make a group when it pulls, if at all; a query that found nothing to read has not pulled."""
    for queue, at in {queue.broker: (queue, at) for queue, at in places.items()}.values():
        try:
            next(cluster.blocks(queue, at, at + 1, group=group, count=1, ahead=1), None)
        except OffsetGone:
            pass


def _make_visible(cluster: SocketCluster, group: str, places: QueueOffsets) -> None:
    """Apache's tools and dashboard find groups by their retry topics, which brokers make when a consumer
    says hello. A query is no consumer and says nothing, so it makes the topic, where it may."""
    key = (";".join(cluster.options.addresses()), group)
    if key in _visible:
        return
    _visible.add(key)
    retry = retry_topic(group)
    try:
        cluster.route(retry)
        return
    except TopicNotFound:
        pass
    asked = CreateTopicRequest(
        topic=retry, default_topic=TEMPLATE_TOPIC, read_queue_nums=1, write_queue_nums=1, perm=PERM_READ_WRITE
    )
    for queue in {queue.broker: queue for queue in places}.values():
        try:
            cluster.ask(queue, RequestCode.UPDATE_AND_CREATE_TOPIC, asked)
        except RequestFailed as error:  # only administrators may
            log.debug("group_not_visible group=%s error=%r", group, str(error))
