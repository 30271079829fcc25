"""Command options for Iceberg tables and their catalogs."""

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
        help="Name of an Iceberg table. Needs: pip install 'kerolox\\[spark,iceberg]'.",
        metavar="NAMESPACE.TABLE",
    ),
]
CatalogName = Annotated[
    str | None,
    typer.Option("--catalog", help="Iceberg catalog, by its name in ~/.pyiceberg.yaml.", metavar="NAME"),
]
CatalogUri = Annotated[
    str | None,
    typer.Option(
        "--catalog-uri",
        help="Iceberg catalog, by address: sqlite:///FILE, postgresql://HOST/DB, or http(s)://HOST for REST.",
        metavar="URI",
    ),
]
CatalogOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--catalog-option",
        help="Catalog property of pyiceberg: token=T, s3.endpoint=URL. Repeatable. Keep secrets in "
        "~/.pyiceberg.yaml or in PYICEBERG_CATALOG__KEROLOX__... variables.",
        metavar="NAME=VALUE",
    ),
]
Warehouse = Annotated[
    str | None,
    typer.Option(help="Folder or s3://BUCKET/FOLDER in which the catalog creates tables.", metavar="ADDRESS"),
]


def catalog_place(
    name: str | None, uri: str | None, options: list[str] | None, warehouse: str | None
) -> CatalogPlace:
    """Return the catalog chosen by the options, not opened yet."""
    from kerolox.spark.session import spark_packages

    with spark_packages():
        from kerolox.pipeline.lake.iceberg_catalog import CatalogPlace
    if name and uri:
        raise OptionError("--catalog", name, "either --catalog or --catalog-uri")
    given = pairs("--catalog-option", options, hide=True)
    return CatalogPlace(uri or "", name or "", warehouse or "", given)


def check_one(to: str | None, iceberg: str | None, *more: object) -> None:
    """Require exactly one of ``--to`` and ``--iceberg``; accept catalog options only with ``--iceberg``."""
    if to and iceberg:
        raise OptionError(
            "--iceberg", iceberg, "either --to or --iceberg: the catalog decides where a table is stored"
        )
    if not to and not iceberg:
        raise OptionError("--to", "", "an address, or --iceberg NAMESPACE.TABLE")
    if to and any(more):
        raise OptionError("--to", to, "--iceberg NAMESPACE.TABLE when a catalog or a warehouse is given")
