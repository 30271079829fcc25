"""Archives in a pipeline: rounds of :mod:`kerolox.pipeline.archive`, in a thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kerolox.pipeline.flows.definition import ArchiveFlow, Pipeline
from kerolox.pipeline.flows.figures import RunFigures

if TYPE_CHECKING:
    from pyspark import SparkContext

    from kerolox.pipeline.archive.archive import Archive
    from kerolox.pipeline.archive.destination import Destination, Runner
    from kerolox.pipeline.archive.files import Format
    from kerolox.pipeline.archive.summary import Summary
    from kerolox.pipeline.lake.iceberg_catalog import CatalogPlace
    from kerolox.spark.source.options import Wanted


def archive_options(nameserver: str, archive: ArchiveFlow) -> dict[str, str]:
    """Return the options of the format ``rocketmq`` for an archive."""
    return {
        "nameserver": nameserver,
        "topic": ",".join(archive.topics),
        "group": archive.group,
        **archive.options,
    }


def format_of(archive: ArchiveFlow) -> Format:
    """Return the format of an archive's files. Raises OptionError for an invalid one."""
    from kerolox.pipeline.archive.files import Format

    return Format(
        properties=archive.properties,
        compression=archive.compression,
        rows_max=archive.max_rows_per_file,
        partitions=tuple(archive.partition_by),
    )


def destination_of(archive: ArchiveFlow, catalog: CatalogPlace | None = None) -> Destination:
    """Return the destination of an archive, not opened yet. ``catalog`` overrides that of the archive."""
    if archive.format == "iceberg":
        from kerolox.pipeline.archive.iceberg import IcebergArchive
        from kerolox.pipeline.flows.lake_tables import catalog_place
        from kerolox.pipeline.flows.probing import make_catalog_folder

        place = catalog or catalog_place(archive.catalog, archive.path)
        make_catalog_folder(place.uri)
        return IcebergArchive(archive.table, place, storage_options=archive.storage_options)
    from kerolox.pipeline.archive.delta import DeltaArchive
    from kerolox.pipeline.archive.log import ParquetArchive
    from kerolox.pipeline.lake.storage import open_storage

    storage = open_storage(archive.path, archive.storage_options)
    return DeltaArchive(storage) if archive.format == "delta" else ParquetArchive(storage)


def archive_of(
    archive: ArchiveFlow, wanted: Wanted, run: Runner, catalog: CatalogPlace | None = None, **more: Any
) -> Archive:
    """Return an archive to be run; both the command and pipelines make theirs here."""
    from kerolox.pipeline.archive.archive import Archive

    return Archive(
        wanted, destination_of(archive, catalog), run, format=format_of(archive), join=archive.compact,
        expire_ms=None if archive.expire is None else round(archive.expire * 1000), **more,
    )  # fmt: skip


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
    from kerolox.pipeline.archive.tasks import ArchiveTasks
    from kerolox.pipeline.runner import OnSpark
    from kerolox.spark.source.options import read_wanted

    wanted = read_wanted(archive_options(pipeline.nameserver_of(archive), archive), "batch")

    def work(halted: threading.Event) -> None:
        seen = _Rounds(name, figures)
        runner = OnSpark(context)
        run = archive_of(archive, wanted, ArchiveTasks(runner), cores=runner.cores, on_round=seen.told)
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
