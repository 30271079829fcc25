"""Archives in a pipeline: rounds of :mod:`kerolox.pipeline.archive`, in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from kerolox.pipeline.flows.definition import ArchiveFlow, Pipeline
from kerolox.pipeline.flows.figures import RunFigures

if TYPE_CHECKING:
    from pyspark import SparkContext

    from kerolox.pipeline.archive.summary import Summary


def archive_options(pipeline: Pipeline, archive: ArchiveFlow) -> dict[str, str]:
    """Return the options of the format ``rocketmq`` for an archive."""
    return {
        "nameserver": pipeline.nameserver_of(archive),
        "topic": ",".join(archive.topics),
        "group": archive.group,
        **archive.options,
    }


def archive_work(
    pipeline: Pipeline,
    name: str,
    archive: ArchiveFlow,
    context: SparkContext,
    figures: RunFigures,
    *,
    once: bool,
) -> Callable[[threading.Event], None]:
    """Return the work of an archive's thread, which runs until it is done or halted."""
    from kerolox.pipeline.archive.archive import Archive
    from kerolox.pipeline.archive.delta import DeltaArchive
    from kerolox.pipeline.archive.files import Format
    from kerolox.pipeline.archive.log import ParquetArchive
    from kerolox.pipeline.archive.on_spark import OnSpark
    from kerolox.spark.source.options import read_wanted

    wanted = read_wanted(archive_options(pipeline, archive), "batch")
    kind = DeltaArchive if archive.format == "delta" else ParquetArchive

    def work(halted: threading.Event) -> None:
        seen = _Rounds(name, figures)
        run = Archive(
            wanted, kind(archive.path), OnSpark(context),
            format=Format(partitions=tuple(archive.partition_by)),
            cores=context.defaultParallelism, join=archive.compact, on_round=seen.told,
            expire_ms=None if archive.expire is None else round(archive.expire * 1000),
        )  # fmt: skip
        with run:
            if once:
                run.once()
            else:
                run.follow(halted.wait, float(archive.every))
            seen.told(run.told(), 0)

    return work


class _Rounds:
    """Recorder of each round of an archive in the figures of the run."""

    def __init__(self, name: str, figures: RunFigures) -> None:
        self._name = name
        self._figures = figures
        self._rows = 0
        self._rounds = 0
        self._began_s = time.monotonic()

    def told(self, summary: Summary, left: int) -> None:
        rows = summary.rows - self._rows
        if rows <= 0 and summary.rounds == self._rounds:
            return
        now_s = time.monotonic()
        self._figures.add_written(self._name, rows)
        self._figures.add_batch(self._name, rows, now_s - self._began_s, summary.rounds - 1, left)
        self._rows, self._rounds, self._began_s = summary.rows, summary.rounds, now_s
