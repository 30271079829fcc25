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
        help="Option of fsspec's driver for the address: endpoint_url=URL, anon=true. Repeatable. Keep "
        "secrets in the environment, in a role or in the file of --storage-options.",
        metavar="NAME=VALUE",
    ),
]
StorageFile = Annotated[
    Path | None,
    typer.Option("--storage-options", help="JSON or YAML file with storage options.", metavar="FILE"),
]


def storage_at(option: str, address: str, given: list[str] | None, file: Path | None) -> Storage:
    """Return the storage at an address, not opened yet. Raises OptionError with ``option`` as its name."""
    from kerolox.spark.session import spark_packages

    with spark_packages():
        from kerolox.pipeline.lake.storage import open_storage
    try:
        found = open_storage(address, read_storage_options(given, file))
        found.check_driver()
    except OptionError as error:
        raise OptionError(option, error.value, error.expected) from None
    return found


def read_storage_options(given: list[str] | None, file: Path | None) -> dict[str, Any]:
    """Return the options of the file, overridden by those of the command line.

    A name with dots is a nested name: ``client_kwargs.region_name=eu-west-1``.
    """
    options = _of_file(file) if file is not None else {}
    for name, text in pairs("--storage-option", given, hide=True).items():
        *outer, last = name.split(".")
        inside = options
        for word in outer:
            inside = inside.setdefault(word, {})
            if not isinstance(inside, dict):
                raise OptionError(
                    "--storage-option", name, f"a nested name; {word} is set to a value already"
                )
        inside[last] = {"true": True, "false": False}.get(text.lower(), text)
    return options


def _of_file(file: Path) -> dict[str, Any]:
    import yaml

    try:
        found = yaml.safe_load(file.read_text())
    except OSError as error:
        raise OptionError("--storage-options", str(file), f"a readable file ({error.strerror})") from None
    except yaml.YAMLError:  # the text of the error may contain a secret
        found = None
    if not isinstance(found, dict) or not all(isinstance(name, str) for name in found):
        raise OptionError("--storage-options", str(file), "a file with names and values, as JSON or YAML")
    return found


def pairs(option: str, given: list[str] | None, *, hide: bool = False) -> dict[str, str]:
    """Parse the ``NAME=VALUE`` texts of a repeatable option; ``hide`` keeps values out of errors."""
    found = {}
    for word in given or ():
        name, equals, value = word.partition("=")
        if not name or not equals:
            raise OptionError(option, "***" if hide else word, "NAME=VALUE")
        found[name.strip()] = value
    return found
