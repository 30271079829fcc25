"""Archives in tests: made without Spark, which only hands the tasks out, and read back by Arrow."""

from __future__ import annotations

import itertools
import json
import os
import signal
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow.dataset as ds

from kerolox.client.sockets.socket_cluster import SocketCluster
from kerolox.pipeline.archive.archive import Archive
from kerolox.pipeline.archive.delta import DeltaArchive
from kerolox.pipeline.archive.files import Format, WriteTask, carry_out
from kerolox.pipeline.archive.log import ParquetArchive
from kerolox.pipeline.archive.summary import Summary
from kerolox.pipeline.lake.delta_options import delta_options
from kerolox.pipeline.lake.delta_table import LakeDelta
from kerolox.pipeline.lake.local_folder import LocalFolder
from kerolox.pipeline.lake.remote_store import RemoteStore
from kerolox.pipeline.lake.storage import Storage, open_storage
from kerolox.pipeline.lake.upkeep import JoinTask, TaskResult
from kerolox.spark.source.options import read_wanted

KINDS = {"parquet": ParquetArchive, "delta": DeltaArchive}
Place = tuple[str, str, int, int]  # topic, broker, queue, offset


def here(works: Sequence[WriteTask | JoinTask]) -> list[TaskResult]:
    """The tasks, one after the other in this process."""
    return [carry_out(work) for work in works]


def archive(
    to: Path | Storage, nameserver: str, *topics: str, kind: str = "parquet", run: Any = here, **more: Any
) -> Summary:
    """One run."""
    options = {"nameserver": nameserver, "topic": ",".join(topics), "group": "archive"}
    wanted = read_wanted(options | more.pop("options", {}), "batch")
    with Archive(wanted, KINDS[kind](to), run, **more) as made:
        return made.once()


def rows(to: Path | Storage, kind: str = "parquet") -> list[dict[str, Any]]:
    """Everything that a reader sees who knows nothing of our log."""
    storage = open_storage(to)
    if kind == "delta":
        from deltalake import DeltaTable

        table = DeltaTable(storage.address, storage_options=delta_options(storage))
        found: list[dict[str, Any]] = table.to_pyarrow_table().to_pylist()
        return found
    filesystem, path = storage.arrow()
    return ds.dataset(path, partitioning="hive", filesystem=filesystem).to_table().to_pylist()


def bodies(to: Path | Storage, kind: str = "parquet") -> Counter[bytes]:
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
        ParquetArchive.publish = die  # type: ignore[method-assign]
        DeltaArchive.commit = _then(DeltaArchive.commit, die)  # type: ignore[method-assign]
    elif step == "between the moves":
        for kind in (LocalFolder, RemoteStore):
            kind._move = _second(kind._move, die)  # type: ignore[attr-defined]
    elif step == "behind the moves":
        for kind in (LocalFolder, RemoteStore):
            kind.publish = _then(kind.publish, die)  # type: ignore[method-assign]
    elif step == "before the report":
        SocketCluster.commit_all = die  # type: ignore[method-assign]


def _then(work: Any, after: Any) -> Any:
    def both(*args: Any, **kwargs: Any) -> None:
        work(*args, **kwargs)
        after()

    return both


def _second(work: Any, instead: Any) -> Any:
    """Does something else the second time."""
    times = itertools.count(1)

    def either(*args: Any) -> Any:
        return (instead if next(times) == 2 else work)(*args)

    return either


UPKEEP_STEPS = ("before the commit", "after the commit", "between the deletes", "behind the deletes")


def kill_upkeep_at(step: str) -> None:
    """The same for joining and expiring."""

    def die(*_: Any, **__: Any) -> None:
        os.kill(os.getpid(), signal.SIGKILL)

    if step == "before the commit":
        ParquetArchive.write = die  # type: ignore[method-assign]
        LakeDelta.swap = die  # type: ignore[method-assign]
    elif step == "after the commit":
        ParquetArchive.publish = _unless_empty(ParquetArchive.publish, die)  # type: ignore[method-assign]
        LakeDelta.swap = _then(LakeDelta.swap, die)  # type: ignore[method-assign]
    else:
        for kind in (LocalFolder, RemoteStore):
            kind.delete = _with_data(kind.delete, die, step == "between the deletes")  # type: ignore[method-assign]


def _unless_empty(work: Any, die: Any) -> Any:
    """Dies with a commit that removes files."""

    def either(self: Any, commit: Any) -> Any:
        return die() if commit.removed else work(self, commit)

    return either


def _with_data(work: Any, die: Any, halfway: bool) -> Any:
    """Dies when files that readers see are deleted: in the middle, or when they are gone."""

    def either(self: Any, paths: Any) -> Any:
        paths = list(paths)
        is_data = any(path.startswith("topic=") for path in paths)
        done = work(self, paths[: len(paths) // 2] if is_data and halfway else paths)
        return die() if is_data else done

    return either


if __name__ == "__main__":  # python -m tests.pipeline.archiving STEP KIND ADDRESS OPTIONS NAMESERVER TOPIC...
    step, kind, to, options, nameserver, *topics = sys.argv[1:]
    if kind in ("compact", "expire"):
        from kerolox.pipeline.archive import upkeep

        kill_upkeep_at(step)
        at = open_storage(to, json.loads(options))
        if kind == "compact":
            upkeep.compact(at, older_than_ms=-3_600_000)
        else:
            upkeep.expire(at, keep_ms=-3_600_000)
        sys.exit("it was to be killed")
    kill_at(step)
    archive(
        open_storage(to, json.loads(options)),
        nameserver,
        *topics,
        kind=kind,
        format=Format(rows_max=40),
        round_rows=150,
    )
