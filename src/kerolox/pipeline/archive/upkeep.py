"""Maintenance of an archive outside of runs: joining small files, removing old ones."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TypeVar

from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.errors import OptionError
from kerolox.pipeline.archive.delta import DeltaArchive
from kerolox.pipeline.archive.files import Format, TaskResult, WriteTask
from kerolox.pipeline.archive.iceberg import IcebergArchive, OthersCameFirst
from kerolox.pipeline.archive.joining import JoinRule, JoinTask, carry_out
from kerolox.pipeline.archive.log import HEAD, ParquetArchive, read_head
from kerolox.pipeline.archive.staging import Expired
from kerolox.pipeline.lake.storage import Storage

log = logging.getLogger(__name__)

FILES_MIN = 2  # small files per hour; an explicit command joins nearly every hour
TRIES = 5  # attempts while other runs write to the same table

Done = TypeVar("Done")

Place = Storage | IcebergArchive  # address of an archive, or an Iceberg table


def compact(
    place: Place, *, older_than_ms: int, format: Format | None = None, clock: Clock = SYSTEM_CLOCK
) -> int:
    """Join small files of hours that ended at least so long ago. Returns how many there were."""

    def join() -> int:
        with _opened(place, format or Format(), clock) as (archive, found):
            return archive.join(on_threads, found, JoinRule(older_than_ms, FILES_MIN))

    return _beside_others(join)


def expire(place: Place, *, keep_ms: int, clock: Clock = SYSTEM_CLOCK) -> Expired:
    """Remove the hours that ended longer ago. The offsets of the queues stay."""

    def remove() -> Expired:
        with _opened(place, Format(), clock) as (archive, _):
            return archive.expire(clock.wall_ms() - keep_ms)

    return _beside_others(remove)


def _beside_others(work: Callable[[], Done]) -> Done:
    """Run the work, and repeat it if another run has changed the same files of a table meanwhile."""
    for _ in range(TRIES - 1):
        try:
            return work()
        except OthersCameFirst as error:
            log.info("upkeep_again error=%r", str(error))
    return work()


def on_threads(works: Sequence[WriteTask | JoinTask]) -> list[TaskResult]:
    """Run the tasks on threads of this process: Arrow reads and writes without Python's lock."""
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        return list(pool.map(carry_out, works))


def find_archive(storage: Storage, clock: Clock = SYSTEM_CLOCK) -> tuple[ParquetArchive | DeltaArchive, str]:
    """Return the archive at an address and the form of its properties. Raise OptionError if there is none."""
    if storage.files("_delta_log"):
        archive = DeltaArchive(storage, clock=clock)
        return archive, archive.properties()
    if storage.exists(HEAD):
        return ParquetArchive(storage, clock=clock), read_head(storage).properties
    raise OptionError("ADDRESS", storage.address, "an archive or a Delta table; found none")


@contextmanager
def _opened(
    place: Place, format: Format, clock: Clock
) -> Iterator[tuple[ParquetArchive | DeltaArchive | IcebergArchive, Format]]:
    archive: ParquetArchive | DeltaArchive | IcebergArchive
    if isinstance(place, IcebergArchive):
        archive, properties = place, place.properties()
    else:
        archive, properties = find_archive(place, clock)
    found = archive.open(replace(format, properties=properties))
    try:
        yield archive, found
    finally:
        archive.close()
