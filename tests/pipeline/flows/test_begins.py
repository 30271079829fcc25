"""Where the flows of one source begin, whenever each of them starts."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kerolox.client.messages import Message, Queue
from kerolox.client.sockets.socket_cluster import Edges
from kerolox.pipeline.flows.begins import begin_options, what_is_left
from kerolox.pipeline.flows.document import Document
from kerolox.pipeline.flows.flow import StreamFlow
from kerolox.pipeline.flows.plan import MISFITS, make_plan
from kerolox.pipeline.flows.reading import read_pipeline
from kerolox.pipeline.flows.run import Run
from kerolox.pipeline.lake.storage import open_storage
from kerolox.testing.threads import BrokerThread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Send = Callable[[list[Message]], object]


def test_flows_begin_at_one_place_though_one_starts_later(
    broker: BrokerThread, new_topic: Callable[..., str], send: Send, tmp_path: Path
) -> None:
    topic = new_topic(queues=1)
    send([Message(topic, "before")])
    storage = open_storage(tmp_path)
    options = {"nameserver": broker.nameserver_address, "topic": topic}

    def begin(*flows: str, **more: str) -> Any:
        told = begin_options(storage, "orders", options | more, flows)
        return (
            json.loads(told["startingOffsets"])[topic]["broker-a"]["0"] if "startingOffsets" in told else None
        )

    assert begin("good", "bad") == 1  # the latest, as a query begins
    send([Message(topic, "between")])
    assert begin("good", "bad") == 1
    checkpoint(tmp_path, "good")
    assert begin("good", "bad") == 1  # the run was killed before this flow began
    assert begin("good", "bad", startingOffsets="earliest") == 0  # asked for anew: decided anew
    assert begin("good", "bad", startingTimestamp="1000") == 0
    checkpoint(tmp_path, "bad")
    assert begin("good", "bad") is None
    assert begin("good", "bad", "added") == 2


def checkpoint(folder: Path, flow: str) -> None:
    offsets = folder / "checkpoints" / flow / "offsets"
    offsets.mkdir(parents=True)
    (offsets / "0").write_text("v1")


def test_a_flow_that_is_added_later_begins_with_what_is_left() -> None:
    queues = [Queue("t", "b", number) for number in range(4)]
    edges = {queues[0]: Edges(0, 9), queues[1]: Edges(7, 9), queues[2]: Edges(0, 2)}
    places = dict.fromkeys(queues, 5)
    assert what_is_left(places, edges) == {queues[0]: 5, queues[1]: 7, queues[2]: 0}


FILE = """\
name: late
storage: ${DIR}/state
nameserver: ${NS}
sources:
  orders: {topic: "${TOPIC}", body: {format: json, schema: "id INT"}}
sinks:
  good: {from: orders, format: parquet, path: "${DIR}/good"}
bad_rows: {format: parquet, path: "${DIR}/bad"}
"""


def test_bad_rows_sent_while_flows_start_are_in_their_table(
    spark: SparkSession,
    broker: BrokerThread,
    topic: str,
    send: Send,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """With default offsets: a message between the starts of the two queries is in one of the tables."""
    start = StreamFlow.start

    def send_between(self: StreamFlow) -> None:
        if self.name.startswith(MISFITS):
            send([Message(topic, "no json"), Message(topic, '{"id": 7}')])
        start(self)

    monkeypatch.setattr(StreamFlow, "start", send_between)
    file = tmp_path / "pipeline.yaml"
    file.write_text(FILE)
    given = {"DIR": str(tmp_path), "NS": broker.nameserver_address, "TOPIC": topic}
    pipeline, document = read_pipeline(file, given)
    with Run(make_plan(pipeline, Document(file, given, {})), document, once=True) as run:
        run.prepare(spark)
        run.run()
    assert run.result.failed == {}
    bad = spark.read.parquet(f"{tmp_path}/bad")
    assert [bytes(row.body) for row in bad.collect()] == [b"no json"]


def slow_listener(ended: threading.Event) -> Any:
    """Keeps all listeners of the session waiting, until the event."""
    from pyspark.sql.streaming.listener import StreamingQueryListener

    class Slow(StreamingQueryListener):
        """Takes its time with each batch."""

        def onQueryStarted(self, event: Any) -> None:
            pass

        def onQueryProgress(self, event: Any) -> None:
            ended.wait(30)

        def onQueryIdle(self, event: Any) -> None:
            pass

        def onQueryTerminated(self, event: Any) -> None:
            pass

    return Slow()


def test_a_run_knows_all_its_batches_when_it_ends(
    spark: SparkSession, broker: BrokerThread, topic: str, send: Send, tmp_path: Path
) -> None:
    """Though Spark tells those who listen for batches long after they are done."""
    file = tmp_path / "pipeline.yaml"
    options = '{startingOffsets: earliest, maxOffsetsPerTrigger: "1"}'
    file.write_text(FILE.replace('topic: "${TOPIC}",', f'topic: "${{TOPIC}}", options: {options},'))
    send([Message(topic, f'{{"id": {number}}}') for number in range(12)])
    given = {"DIR": str(tmp_path), "NS": broker.nameserver_address, "TOPIC": topic}
    pipeline, document = read_pipeline(file, given)
    with Run(make_plan(pipeline, document), document, once=True) as run:
        run.prepare(spark)
        ended = threading.Event()
        slow = slow_listener(ended)
        assert run._spark is not None
        run._spark.streams.addListener(slow)
        try:
            run.run()
        finally:
            ended.set()
            run._spark.streams.removeListener(slow)
    good, bad = (run.figures.flows[name] for name in ("good", f"{MISFITS}orders"))
    commits = [
        each for each in (tmp_path / "state/checkpoints/good/commits").glob("*") if each.name.isdigit()
    ]
    assert (good.batches, good.rows_in, good.rows_out) == (len(commits), 12, 12) == (12, 12, 12)
    assert (bad.batches, bad.rows_in) == (12, 12)
    assert good.lag_total == 0
