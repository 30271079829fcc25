"""Topics read by batch queries: what lies between two places when the query is planned."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from kerolox.spark.short_errors import tells_shortly
from kerolox.spark.source.options import read_wanted
from kerolox.spark.source.queues import ClusterQueues
from kerolox.spark.source.ranges import Ranges, ranges, tasks
from kerolox.spark.source.reading import chosen_table, read_range


@tells_shortly
class BatchSource(DataSourceReader):
    """Plans once per DataFrame: a second action on it reads the same range again."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._wanted = read_wanted(options, "batch")
        self._table = chosen_table(schema, self._wanted.bodies)

    def partitions(self) -> Sequence[InputPartition]:
        wanted = self._wanted
        with wanted.open_cluster() as cluster:
            queues = ClusterQueues(cluster, wanted)
            edges = cluster.edges(queues.find())
            starts = queues.places(wanted.start, edges)
            ends = queues.places(wanted.end, edges, ending=True)
        return tasks(ranges(starts, ends), pieces_min=wanted.pieces_min, rows_max=wanted.piece_rows_max)

    def read(self, partition: InputPartition | None) -> Iterator[pa.RecordBatch]:
        # Spark makes up a partition where there is none.
        if isinstance(partition, Ranges):
            for part in partition.parts:
                yield from self._table.of_all(read_range(self._wanted, self._table.needed, part))
