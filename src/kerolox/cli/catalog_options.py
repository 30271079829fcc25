"""Iceberg tables and their catalogs, as commands take them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kerolox.cli.storage_options import pairs
from kerolox.errors import OptionError

if TYPE_CHECKING:
    from kerolox.pipeline.lake.iceberg_catalog import CatalogPlace

IcebergName = Annotated[
    str | None,
    typer.Option(
        "--iceberg",
        help="An Iceberg table. Needs: pip install 'kerolox\\[spark,iceberg]'.",
        metavar="NAMESPACE.TABLE",
    ),
]
CatalogName = Annotated[
    str | None,
    typer.Option("--catalog", help="Its catalog, by the name in ~/.pyiceberg.yaml.", metavar="NAME"),
]
CatalogUri = Annotated[
    str | None,
    typer.Option(
        "--catalog-uri",
        help="Its catalog, by address: sqlite:///FILE, postgresql://HOST/DB, or http(s)://HOST for REST.",
        metavar="URI",
    ),
]
CatalogOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--catalog-option",
        help="Of the catalog, as pyiceberg names it: token=T, s3.endpoint=URL. Secrets are better in "
        "~/.pyiceberg.yaml or PYICEBERG_CATALOG__KEROLOX__....",
        metavar="NAME=VALUE",
    ),
]
Warehouse = Annotated[
    str | None,
    typer.Option(help="Where the catalog makes tables: a folder or s3://BUCKET/FOLDER.", metavar="ADDRESS"),
]


def catalog_place(
    name: str | None, uri: str | None, options: list[str] | None, warehouse: str | None
) -> CatalogPlace:
    """The catalog that is meant; not opened yet."""
    try:
        from kerolox.pipeline.lake.iceberg_catalog import CatalogPlace
    except ModuleNotFoundError as error:
        from kerolox.spark.session import SparkMissing

        raise SparkMissing(str(error.name)) from error
    if name and uri:
        raise OptionError("--catalog", name, "either --catalog or --catalog-uri")
    given = pairs("--catalog-option", options, hide=True)
    return CatalogPlace(uri or "", name or "", warehouse or "", given)


def check_one(to: str | None, iceberg: str | None, *more: object) -> None:
    """Exactly one of ``--to`` and ``--iceberg``; what belongs to a catalog, with a table only."""
    if to and iceberg:
        raise OptionError(
            "--iceberg", iceberg, "either --to or --iceberg: a table's catalog knows where it is"
        )
    if not to and not iceberg:
        raise OptionError("--to", "", "an address, or --iceberg NAMESPACE.TABLE")
    if to and any(more):
        raise OptionError("--to", to, "--iceberg NAMESPACE.TABLE with a catalog and a warehouse")
