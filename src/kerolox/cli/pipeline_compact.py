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
from kerolox.cli.pipeline_archive import EXPIRE_S_MIN, size_text
from kerolox.cli.storage_options import StorageFile, StorageOptions, read_storage_options, storage_at
from kerolox.cli.times import parse_span
from kerolox.errors import OptionError

if TYPE_CHECKING:
    from kerolox.pipeline.archive.upkeep import Place

COMPACT_EXAMPLE = "Example: kerolox pipeline compact s3://lake/archive --older-than 2h"
EXPIRE_EXAMPLE = "Example: kerolox pipeline expire s3://lake/archive --keep 30d"

Address = Annotated[
    str | None,
    typer.Argument(
        help="An archive or a Delta table of one: a folder, or s3://BUCKET/FOLDER.", show_default=False
    ),
]


@one_line_errors
def compact(
    address: Address = None,
    older_than: Annotated[str, typer.Option(help="Only hours that have been over for so long.")] = "5m",
    rows_max: Annotated[
        int, typer.Option("--max-rows-per-file", help="A file is full with so many messages.", min=1)
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
    """Join the small files of an archive now. Archiving does it by itself, where an hour has many.

    Needs no Spark and no broker. No message is there twice at any time. Killed at any point, the next run
    goes on.
    """
    over_s = parse_span(older_than, "--older-than")
    place, text = _place(
        address, iceberg, catalog, catalog_uri, catalog_options, warehouse, storage_options, storage_file
    )
    from kerolox.pipeline.archive.files import Format
    from kerolox.pipeline.archive.upkeep import compact as work

    joined = work(place, older_than_ms=round(over_s * 1000), format=Format(rows_max=rows_max))
    shown = output(json)
    if json:
        shown.show({"address": text, "filesJoined": joined})
    shown.note(f"{joined:,} small files joined: {text}" if joined else f"Nothing to join in {text}.")


@one_line_errors
def expire(
    keep: Annotated[str, typer.Option(help="Hours that were over longer ago go: 30d, 12h.")],
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
    """Remove old hours from an archive, and files that nothing names.

    A commit removes them first, then they are deleted; killed at any point, the next run goes on. How far
    each queue is archived stays: nothing is archived again. Needs no Spark and no broker. Of an Iceberg table
    files go with the snapshots that name them: after a day, or its history.expire.max-snapshot-age-ms.
    """
    keep_s = parse_span(keep, "--keep")
    if keep_s < EXPIRE_S_MIN:
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
    """The archive that is meant, and what people call it."""
    if (address is None) == (iceberg is None):
        raise OptionError("ADDRESS", address or "", "an archive's address, or --iceberg NAMESPACE.TABLE")
    if iceberg is None:
        if catalog or catalog_uri or catalog_options or warehouse:
            raise OptionError("ADDRESS", address, "--iceberg NAMESPACE.TABLE with a catalog and a warehouse")
        storage = storage_at("ADDRESS", address or "", storage_options, storage_file)
        return storage, storage.address
    place = catalog_place(catalog, catalog_uri, catalog_options, warehouse)
    from kerolox.pipeline.archive.iceberg import IcebergArchive

    options = read_storage_options(storage_options, storage_file)
    found = IcebergArchive(iceberg, place, storage_options=options)
    return found, found.text
