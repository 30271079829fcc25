"""The streaming source without Spark: its methods called in Spark's order, against a real broker."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    DataType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructType,
    TimestampType,
)

from kerolox.spark.columns import COLUMNS, MAP, TIMESTAMP
from kerolox.spark.source import reading
from kerolox.spark.source.batch import BatchSource
from kerolox.spark.source.stream import StreamSource
from kerolox.testing.threads import BrokerThread

_TYPES: dict[pa.DataType, DataType] = {
    pa.string(): StringType(),
    pa.int32(): IntegerType(),
    pa.int64(): LongType(),
    pa.binary(): BinaryType(),
    MAP: MapType(StringType(), StringType()),
    TIMESTAMP: TimestampType(),
}


def schema(*names: str) -> StructType:
    made = StructType()
    for name in names or COLUMNS:
        made.add(name, _TYPES[COLUMNS[name].type])
    return made


def _texts(broker: BrokerThread, topic: str, options: dict[str, object]) -> dict[str, str]:
    given = {"nameserver": broker.nameserver_address, "retryForMs": 5000, **options}
    if "topicPattern" not in given:
        given["topic"] = topic
    return {
        key.lower(): value if isinstance(value, str) else json.dumps(value) for key, value in given.items()
    }


_opened: list[StreamSource] = []


def close_all() -> None:
    """Connections of queries, and those that tasks keep for the next task."""
    for source in _opened:
        source.stop()
    _opened.clear()
    reading.close_clusters()


class Query:
    """A streaming query: batch after batch, with offsets as Spark keeps them."""

    def __init__(self, broker: BrokerThread, topic: str = "", **options: object) -> None:
        options.setdefault("idleWaitMs", 0)
        self.source = StreamSource(_texts(broker, topic, options), schema("queue_id", "queue_offset", "body"))
        _opened.append(self.source)
        self.limit = self.source.getDefaultReadLimit()
        self.at: dict[str, Any] | None = None

    def next(self, limit: Any = None) -> list[str]:
        """The bodies of the next batch, by queue and offset; none when there is no batch."""
        if self.at is None:
            self.at = through_json(self.source.initialOffset())
        end = through_json(self.source.latestOffset(self.at, limit or self.limit))
        bodies = self.read(self.at, end)
        self.at = end
        return bodies

    def read(self, start: dict[str, Any], end: dict[str, Any]) -> list[str]:
        return read_all(self.source, self.source.partitions(start, end))


def through_json(offset: dict[str, Any]) -> dict[str, Any]:
    """As Spark hands offsets back."""
    found: dict[str, Any] = json.loads(json.dumps(offset))
    return found


def read_all(source: Any, partitions: Any) -> list[str]:
    batches = [batch for partition in partitions for batch in source.read(partition)]
    return [row["body"].decode() for batch in batches for row in batch.to_pylist()]


def batch_read(broker: BrokerThread, topic: str = "", **options: object) -> list[str]:
    """What a batch query reads."""
    source = BatchSource(_texts(broker, topic, options), schema("body"))
    return read_all(source, source.partitions())


def batch_table(broker: BrokerThread, topic: str, *columns: str, **options: object) -> list[dict[str, Any]]:
    source = BatchSource(_texts(broker, topic, options), schema(*columns))
    return [row for part in source.partitions() for batch in source.read(part) for row in batch.to_pylist()]


def delete_topic(broker: BrokerThread, topic: str) -> None:
    from kerolox.client.admin.calls import AdminCalls
    from kerolox.client.nameservers import NameServers
    from kerolox.net.dialer import Dialer

    async def work() -> None:
        async with Dialer() as dialer:
            await AdminCalls(NameServers([broker.nameserver_address], dialer), dialer).delete_topic(topic)

    broker.run(work)
