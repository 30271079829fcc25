"""Iceberg archives in tests: made without Spark, killed at each step, read back by pyiceberg."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Mapping
from typing import Any

from kerolox.client.sockets.socket_cluster import SocketCluster
from kerolox.pipeline.archive.archive import Archive
from kerolox.pipeline.archive.files import Format, HourFile
from kerolox.pipeline.archive.iceberg import IcebergArchive
from kerolox.pipeline.archive.summary import Summary
from kerolox.pipeline.lake.iceberg_catalog import CatalogPlace
from kerolox.pipeline.lake.storage import Storage
from kerolox.spark.source.options import read_wanted

from .archiving import here

NAME = "lake.messages"
STEPS = (
    "in a task", "behind the files", "before the catalog", "behind the catalog", "before the report",
)  # fmt: skip
STEPS_OF_UPKEEP = ("in a sweep", "before the join", "behind the join")


def archive(place: CatalogPlace, nameserver: str, *topics: str, run: Any = here, **more: Any) -> Summary:
    """One run."""
    options = {"nameserver": nameserver, "topic": ",".join(topics), "group": "archive"}
    wanted = read_wanted(options | more.pop("options", {}), "batch")
    made = more.pop("destination", None) or IcebergArchive(NAME, place)
    with Archive(wanted, made, run, **more) as running:
        return running.once()


def rows(place: CatalogPlace, **scan: Any) -> list[dict[str, Any]]:
    """Everything that a reader sees."""
    found: list[dict[str, Any]] = place.open().load_table(NAME).scan(**scan).to_arrow().to_pylist()
    return found


def bodies(place: CatalogPlace) -> Counter[bytes]:
    return Counter(row["body"] for row in rows(place))


def kill_at(step: str) -> None:
    """End this process by SIGKILL when it gets there."""

    def die(*_: Any, **__: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    from pyiceberg.catalog.rest import RestCatalog
    from pyiceberg.catalog.sql import SqlCatalog

    if step == "in a task":
        add, seen = HourFile.add, []

        def then_die(self: Any, *args: Any) -> int:
            seen.append(1)
            return add(self, *args) if len(seen) < 3 else die()  # type: ignore[no-any-return]

        HourFile.add = then_die  # type: ignore[method-assign]
    elif step == "behind the files":
        IcebergArchive.commit = die  # type: ignore[method-assign]
    elif step == "before the catalog":  # the manifests are written
        _when(SqlCatalog, RestCatalog, lambda marked: "archive.offsets" in marked, die, before=True)
    elif step == "behind the catalog":
        _when(SqlCatalog, RestCatalog, lambda marked: "archive.offsets" in marked, die, before=False)
    elif step == "before the report":
        SocketCluster.commit_all = die  # type: ignore[method-assign]
    elif step == "in a sweep":  # the fence is there, the files still are
        Storage.delete = die  # type: ignore[method-assign]
        IcebergArchive.named = die  # type: ignore[method-assign]
    elif step == "before the join":
        _when(SqlCatalog, RestCatalog, lambda marked: "kerolox.joined" in marked, die, before=True)
    elif step == "behind the join":
        _when(SqlCatalog, RestCatalog, lambda marked: "kerolox.joined" in marked, die, before=False)


def _when(first: Any, second: Any, wanted: Any, die: Any, *, before: bool) -> None:
    """Die before or after the commit that is wanted, in either kind of catalog."""
    for kind in (first, second):

        def commit(
            self: Any, table: Any, requirements: Any, updates: Any, work: Any = kind.commit_table
        ) -> Any:
            is_it = wanted(repr(updates) + repr([getattr(u, "snapshot", "") for u in updates]))
            if is_it and before:
                die()
            answer = work(self, table, requirements, updates)
            if is_it:
                die()
            return answer

        kind.commit_table = commit


def told(place: CatalogPlace) -> str:
    """A place as a process is told of it."""
    return json.dumps({"uri": place.uri, "warehouse": place.warehouse, "options": place.options})


def placed(text: str) -> CatalogPlace:
    document: Mapping[str, Any] = json.loads(text)
    return CatalogPlace(document["uri"], warehouse=document["warehouse"], options=document["options"])


if __name__ == "__main__":  # python -m tests.pipeline.iceberg_archiving STEP PLACE NAMESERVER TOPIC...
    step, place, nameserver, *topics = sys.argv[1:]
    kill_at(step)
    archive(placed(place), nameserver, *topics, format=Format(rows_max=40), round_rows=150)
