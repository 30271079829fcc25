"""Pipelines that are killed: ``kerolox pipeline run`` in a process of its own, and ways to end it.

``python -m tests.pipeline.flows.killing STEP ARGUMENT...`` is ``kerolox ARGUMENT...`` that SIGKILL ends when
it gets to a step.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

from kerolox.pipeline.flows import lake_tables
from kerolox.pipeline.flows.lake_tables import catalog_place
from kerolox.pipeline.lake.iceberg_table import IcebergTable

WRITERS = {
    "parquet": lake_tables.ParquetWriter,
    "delta": lake_tables.DeltaWriter,
    "iceberg": lake_tables.IcebergWriter,
}


def started(step: str, *arguments: str) -> subprocess.Popen[str]:
    """The command, with nobody between it and signals."""
    command = [sys.executable, "-m", "tests.pipeline.flows.killing", step, *arguments]
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=Path(__file__).parents[3]
    )


def ended(run: subprocess.Popen[str], timeout_s: float = 500) -> tuple[int, str]:
    """Its exit code, and what it said. Nothing runs on behind a test that failed."""
    try:
        said, _ = run.communicate(timeout=timeout_s)
    finally:
        run.kill()
    return run.returncode, said


def kill_at(step: str) -> None:
    """``delta after the commit``: the table has the batch, and Spark does not know."""
    kind, _, when = step.partition(" ")
    assert when == "after the commit", when
    writer: Any = WRITERS[kind]
    commit = writer.commit

    def then_die(*args: Any) -> None:
        commit(*args)
        os.kill(os.getpid(), signal.SIGKILL)

    writer.commit = then_die


def texts_in(kind: str, path: Path) -> list[str]:
    """The column ``text`` of a table, as readers see it who know nothing of pipelines."""
    if kind == "parquet":
        import pyarrow.dataset as ds

        found = ds.dataset(path).to_table()
    elif kind == "delta":
        from deltalake import DeltaTable

        found = DeltaTable(path).to_pyarrow_table()
    else:
        table = IcebergTable(catalog_place({}, str(path)), "shop.texts")
        assert table.load()
        found = table.table.scan().to_arrow()
    return sorted(found["text"].to_pylist())


if __name__ == "__main__":
    step = sys.argv.pop(1)
    if step != "never":
        kill_at(step)
    from kerolox.cli.main import app

    app(prog_name="kerolox")
