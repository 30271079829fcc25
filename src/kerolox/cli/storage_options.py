"""Addresses of archives and tables, and the options of the stores behind them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kerolox.errors import OptionError

if TYPE_CHECKING:
    from kerolox.pipeline.lake.storage import Storage

StorageOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--storage-option",
        help="Of the store behind an address, as fsspec's driver names it: endpoint_url=URL, anon=true. "
        "Secrets are better in the environment, a role or --storage-options.",
        metavar="NAME=VALUE",
    ),
]
StorageFile = Annotated[
    Path | None,
    typer.Option("--storage-options", help="A file with such options, JSON or YAML.", metavar="FILE"),
]


def storage_at(option: str, address: str, given: list[str] | None, file: Path | None) -> Storage:
    """The store behind an address, which is not opened yet."""
    try:
        from kerolox.pipeline.lake.storage import open_storage
    except ModuleNotFoundError as error:
        from kerolox.spark.session import SparkMissing

        raise SparkMissing(str(error.name)) from error
    try:
        found = open_storage(address, read_storage_options(given, file))
        found.check_driver()
    except OptionError as error:
        raise OptionError(option, error.value, error.expected) from None
    return found


def read_storage_options(given: list[str] | None, file: Path | None) -> dict[str, Any]:
    """The options of a file, and those of the command line, which win. A name with dots is a name inside a
    name: ``client_kwargs.region_name=eu-west-1``."""
    options = _of_file(file) if file is not None else {}
    for name, text in pairs("--storage-option", given, hide=True).items():
        *outer, last = name.split(".")
        inside = options
        for word in outer:
            inside = inside.setdefault(word, {})
            if not isinstance(inside, dict):
                raise OptionError("--storage-option", name, f"a name: {word} has a value of its own")
        inside[last] = {"true": True, "false": False}.get(text.lower(), text)
    return options


def _of_file(file: Path) -> dict[str, Any]:
    import yaml

    try:
        found = yaml.safe_load(file.read_text())
    except OSError as error:
        raise OptionError("--storage-options", str(file), f"a file ({error.strerror})") from None
    except yaml.YAMLError:  # its text may tell a secret
        found = None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise OptionError("--storage-options", str(file), "a file with names and values, as JSON or YAML")
    return found


def pairs(option: str, given: list[str] | None, *, hide: bool = False) -> dict[str, str]:
    """``NAME=VALUE`` of an option that may be repeated."""
    found = {}
    for word in given or ():
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise OptionError(option, "***" if hide else word, "NAME=VALUE")
        found[name.strip()] = value
    return found
