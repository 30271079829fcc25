"""What tests of replays share: rows of an archive, and a task of a replay without Spark around it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kerolox.client.calls.outgoing import Target
from kerolox.client.sockets.lines import Sending, SendLine
from kerolox.errors import ConnectionLost
from kerolox.pipeline.replay import send_task
from kerolox.pipeline.replay.lifeline import TaskEnd
from kerolox.protocol.command import Command
from kerolox.spark.columns import arrow_schema

T0 = 1_700_000_000_000


def message(queue_id: int, offset: int, *, topic: str = "orders", **columns: Any) -> dict[str, Any]:
    """A row of an archive."""
    number = f"{topic}-{queue_id}-{offset}"
    at_us = (T0 + offset * 1000) * 1000
    row = dict.fromkeys(arrow_schema().names) | {
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


class Quiet(TaskEnd):
    """A line to nobody."""

    def __init__(self) -> None:
        self.told: list[int] = []

    def check(self) -> None:
        pass

    def tell(self, done: int) -> None:
        self.told.append(done)


class LostAnswers:
    """Within the block, every second send has no answer: one that was stored, one that was not, in turn."""

    def __init__(self) -> None:
        self.sends = 0
        self._patch = pytest.MonkeyPatch()

    def __enter__(self) -> LostAnswers:
        put, pull = SendLine.put, SendLine.pull

        def put_or_lose(line: SendLine, sending: Sending, target: Target) -> None:
            self.sends += 1
            if self.sends % 4 == 3:
                sending.is_begun = True
                line.waiting[-1] = sending
                raise ConnectionLost(line.address, "a test")
            put(line, sending, target)

        def pull_or_lose(line: SendLine) -> Iterator[tuple[Sending, Command]]:
            for sending, answer in pull(line):
                if self.sends % 4 == 1:
                    line.waiting[-1] = sending
                    raise ConnectionLost(line.address, "a test")
                yield sending, answer

        self._patch.setattr(SendLine, "put", put_or_lose)
        self._patch.setattr(SendLine, "pull", pull_or_lose)
        return self

    def __exit__(self, *exc: object) -> None:
        self._patch.undo()


def lane_rows(rows: Sequence[dict[str, Any]]) -> list[pa.RecordBatch]:
    """As a task takes them."""
    names = [column.split()[0] for column in send_task.COLUMNS.split(", ")]
    made = [row | {"task": 0, "source": row["queue_id"], "born_ms": None} for row in rows]
    columns = [[row[name] for row in made] for name in names]
    table = pa.table(
        {
            name: pa.array(c, arrow_schema().field(name).type if name in arrow_schema().names else None)
            for name, c in zip(names, columns, strict=True)
        }
    )
    return table.to_batches(max_chunksize=70)
