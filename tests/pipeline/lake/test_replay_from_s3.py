"""Replays from an object store: tasks read the files, Spark needs no jars for it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kerolox.client.messages import Message, Receipt
from kerolox.client.sockets.socket_cluster import SocketCluster
from kerolox.errors import OptionError
from kerolox.pipeline.archive.files import Format
from kerolox.pipeline.lake.storage import Storage
from kerolox.pipeline.replay.plan import ReplayChoice, ReplayError
from kerolox.pipeline.replay.replay import replay
from kerolox.pipeline.replay.source import find_source
from kerolox.spark.columns import COLUMNS
from kerolox.testing.threads import BrokerThread
from tests.pipeline.archiving import KINDS, archive, rows
from tests.pipeline.replaying import message
from tests.pipeline.test_replay import bodies
from tests.rig.s3_server import SECRET, S3Server

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Send = Callable[[Sequence[Message]], list[Receipt]]


@pytest.mark.parametrize("kind", KINDS)
def test_what_an_address_holds(
    kind: str, s3: S3Server, broker: BrokerThread, send: Send, new_topic: Callable[..., str]
) -> None:
    """All columns and rows come back as they were written, folders' columns as well."""
    topic, retries = new_topic(), f"%RETRY%{new_topic()}"
    broker.create_topic(retries)
    send([Message(name, f"{name} {n}", tags="paid") for name in (topic, retries) for n in range(20)])
    storage = s3.storage()
    format = Format(partitions=("topic", "date", "hour", "tag"))
    archive(storage, broker.nameserver_address, topic, retries, kind=kind, format=format)
    found = find_source(storage.address, storage.options)
    assert found.lake is not None
    read = [row for file in found.lake.files for b in found.lake.read(*file) for row in b.to_pylist()]
    assert {row["topic"] for row in read} == {topic, retries}
    assert {row["tag"] for row in read} == {"paid"}

    def by_place(table: list[dict[str, object]]) -> dict[object, object]:
        return {row["offset_msg_id"]: {name: row[name] for name in COLUMNS} for row in table}

    assert len(read) == 40
    assert by_place(read) == by_place(rows(storage, kind))
    (fewer, *_) = found.lake.only(("topic", "queue_offset")).read(*found.lake.files[0])
    assert fewer.schema.names == ["topic", "queue_offset"]


def test_what_is_no_source(s3: S3Server) -> None:
    storage = s3.storage()

    def table(columns: dict[str, list[object]], path: str, to: Storage = storage) -> None:
        with to.writer(path) as file:
            pq.write_table(pa.table(columns), file)

    with pytest.raises(OptionError, match="found none at this address"):
        find_source(storage.address, storage.options)
    table({"queue_offset": [1]}, "_kerolox/staging/x.parquet")
    with pytest.raises(OptionError, match="found none at this address"):
        find_source(storage.address, storage.options)
    table({"topic": ["a"], "body": [b""]}, "x.parquet")
    with pytest.raises(ReplayError, match="no column queue_id, queue_offset"):
        find_source(storage.address, storage.options)
    storage.put("commitlog/00000000000000000000", b"")
    with pytest.raises(OptionError, match="on disk"):
        find_source(storage.address, storage.options)


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_an_archive_goes_into_a_topic(
    kind: str, spark: SparkSession, s3: S3Server, broker: BrokerThread, send: Send,
    new_topic: Callable[..., str], tmp_path: Path,
) -> None:  # fmt: skip
    topic, other = new_topic(), new_topic()
    send([Message(topic, f"{number}", tags="odd" if number % 2 else "even") for number in range(100)])
    storage = s3.storage()
    archive(storage, broker.nameserver_address, topic, kind=kind, round_rows=30)
    choice = ReplayChoice(to_topic=other, tags=("odd",), where="CAST(body AS STRING) != '1'")
    how = {"choice": choice, "state": tmp_path, "storage_options": storage.options, "id": "once"}
    for before in (0, 49):
        told = replay(spark, storage.address, broker.nameserver_address, **how)  # type: ignore[arg-type]
        assert (told.sent, told.before, told.is_complete) == (49 - before, before, True)
    with SocketCluster(broker.nameserver_address) as cluster:
        assert sorted(map(int, bodies(cluster, other))) == list(range(3, 100, 2))
    assert SECRET not in (tmp_path / "once" / "plan.json").read_text()


@pytest.mark.long
def test_files_of_somebody_else(
    spark: SparkSession, s3: S3Server, broker: BrokerThread, topic: str, tmp_path: Path
) -> None:
    """Parquet with messages, by whatever wrote it, as Spark reads it from a disk."""
    storage = s3.storage()
    table = pa.Table.from_pylist([message(0, offset) for offset in range(10)])
    table = table.drop_columns(["topic", "broker", "properties"]).append_column(
        "body_text", pa.array(["x"] * 10)
    )
    for number in range(2):
        with storage.writer(f"topic={topic}/{number}.parquet") as file:
            pq.write_table(table.slice(number * 5, 5), file)
    how = {"state": tmp_path, "storage_options": storage.options, "dry_run": True}
    told = replay(spark, storage.address, broker.nameserver_address, **how)  # type: ignore[arg-type]
    assert (told.planned, [each["to"].split("/")[0] for each in told.queues]) == (10, [topic])
