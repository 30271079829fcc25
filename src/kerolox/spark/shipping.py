"""Shipment of this package and its small dependencies to the executors of a cluster.

A zip is sent as one of ``spark.archives``; Spark unpacks it on each executor, whose PYTHONPATH has the
folder, so that kerolox's classes can be unpickled before its code runs. numpy and pyarrow (150 MB) and the
drivers of object stores (s3fs with botocore) are not sent: executors must have them installed, and an error
reports it if they do not.

The small packages are compiled: executors need the driver's version of Python (which PySpark requires
anyway) and platform. For other platforms, install kerolox there and do not ship.
"""

from __future__ import annotations

import os
import sysconfig
import tempfile
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Final

from kerolox.errors import KeroloxError

if TYPE_CHECKING:
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

FOLDER: Final = "kerolox_parts"
PACKAGES: Final = (
    "kerolox", "pyspark_rocketmq", "pyspark_rocketmq_store", "msgspec", "lz4", "zstandard", "fsspec",
)  # fmt: skip
NEEDED: Final = ("numpy", "pyarrow", "kerolox.spark.source.reading")
_LEFT_OUT: Final = {"__pycache__", "tests"}


class ExecutorsLack(KeroloxError):
    """Executors cannot run kerolox's tasks."""


class Shipment:
    """Zip of packages for executors. It exists until it is closed, for executors that start later."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="kerolox-shipment-")
        self.path = Path(self._folder.name, f"{FOLDER}.zip")
        # Spark plans here, but with the PYTHONPATH of executors.
        self.unpacked = Path(self._folder.name, FOLDER)
        with zipfile.ZipFile(self.path, "x", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
            for package in PACKAGES:
                for file, name in _files_of(package):
                    archive.write(file, name)
        with zipfile.ZipFile(self.path) as archive:
            archive.extractall(self.unpacked)

    def settings(self, given: Mapping[str, str]) -> dict[str, str]:
        """Return Spark's settings for the shipment, merged with the given ones."""
        archives, python_path = "spark.archives", "spark.executorEnv.PYTHONPATH"
        return {
            archives: ",".join(filter(None, (given.get(archives), f"{self.path}#{FOLDER}"))),
            python_path: os.pathsep.join(filter(None, (given.get(python_path), FOLDER))),
        }

    def close(self) -> None:
        self._folder.cleanup()


def _files_of(package: str) -> Iterator[tuple[Path, str]]:
    found = find_spec(package)
    if found is None or found.origin is None:
        return
    origin = Path(found.origin)
    if found.submodule_search_locations is None:
        yield origin, origin.name
        return
    for path in sorted(origin.parent.rglob("*")):
        name = path.relative_to(origin.parent)
        if _LEFT_OUT & set(name.parts) or path.name.startswith("_cffi"):  # the latter is for PyPy
            continue
        if path.is_file() and path.suffix in (".py", ".so", ".pyd"):
            yield path, f"{origin.parent.name}/{name.as_posix()}"


def check_executors(spark: SparkSession) -> None:
    """Check that executors can import the needed modules. Raises ExecutorsLack with the next step."""
    context = spark.sparkContext
    found = _lacking(context, NEEDED)
    if not found:
        return
    where, what = _described(found)
    version = sysconfig.get_python_version()
    raise ExecutorsLack(
        f"executors at {where} cannot import {what}. Install it for that Python: pip install numpy pyarrow; "
        "or set PYSPARK_PYTHON to one that has it; or send one along: spark.archives=env.tar.gz#env with "
        f"PYSPARK_PYTHON=./env/bin/python (Python {version}, as here). If it is kerolox, msgspec, lz4, "
        f"zstandard or fsspec, they are not of the driver's kind ({sysconfig.get_platform()}): install "
        "kerolox there, and set KEROLOX_SHIP=0"
    )


def check_driver(context: SparkContext, address: str, module: str, extra: str) -> None:
    """Check that executors can import the driver of an address, before tasks use it."""
    if found := _lacking(context, (module,)):
        where, what = _described(found)
        raise ExecutorsLack(
            f"tasks read and write {address}, and executors at {where} cannot import {what}. Install it for "
            f"that Python: pip install {module} (pip install 'kerolox[{extra}]' brings it); or set "
            "PYSPARK_PYTHON to one that has it; or send one along: spark.archives=env.tar.gz#env with "
            "PYSPARK_PYTHON=./env/bin/python. No task has started"
        )


def _described(found: Sequence[tuple[str, str, str]]) -> tuple[str, str]:
    """Return the hosts that lack modules, and the reasons, as texts."""
    where = ", ".join(sorted({f"{host} ({python})" for host, python, _ in found}))
    return where, "; ".join(sorted({reason for _, _, reason in found}))


def _lacking(context: SparkContext, needed: Sequence[str]) -> list[tuple[str, str, str]]:
    """Return host, Python and reason for each module that an executor cannot import."""
    from py4j.protocol import Py4JError

    def look(_: int) -> list[tuple[str, str, str]]:  # pickled by value, because kerolox itself may be missing
        import importlib
        import platform
        import sys

        lacking = []
        for name in needed:
            try:
                importlib.import_module(name)
            except Exception as error:
                lacking.append((platform.node(), sys.executable, f"{name} ({error})"))
        return lacking

    count = max(2, context.defaultParallelism)
    try:
        found: list[tuple[str, str, str]] = context.parallelize(range(count), count).flatMap(look).collect()
        return found
    except Py4JError as error:
        python = os.environ.get("PYSPARK_PYTHON", "python3")
        raise ExecutorsLack(
            f"executors of {context.master} could not run Python tasks: {cause_of(error)}. They start "
            f"{python}: set PYSPARK_PYTHON to a Python that is at this path on every one of them"
        ) from error


def is_wanted() -> bool:
    return os.environ.get("KEROLOX_SHIP", "1") not in ("0", "no", "false")


def cause_of(error: BaseException) -> str:
    """Return the line of a Spark error that names the cause."""
    lines = [line.strip() for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    told = ("Cannot run program", "Error: ", "Exception: ")
    telling = [line for line in lines if any(word in line for word in told)]
    return (telling[-1] if telling else lines[0])[:300]
