"""What the listener tells a group, without Spark."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import pytest

from kerolox.client.messages import Message, Queue
from kerolox.client.sockets.socket_cluster import SocketCluster
from kerolox.errors import (
    ConnectFailed,
    ConnectionLost,
    KeroloxError,
    OptionError,
    RequestFailed,
    RequestTimeout,
)
from kerolox.protocol.codes import ResponseCode
from kerolox.spark.offsets import StreamOffset
from kerolox.spark.source import progress
from kerolox.spark.source.progress import (
    IS_IT_UP,
    NEXT_BATCH,
    OF_KEYS,
    GroupProgress,
    after_error,
    report_progress,
)
from kerolox.testing.threads import BrokerThread


@pytest.fixture
def listener() -> Iterator[GroupProgress]:
    made = GroupProgress()
    yield made
    made.onQueryTerminated(SimpleNamespace())  # type: ignore[arg-type]
    progress._warned.clear()


def event(*ends: object) -> Any:
    sources = [SimpleNamespace(endOffset=json.dumps(end)) for end in ends]
    return SimpleNamespace(progress=SimpleNamespace(sources=sources))


def test_places_of_our_sources_are_reported(
    broker: BrokerThread,
    new_topic: Callable[..., str],
    send: Callable[[Sequence[Message]], Any],
    listener: GroupProgress,
) -> None:
    topic = new_topic(queues=1)
    send([Message(topic, f"{n}") for n in range(5)])
    queue = Queue(topic, "broker-a", 0)
    mark = StreamOffset("heard", broker.nameserver_address, {queue: 3})
    listener.onQueryProgress(event({"offset": 7}, None, mark.encode(), 12))
    with SocketCluster(broker.nameserver_address) as cluster:
        assert cluster.committed(queue, "heard") == 3
        assert cluster.route("%RETRY%heard").readable  # by which tools find groups


def test_a_broker_that_is_away_is_no_error_and_said_once(
    listener: GroupProgress, caplog: pytest.LogCaptureFixture
) -> None:
    mark = StreamOffset("unheard", "127.0.0.1:1", {Queue("t", "broker-a", 0): 3})
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            listener.onQueryProgress(event(mark.encode()))
    assert len([record for record in caplog.records if "progress_not_reported" in record.message]) == 1


def test_one_listener_for_a_session_and_options_that_come_later() -> None:
    class Session:
        def __init__(self) -> None:
            self.added: list[GroupProgress] = []
            self.streams = SimpleNamespace(addListener=self.added.append)

    session: Any = Session()
    report_progress(session, {})
    report_progress(session, {"accessKey": "me", "secretKey": "s"})
    (listener,) = session.added
    assert listener._cluster("127.0.0.1:1").options.access_key == "me"
    with pytest.raises(OptionError, match="accessKey"):
        report_progress(session, {"accesKey": "me"})


@pytest.mark.parametrize(
    ("error", "step"),
    [
        (ConnectFailed("10.0.0.1:10911", "refused"), IS_IT_UP),
        (ConnectionLost("10.0.0.1:10911", "reset"), IS_IT_UP),
        (RequestTimeout("10.0.0.1:10911", "UPDATE_CONSUMER_OFFSET", 3.0), NEXT_BATCH),
        (RequestFailed(ResponseCode.NO_PERMISSION, "no rights"), OF_KEYS),
        (RequestFailed(ResponseCode.SYSTEM_ERROR, "AclException: signature"), OF_KEYS),
        (RequestFailed(ResponseCode.SYSTEM_ERROR, "disk full"), NEXT_BATCH),
    ],
)
def test_keys_are_named_only_where_a_broker_refused(error: KeroloxError, step: str) -> None:
    assert after_error(error) == step
    assert ("Key" in step) == (step == OF_KEYS)
