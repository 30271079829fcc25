"""``kerolox pipeline compact`` and ``kerolox pipeline expire``"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kerolox.cli.catalog_options import (
    CatalogName,
    CatalogOptions,
    CatalogUri,
    IcebergName,
    Warehouse,
    catalog_place,
)
from kerolox.cli.output import JsonFlag, OutputTable, one_line_errors, output
from kerolox.cli.storage_options import StorageFile, StorageOptions, read_storage_options, storage_at
from kerolox.errors import OptionError
from kerolox.sizes import size_text
from kerolox.times import parse_span

if TYPE_CHECKING:
    from kerolox.pipeline.archive.upkeep import Place

COMPACT_EXAMPLE = "Example: kerolox pipeline compact s3://lake/archive --older-than 2h"
EXPIRE_EXAMPLE = "Example: kerolox pipeline expire s3://lake/archive --keep 30d"

Address = Annotated[
    str | None,
    typer.Argument(
        help="Archive or table of a pipeline, Parquet or Delta: a folder or s3://BUCKET/FOLDER.",
        show_default=False,
    ),
]


@one_line_errors
def compact(
    address: Address = None,
    older_than: Annotated[str, typer.Option(help="Only hours that ended longer ago than this.")] = "5m",
    rows_max: Annotated[
        int, typer.Option("--max-rows-per-file", help="Maximum number of messages per file.", min=1)
    ] = 1_000_000,
    iceberg: IcebergName = None,
    catalog: CatalogName = None,
    catalog_uri: CatalogUri = None,
    catalog_options: CatalogOptions = None,
    warehouse: Warehouse = None,
    storage_options: StorageOptions = None,
    storage_file: StorageFile = None,
    json: JsonFlag = False,
) -> None:
    """Compact the small files of an archive, or of a table that a pipeline writes, now.

    The archive command compacts automatically when an hour has many files. The hour is that of storage in an
    archive, and that of writing in a table of a pipeline, which may be running. Needs no Spark and no broker.
    Readers never see a message twice. If the run is killed at any point, the next run continues.
    """
    over_s = parse_span(older_than, "--older-than")
    place, text = _place(
        address, iceberg, catalog, catalog_uri, catalog_options, warehouse, storage_options, storage_file
    )
    from kerolox.pipeline.archive.upkeep import compact as work

    joined = work(place, older_than_ms=round(over_s * 1000), rows_max=rows_max)
    sentence = f"{joined:,} small files compacted: {text}" if joined else f"No files to compact in {text}."
    output(json).report(sentence, {"address": text, "filesJoined": joined})


@one_line_errors
def expire(
    keep: Annotated[str, typer.Option(help="Delete hours that ended longer ago than this: 30d, 12h.")],
    address: Address = None,
    iceberg: IcebergName = None,
    catalog: CatalogName = None,
    catalog_uri: CatalogUri = None,
    catalog_options: CatalogOptions = None,
    warehouse: Warehouse = None,
    storage_options: StorageOptions = None,
    storage_file: StorageFile = None,
    json: JsonFlag = False,
) -> None:
    """Delete old hours and unreferenced files from an archive, or from a table that a pipeline writes.

    A commit removes the hours, then their files are deleted; if the run is killed at any point, the next run
    continues. The progress of each queue, or flow, is kept, so nothing is written again. Needs no Spark and
    no broker. Files of an Iceberg table are deleted when their snapshots expire: after a day, or after the
    table's history.expire.max-snapshot-age-ms.
    """
    from kerolox.pipeline.flows.definition import ArchiveFlow

    keep_s = parse_span(keep, "--keep")
    if keep_s < ArchiveFlow.EXPIRE_S_MIN:
        raise OptionError("--keep", keep, "1h or more")
    place, text = _place(
        address, iceberg, catalog, catalog_uri, catalog_options, warehouse, storage_options, storage_file
    )
    from kerolox.pipeline.archive.upkeep import expire as work

    done = work(place, keep_ms=round(keep_s * 1000))
    shown = output(json)
    document = {
        "address": text,
        "files": done.files,
        "messages": done.rows,
        "bytes": done.bytes,
        "orphansRemoved": done.orphans,
    }
    row = (f"{done.rows:,}", done.files, size_text(done.bytes), done.orphans)
    shown.show(document, OutputTable(("messages removed", "files", "size", "orphans"), [row]))


def _place(
    address: str | None,
    iceberg: str | None,
    catalog: str | None,
    catalog_uri: str | None,
    catalog_options: list[str] | None,
    warehouse: str | None,
    storage_options: list[str] | None,
    storage_file: Path | None,
) -> tuple[Place, str]:
    """Return the archive chosen by the options, and its name in messages."""
    if (address is None) == (iceberg is None):
        raise OptionError("ADDRESS", address or "", "an archive's address, or --iceberg NAMESPACE.TABLE")
    if iceberg is None:
        if catalog or catalog_uri or catalog_options or warehouse:
            raise OptionError(
                "ADDRESS", address, "--iceberg NAMESPACE.TABLE if a catalog or warehouse is given"
            )
        storage = storage_at("ADDRESS", address or "", storage_options, storage_file)
        return storage, storage.address
    place = catalog_place(catalog, catalog_uri, catalog_options, warehouse)
    from kerolox.pipeline.archive.iceberg import IcebergArchive

    options = read_storage_options(storage_options, storage_file)
    found = IcebergArchive(iceberg, place, storage_options=options)
    return found, found.text
