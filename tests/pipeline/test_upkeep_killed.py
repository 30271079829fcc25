"""``expire`` and ``compact`` killed at each step: the next run ends it, loses nothing and leaves nothing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from .upkeep_killing import KINDS, WORKS

ROOT = Path(__file__).parents[2]


def killed(folder: Path, kind: str, work: str, *words: str) -> str:
    """Kill it at the first steps that have these words, or at all."""
    command = [sys.executable, "-m", "tests.pipeline.upkeep_killing", str(folder), kind, work, *words]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=880, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_killed_before_files_of_old_snapshots_are_deleted(tmp_path: Path) -> None:
    """They are forgotten by then: nobody knows them but those who look for what nothing leads to."""
    killed(tmp_path, "iceberg", "expire", "PyArrowFileIO.delete")


def test_killed_while_the_first_note_is_written(tmp_path: Path) -> None:
    """No note names that run; the unfinished one is removed when it is old."""
    killed(tmp_path, "iceberg", "compact", "os.rename warehouse")


@pytest.mark.parametrize(
    ("kind", "step"),
    [
        ("flow parquet", "os.rename"),  # the commit is there and the small files are gone
        ("flow delta", "DeltaTable.update_incremental"),  # the commit is there
        ("flow iceberg", "SqlCatalog._delete_old_metadata"),  # the same
    ],
)
def test_a_table_of_a_flow(kind: str, step: str, tmp_path: Path) -> None:
    """Killed behind its commit: the flow goes on, and the next run finds the files joined."""
    killed(tmp_path, kind, "compact", step)


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("work", WORKS)
@pytest.mark.parametrize("kind", KINDS)
def test_killed_at_every_step(kind: str, work: str, tmp_path: Path) -> None:
    told = killed(tmp_path, kind, work)
    assert int(told.split()[0]) >= 5
