"""Protobuf schemas: compiling ``.proto`` files, opening descriptor sets, finding messages."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from collections.abc import Mapping
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from kerolox.spark.bodies.format import ExtraMissing, SchemaError

COMPILE_S: Final = 60.0
_NAMES: Final = "protobuf bodies"


def compiled(main: str, files: Mapping[str, str], folders: tuple[str, ...] = ()) -> bytes:
    """Compile a ``.proto`` file with its imports to a descriptor set.

    ``files``: texts by import name, including ``main``. ``folders``: further folders for imports.
    """
    if find_spec("grpc_tools") is None:
        raise ExtraMissing("grpcio-tools", "protobuf schemas in .proto files, and in registries,")
    import grpc_tools

    known = Path(grpc_tools.__file__).parent / "_proto"
    with tempfile.TemporaryDirectory(prefix="kerolox-proto-") as name:
        folder = Path(name)
        for path, text in files.items():
            target = folder / path
            if not target.resolve().is_relative_to(folder.resolve()):
                raise SchemaError(f"a protobuf schema named {path}: names lie below their folder")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text, encoding="utf-8")
        result = folder / "kerolox.descriptors"
        includes = [f"-I{each}" for each in (folder, *folders, known)]
        # In a separate process, because protoc writes errors to the standard error of its process.
        done = subprocess.run(
            [sys.executable, "-m", "grpc_tools.protoc", *includes, "--include_imports",
             f"--descriptor_set_out={result}", main],
            capture_output=True, text=True, timeout=COMPILE_S, check=False,
        )  # fmt: skip
        if done.returncode or not result.exists():
            lines = [line for line in done.stderr.splitlines() if "warning" not in line]
            raise SchemaError(f"{main} is not a valid protobuf schema: {'; '.join(lines[:3])}")
        return result.read_bytes()


@lru_cache(maxsize=64)
def opened(descriptors: bytes) -> tuple[Any, tuple[Any, ...]]:
    """Return a pool with the files of a descriptor set, and the files."""
    try:
        from google.protobuf import descriptor_pb2, descriptor_pool
    except ImportError:
        raise ExtraMissing("protobuf", _NAMES) from None
    found = descriptor_pb2.FileDescriptorSet()
    pool = descriptor_pool.DescriptorPool()
    try:
        found.ParseFromString(descriptors)
        for file in found.file:
            pool.Add(file) if hasattr(pool, "Add") else pool.AddSerializedFile(file.SerializeToString())
    except Exception as error:
        raise SchemaError(f"the protobuf descriptor set cannot be read: {error}") from None
    return pool, tuple(found.file)


def message_named(descriptors: bytes, name: str) -> Any:
    """Return the descriptor of a message by its full name, or by its last part if that is unique.

    Without a name, it is the only message of the last file.
    """
    pool, files = opened(descriptors)
    names = [full for file in files if not file.name.startswith("google/protobuf/") for full in _all(file)]
    if not files:
        raise SchemaError("the protobuf descriptor set is empty")
    if name:
        found = [full for full in names if full == name] or [
            full for full in names if full.rpartition(".")[2] == name
        ]
    else:
        found = list(_all(files[-1], nested=False))
    if len(found) != 1:
        what = (
            f"message {name!r} is {'not' if not found else 'more than once'} in it"
            if name
            else "it has several messages"
        )
        raise SchemaError(f"protobuf schema: {what}: {', '.join(names)}. Set bodyMessage to one of them")
    return pool.FindMessageTypeByName(found[0])


def message_at(descriptors: bytes, indexes: tuple[int, ...]) -> str:
    """Return the full name of the message at an index path in the last file."""
    _, files = opened(descriptors)
    file = files[-1]
    messages, name = file.message_type, file.package
    for index in indexes or (0,):
        if not 0 <= index < len(messages):
            raise SchemaError(f"the schema in the registry has no message number {list(indexes)}")
        name = f"{name}.{messages[index].name}" if name else messages[index].name
        messages = messages[index].nested_type
    return str(name)


def indexes_of(descriptors: bytes, name: str) -> tuple[int, ...]:
    """Return the index path of a message in the last file; the inverse of message_at."""
    _, files = opened(descriptors)

    def look(messages: Any, before: str) -> tuple[int, ...] | None:
        for index, each in enumerate(messages):
            full = f"{before}.{each.name}" if before else each.name
            if full == name:
                return (index,)
            inner = look(each.nested_type, full)
            if inner is not None:
                return (index, *inner)
        return None

    found = look(files[-1].message_type, files[-1].package)
    if found is None:
        raise SchemaError(f"message {name} is not in the registered file, but in one it imports")
    return found


def _all(file: Any, *, nested: bool = True) -> list[str]:
    names: list[str] = []

    def add(messages: Any, before: str) -> None:
        for each in messages:
            if each.options.map_entry:
                continue
            full = f"{before}.{each.name}" if before else each.name
            names.append(full)
            if nested:
                add(each.nested_type, full)

    add(file.message_type, file.package)
    return names
