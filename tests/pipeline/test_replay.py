"""Replays: what comes out of a topic's archive or of a broker's files goes into topics again, once."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kerolox.client.lookups import GROUP
from kerolox.client.messages import Queue, Received
from kerolox.client.plain import PlainCluster
from kerolox.errors import OptionError
from kerolox.pipeline import replay_lane
from kerolox.pipeline.replay import Replayed, replay
from kerolox.pipeline.replay_lane import REPLAY_BORN, REPLAY_FROM, REPLAY_ID
from kerolox.pipeline.replay_plan import Choice, PlanFile, ReplayError, lanes_of, target_of
from kerolox.spark.columns import arrow_schema
from kerolox.testing import BrokerThread

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T0 = 1_700_000_000_000


def message(queue_id: int, offset: int, *, topic: str = "orders", **columns: Any) -> dict[str, Any]:
    """A row of an archive."""
    number = f"{topic}-{queue_id}-{offset}"
    at_us = (T0 + offset * 1000) * 1000
    row = {name: None for name in arrow_schema().names} | {
        "topic": topic,
        "broker": "broker-x",
        "queue_id": queue_id,
        "queue_offset": offset,
        "msg_id": f"ID{number}",
        "keys": f"k-{number} k-all",
        "tags": "even" if offset % 2 == 0 else "odd",
        "body": f"body of {number}".encode(),
        "born_timestamp": at_us - 5_000,
        "store_timestamp": at_us,
        "flag": offset,
    }
    row["properties"] = [
        ("KEYS", row["keys"]), ("TAGS", row["tags"]), ("UNIQ_KEY", f"ID{number}"), ("region", "north"),
        ("MSG_REGION", "DefaultRegion"), ("TRACE_ON", "true"), ("RECONSUME_TIME", "3"), ("DELAY", "3"),
        ("CLUSTER", "other"),
    ]  # fmt: skip
    return row | columns


def archive(folder: Path, rows: Sequence[dict[str, Any]], files: int = 3) -> str:
    """Rows as Parquet files, in no good order."""
    folder.mkdir(exist_ok=True)
    for number in range(files):
        part = list(reversed(rows[number::files]))
        pq.write_table(pa.Table.from_pylist(part, arrow_schema()), folder / f"{number}.parquet")
    return str(folder)


@pytest.fixture
def cluster(broker: BrokerThread) -> Iterator[PlainCluster]:
    with PlainCluster(broker.nameserver_address) as plain:
        yield plain


def read(cluster: PlainCluster, topic: str) -> dict[Queue, list[Received]]:
    found = {}
    for queue in sorted(cluster.route(topic, fresh=True).readable):
        end = cluster.max_offset(queue)
        found[queue] = list(cluster.read(queue, cluster.min_offset(queue), end, group=GROUP))
    return found


def bodies(cluster: PlainCluster, topic: str) -> list[str]:
    return [each.text for part in read(cluster, topic).values() for each in part]


@pytest.fixture
def play(spark: SparkSession, broker: BrokerThread, tmp_path: Path) -> Callable[..., Replayed]:
    def run(source: str, id: str = "", **how: Any) -> Replayed:
        choice = Choice(**{name: how.pop(name) for name in list(how) if name in Choice.__struct_fields__})
        state = tmp_path / "state"
        return replay(spark, source, broker.nameserver_address, id=id, state=state, choice=choice, **how)

    return run


# --- archives ---------------------------------------------------------------------------------------


def test_an_archive_goes_into_a_topic_in_order(
    play: Callable[..., Replayed], new_topic: Callable[..., str], cluster: PlainCluster, tmp_path: Path
) -> None:
    rows = [message(queue, offset) for queue in range(3) for offset in range(100, 350)]
    topic = new_topic(queues=4)
    done: list[int] = []
    result = play(archive(tmp_path / "a", rows), "first", to_topic=topic, on_progress=done.append)
    assert (result.is_complete, result.sent, result.before, result.planned) == (True, 750, 0, 750)
    assert done[-1] == 750
    found = read(cluster, topic)
    assert sorted(len(part) for part in found.values()) == [0, 250, 250, 250]
    for part in found.values():
        assert [each.properties[REPLAY_FROM] for each in part] == [
            f"orders/broker-x/{part[0].queue.queue_id}/{offset}" for offset in range(100, 100 + len(part))
        ]
    copy = next(part for part in found.values() if part)[7]
    assert (copy.body, copy.flag, copy.reconsume_times) == (b"body of orders-0-107", 107, 0)
    assert (copy.keys, copy.tags) == (("k-orders-0-107", "k-all"), "odd")
    own = {name: copy.properties.get(name) for name in ("UNIQ_KEY", "region", REPLAY_ID, REPLAY_BORN)}
    born = T0 + 107_000 - 5
    assert own == {"UNIQ_KEY": "IDorders-0-107", "region": "north", REPLAY_ID: "first", REPLAY_BORN: str(born)}
    assert not {"RECONSUME_TIME", "DELAY"} & copy.properties.keys()
    assert copy.properties.get("CLUSTER") != "other"
