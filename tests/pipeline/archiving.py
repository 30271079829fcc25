"""Archives in tests: made without Spark, which only hands the tasks out, and read back by Arrow."""

from __future__ import annotations

import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from kerolox.client.sockets.socket_cluster import SocketCluster
from kerolox.pipeline.archive.archive import Archive, Summary
from kerolox.pipeline.archive.delta import DeltaArchive
from kerolox.pipeline.archive.files import Format, TaskResult, WriteTask
from kerolox.pipeline.archive.joining import JoinTask, carry_out
from kerolox.pipeline.archive.log import ParquetArchive
from kerolox.pipeline.archive.staging import Staging
from kerolox.spark.source.options import read_wanted

KINDS = {"parquet": ParquetArchive, "delta": DeltaArchive}
Place = tuple[str, str, int, int]  # topic, broker, queue, offset


def here(works: Sequence[WriteTask | JoinTask]) -> list[TaskResult]:
    """The tasks, one after the other in this process."""
    return [carry_out(work) for work in works]


def archive(
    to: Path, nameserver: str, *topics: str, kind: str = "parquet", run: Any = here, **more: Any
) -> Summary:
    """One run."""
    options = {"nameserver": nameserver, "topic": ",".join(topics), "group": "archive"}
    wanted = read_wanted(options | more.pop("options", {}), "batch")
    with Archive(wanted, KINDS[kind](to), run, **more) as made:
        return made.once()


def rows(to: Path, kind: str = "parquet") -> list[dict[str, Any]]:
    """Everything that a reader sees who knows nothing of our log."""
    if kind == "delta":
        from deltalake import DeltaTable

        found: list[dict[str, Any]] = DeltaTable(to).to_pyarrow_table().to_pylist()
        return found
    return ds.dataset(to, partitioning="hive").to_table().to_pylist()


def bodies(to: Path, kind: str = "parquet") -> Counter[bytes]:
    return Counter(row["body"] for row in rows(to, kind))


# --- runs that are killed -----------------------------------------------------------------------

STEPS = (
    "in a task", "before the commit", "after the commit", "between the moves", "behind the moves",
    "before the report",
)  # fmt: skip


def kill_at(step: str) -> None:
    """End this process by SIGKILL when it gets there."""

    def die(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if step == "in a task":
        from kerolox.pipeline.archive import files as archive_files

        add, seen = archive_files.HourFile.add, []

        def then_die(self: Any, *args: Any) -> int:
            seen.append(1)
            return add(self, *args) if len(seen) < 3 else die()  # type: ignore[return-value]

        archive_files.HourFile.add = then_die  # type: ignore[method-assign]
    elif step == "before the commit":
        ParquetArchive.commit = DeltaArchive.commit = die  # type: ignore[method-assign, assignment]
    elif step == "after the commit":
        ParquetArchive._publish = die  # type: ignore[method-assign]
        DeltaArchive.commit = _then(DeltaArchive.commit, die)  # type: ignore[method-assign]
    elif step == "between the moves":
        from kerolox.pipeline.archive import staging as archive_staging

        archive_staging.os = _Second(os, "replace", die)  # type: ignore[assignment, attr-defined]
    elif step == "behind the moves":
        Staging.publish = _then(Staging.publish, die)  # type: ignore[method-assign]
    elif step == "before the report":
        SocketCluster.commit_all = die  # type: ignore[method-assign]


def _then(work: Any, after: Any) -> Any:
    def both(*args: Any, **kwargs: Any) -> None:
        work(*args, **kwargs)
        after()

    return both


class _Second:
    """A module, one of whose functions does something else the second time."""

    def __init__(self, module: Any, name: str, instead: Any) -> None:
        self._module, self._name, self._instead, self._count = module, name, instead, 0

    def __getattr__(self, name: str) -> Any:
        if name == self._name:
            self._count += 1
            if self._count == 2:
                return self._instead
        return getattr(self._module, name)


if __name__ == "__main__":  # python -m tests.pipeline.archiving STEP KIND DIR NAMESERVER TOPIC...
    step, kind, to, nameserver, *topics = sys.argv[1:]
    kill_at(step)
    archive(Path(to), nameserver, *topics, kind=kind, format=Format(rows_max=40), round_rows=150)
