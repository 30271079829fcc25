"""Maintenance of tables outside of runs: joining small files, removing old ones."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.errors import OptionError
from kerolox.pipeline.archive.delta import DeltaArchive
from kerolox.pipeline.archive.files import Format
from kerolox.pipeline.archive.folders import PARTITIONS
from kerolox.pipeline.archive.iceberg import IcebergArchive
from kerolox.pipeline.archive.log import ParquetArchive
from kerolox.pipeline.lake.shared_delta import SharedDelta
from kerolox.pipeline.lake.shared_iceberg import SharedIceberg
from kerolox.pipeline.lake.shared_table import SharedTable
from kerolox.pipeline.lake.staging import HEAD
from kerolox.pipeline.lake.storage import Storage
from kerolox.pipeline.lake.upkeep import (
    BYTES_MAX,
    ROWS_MAX,
    Expired,
    JoinRule,
    OthersCameFirst,
    join,
    on_threads,
    remove_old,
)

log = logging.getLogger(__name__)

FILES_MIN = 2  # small files per hour; an explicit command joins nearly every hour
TRIES = 5  # attempts while other runs write to the same table

Done = TypeVar("Done")

Archived = ParquetArchive | DeltaArchive | IcebergArchive
Shared = SharedTable | SharedDelta | SharedIceberg  # written by flows
Place = Storage | IcebergArchive  # address of a table, or an Iceberg table


def compact(
    place: Place, *, older_than_ms: int, rows_max: int = ROWS_MAX, clock: Clock = SYSTEM_CLOCK
) -> int:
    """Join small files of hours that ended at least so long ago. Returns how many there were."""
    rule = JoinRule(older_than_ms, FILES_MIN, rows_max, BYTES_MAX)

    def work() -> int:
        with _opened(place, clock) as table:
            return join(table, on_threads, clock.wall_ms(), rule)

    return _beside_others(work)


def expire(place: Place, *, keep_ms: int, clock: Clock = SYSTEM_CLOCK) -> Expired:
    """Remove the hours that ended longer ago. The offsets of the queues, or the batches of flows, stay."""

    def work() -> Expired:
        before_ms = clock.wall_ms() - keep_ms
        with _opened(place, clock) as table:
            if isinstance(table, Archived):
                return table.expire(before_ms)
            old = remove_old(table, before_ms)
            return Expired.of(old, table.remove_orphans(keep_ms))

    return _beside_others(work)


def _beside_others(work: Callable[[], Done]) -> Done:
    """Run the work, and repeat it if another run has changed the same files of a table meanwhile."""
    for _ in range(TRIES - 1):
        try:
            return work()
        except OthersCameFirst as error:
            log.info("upkeep_again error=%r", str(error))
    return work()


def _find(storage: Storage, clock: Clock) -> Archived | Shared:
    """Return the archive or the table of flows at an address."""
    if storage.files("_delta_log"):
        shared = SharedDelta(storage, clock)
        shared.table.load()
        is_archive = shared.table.partitions[:2] == list(PARTITIONS[:2])
        return DeltaArchive(storage, clock=clock) if is_archive else shared
    if storage.exists(HEAD):
        return ParquetArchive(storage, clock=clock)
    parquet = SharedTable(storage, clock)
    if parquet.numbers():
        return parquet
    raise OptionError("ADDRESS", storage.address, "an archive or a table; found none")


@contextmanager
def _opened(place: Place, clock: Clock) -> Iterator[Archived | Shared]:
    found = place.archive_or_shared() if isinstance(place, IcebergArchive) else _find(place, clock)
    if not isinstance(found, Archived):
        yield found
        return
    found.open(replace(Format(), properties=found.properties()))
    try:
        yield found
    finally:
        found.close()
