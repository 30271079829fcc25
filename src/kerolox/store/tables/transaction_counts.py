"""``transactionMetrics``: number of half messages of each topic."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.protocol.bodies.body import Body, from_tree
from kerolox.protocol.bodies.topics import DataVersion
from kerolox.store.disk.files import Files, PathLike
from kerolox.store.tables.figures import FigureTable
from kerolox.store.tables.table import unknown_members


class TransactionCount(Body, frozen=True, kw_only=True, rename={"timestamp": "timeStamp"}):
    count: int = 0
    timestamp: int = 0  # time of the last change


class TransactionCountTable(Body, frozen=True, kw_only=True):
    """Content of the file."""

    data_version: DataVersion | None = None
    transaction_count: dict[str, TransactionCount] = {}


class TransactionCounts(FigureTable):
    """Half messages by topic. Only a hint: it is saved by interval, so a crash leaves it slightly wrong."""

    NAME = "transactionMetrics"
    DISPENSABLE = True

    def __init__(self, files: Files, directory: PathLike, *, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(files, directory, clock=clock)
        self.counts: dict[str, TransactionCount] = {}
        self.version = DataVersion()

    def add(self, topic: str, change: int) -> None:
        before = self.counts.get(topic)
        now_ms = self._clock.wall_ms()
        count = change if before is None else before.count + change
        self.counts[topic] = TransactionCount(count=count, timestamp=now_ms)
        self.version = self.version.next(now_ms)
        self.changed = True

    def remove(self, topic: str) -> None:
        if self.counts.pop(topic, None) is not None:
            self.changed = True

    def _read(self, tree: Mapping[Any, Any]) -> None:
        content = from_tree(tree, TransactionCountTable)
        self.counts = dict(content.transaction_count)
        self.version = content.data_version or DataVersion()
        self._other = unknown_members(tree, TransactionCountTable)

    def _content(self) -> dict[str, Any]:
        return {"dataVersion": self.version, "transactionCount": self.counts}
