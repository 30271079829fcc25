"""An audit's checks without Spark: the same parts, one after the other."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kerolox.pipeline.audit.checks import TABLES, PartAudit
from kerolox.pipeline.audit.finding_kinds import KINDS, Findings
from kerolox.pipeline.audit.findings import FindingMaker
from kerolox.pipeline.audit.plan import StorePlan, plan_stores, spans
from kerolox.pipeline.audit.queues import lonely_entries
from kerolox.pipeline.lake.store_files import Address


class Examined:
    """What tasks found in one store."""

    def __init__(
        self, root: Address, work: Path, *, block_bytes: int = 4096, span_bytes: int = 1 << 15
    ) -> None:
        self.store: StorePlan
        (self.store,) = plan_stores([root])
        self.work = work
        self.summary: list[dict[str, Any]] = []
        for span in spans(self.store, span_bytes):
            part = PartAudit(self.store, span, work, block_bytes=block_bytes)
            self.summary += part.run().to_pylist()

    def table(self, name: str) -> list[dict[str, Any]]:
        tables = [pq.read_table(path) for path in sorted((self.work / name).glob("*.parquet"))]
        found = pa.concat_tables([TABLES[name].empty_table(), *tables])
        rows: list[dict[str, Any]] = found.to_pylist()
        return rows

    def total(self, name: str) -> int:
        return sum(row[name] for row in self.summary)

    def findings(self) -> Findings:
        """The findings about log and queues."""
        found = Findings()
        maker = FindingMaker([self.store], found)
        maker.log(self.table("faults"), self.summary)
        covers = maker.covers(self.table("runs"))
        maker.entries(self.table("wrong_entries"), covers)
        end = max((row["end"] for row in self.summary), default=0)
        lonely = {
            (0, *key): each
            for key in self.store.queues
            if (each := lonely_entries(self.store, key, covers.get((0, *key)), end))
        }
        maker.gaps(covers, lonely)
        return found


def problems(found: Findings) -> dict[str, list[dict[str, Any]]]:
    """The problems by kind, without kinds that have none."""
    return {kind.name: rows for kind in KINDS if (rows := found.problems(kind))}
