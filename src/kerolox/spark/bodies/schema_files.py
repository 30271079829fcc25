"""Reader of a declared schema, from a file on the driver or from its text."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Final

from kerolox.spark.bodies.format import SchemaError, SchemaText
from kerolox.spark.bodies.protobuf_files import compiled

SUFFIXES: Final = (
    ".avsc",
    ".json",
    ".jsonschema",
    ".ddl",
    ".sql",
    ".proto",
    ".desc",
    ".pb",
    ".binpb",
    ".txt",
)
_SETS: Final = (".desc", ".pb", ".binpb")  # compiled descriptor sets


def read_schema(form: str, given: str) -> tuple[SchemaText, bytes]:
    """Return the text, and for Protobuf the compiled descriptors. Raises SchemaError."""
    is_file = _is_file(given)
    if form == "protobuf":
        return _protobuf(given, is_file=is_file)
    text = _read(given).decode("utf-8") if is_file else given
    _refuse_table(text)
    return SchemaText(text.strip()), b""


def _is_file(given: str) -> bool:
    """Return True for a path: schemas contain braces, blanks or line ends."""
    if "://" in given.split(" ")[0]:
        return True
    if "\n" in given or "{" in given or len(given) > 4096:
        return False
    return given.lower().endswith(SUFFIXES) or os.path.isfile(given)


def _read(path: str) -> bytes:
    try:
        if "://" in path:
            import fsspec

            with fsspec.open(path, "rb") as file:
                found: bytes = file.read()
                return found
        return Path(path).read_bytes()
    except (OSError, ValueError, ImportError) as error:
        raise SchemaError(
            f"bodySchema {path} cannot be read: {error}. The file must be on the driver"
        ) from None


def _protobuf(given: str, *, is_file: bool) -> tuple[SchemaText, bytes]:
    if not is_file:
        return SchemaText(given), compiled("schema.proto", {"schema.proto": given})
    if given.lower().endswith(_SETS):
        return SchemaText(""), _read(given)
    text = _read(given).decode("utf-8")
    name = given.rsplit("/", 1)[-1]
    folders = () if "://" in given else (str(Path(given).absolute().parent),)
    return SchemaText(text), compiled(name, {name: text}, folders)


def _refuse_table(text: str) -> None:
    """Reject a table of schemas by topic: a source has one schema, because its table has one."""
    if not text.lstrip().startswith("{"):
        return
    try:
        found = json.loads(text)
    except ValueError:
        return  # reported by the reader of the schema
    if (
        isinstance(found, dict)
        and found
        and all(isinstance(value, str) for value in found.values())
        and "type" not in found
    ):
        raise SchemaError(
            f"bodySchema has schemas for {', '.join(found)}, but a source has one. Read topics with "
            "different schemas by "
            "one source each, and union their common columns"
        )
