"""``consumerOrderInfo.json``: the messages that groups have of queues they pop in order."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.protocol.bodies.body import from_tree
from kerolox.protocol.pop.order_record import OrderRecord, OrderTable
from kerolox.store.disk.files import Files, PathLike
from kerolox.store.tables.table import Table, unknown_members

KEPT_MS = 24 * 3_600_000  # a record that nobody has touched for so long is dropped


class PopOrders(Table):
    """Records of ordered pops: ``records["topic@group"][queue]``."""

    NAME = "consumerOrderInfo.json"
    DISPENSABLE = True  # without it the messages that are out come once more

    def __init__(self, files: Files, directory: PathLike, *, clock: Clock = SYSTEM_CLOCK) -> None:
        super().__init__(files, directory, clock=clock)
        self.records: dict[str, dict[int, OrderRecord]] = {}

    def find(self, topic: str, group: str, queue_id: int) -> OrderRecord | None:
        return self.records.get(f"{topic}@{group}", {}).get(queue_id)

    def put(self, topic: str, group: str, queue_id: int, record: OrderRecord) -> None:
        self.records.setdefault(f"{topic}@{group}", {})[queue_id] = record
        self.changed = True

    def remove(self, topic: str, group: str, queue_id: int) -> None:
        queues = self.records.get(f"{topic}@{group}")
        if queues is not None and queues.pop(queue_id, None) is not None:
            self.changed = True
            if not queues:
                del self.records[f"{topic}@{group}"]

    def forget(self, is_gone: Callable[[str, str], bool]) -> None:
        """Drop records of topics or groups that are gone, and those of another day."""
        oldest_ms = self._clock.wall_ms() - KEPT_MS
        for key in list(self.records):
            topic, _, group = key.partition("@")
            gone = is_gone(topic, group)
            for queue_id, record in list(self.records[key].items()):
                if gone or record.saved_ms < oldest_ms:
                    self.remove(topic, group, queue_id)

    def replace(self, records: Mapping[str, Mapping[int, OrderRecord]]) -> None:
        """Replace the table by a leader's."""
        self.records = {key: dict(queues) for key, queues in records.items()}
        self.changed = True

    def _read(self, tree: Mapping[Any, Any]) -> None:
        content = from_tree(tree, OrderTable)
        self.records = {key: dict(queues) for key, queues in content.table.items()}
        self._other = unknown_members(tree, OrderTable)

    def _content(self) -> dict[str, Any]:
        return {"table": self.records}
