"""``kerolox pipeline compact`` and ``kerolox pipeline expire``"""

from __future__ import annotations

from typing import Annotated

import typer

from kerolox.cli.output import JsonFlag, OutputTable, one_line_errors, output
from kerolox.cli.pipeline_archive import EXPIRE_S_MIN, size_text
from kerolox.cli.storage_options import StorageFile, StorageOptions, storage_at
from kerolox.cli.times import parse_span
from kerolox.errors import OptionError

COMPACT_EXAMPLE = "Example: kerolox pipeline compact s3://lake/archive --older-than 2h"
EXPIRE_EXAMPLE = "Example: kerolox pipeline expire s3://lake/archive --keep 30d"

Address = Annotated[
    str, typer.Argument(help="An archive or a Delta table of one: a folder, or s3://BUCKET/FOLDER.")
]


@one_line_errors
def compact(
    address: Address,
    older_than: Annotated[str, typer.Option(help="Only hours that have been over for so long.")] = "5m",
    rows_max: Annotated[
        int, typer.Option("--max-rows-per-file", help="A file is full with so many messages.", min=1)
    ] = 1_000_000,
    storage_options: StorageOptions = None,
    storage_file: StorageFile = None,
    json: JsonFlag = False,
) -> None:
    """Join the small files of an archive now. Archiving does it by itself, where an hour has many.

    Needs no Spark and no broker. No message is there twice at any time. Killed at any point, the next run
    goes on.
    """
    over_s = parse_span(older_than, "--older-than")
    storage = storage_at("ADDRESS", address, storage_options, storage_file)
    from kerolox.pipeline.archive.files import Format
    from kerolox.pipeline.archive.upkeep import compact as work

    joined = work(storage, older_than_ms=round(over_s * 1000), format=Format(rows_max=rows_max))
    shown = output(json)
    if json:
        shown.show({"address": storage.address, "filesJoined": joined})
    shown.note(f"{joined:,} small files joined: {storage}" if joined else f"Nothing to join in {storage}.")


@one_line_errors
def expire(
    address: Address,
    keep: Annotated[str, typer.Option(help="Hours that were over longer ago go: 30d, 12h.")],
    storage_options: StorageOptions = None,
    storage_file: StorageFile = None,
    json: JsonFlag = False,
) -> None:
    """Remove old hours from an archive, and files that nothing names.

    A commit removes them first, then they are deleted; killed at any point, the next run goes on. How far
    each queue is archived stays: nothing is archived again. Needs no Spark and no broker.
    """
    keep_s = parse_span(keep, "--keep")
    if keep_s < EXPIRE_S_MIN:
        raise OptionError("--keep", keep, "1h or more")
    storage = storage_at("ADDRESS", address, storage_options, storage_file)
    from kerolox.pipeline.archive.upkeep import expire as work

    done = work(storage, keep_ms=round(keep_s * 1000))
    shown = output(json)
    document = {
        "address": storage.address,
        "files": done.files,
        "messages": done.rows,
        "bytes": done.bytes,
        "orphansRemoved": done.orphans,
    }
    row = (f"{done.rows:,}", done.files, size_text(done.bytes), done.orphans)
    shown.show(document, OutputTable(("messages removed", "files", "size", "orphans"), [row]))
