"""docs/PIPELINES.md: its files are read, its commands are run, its reference is that of the structs.

A YAML block that begins with the name of a file is that file; any other is a part of the first pipeline, and
the whole must still be one with it. ``/data`` is a temporary folder.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from typer.testing import CliRunner

from kerolox.blocking import Producer
from kerolox.cli.main import app
from kerolox.client.messages import Message
from kerolox.pipeline.flows.functions import load_function
from kerolox.pipeline.flows.plan import make_plan
from kerolox.pipeline.flows.reading import read_pipeline
from kerolox.spark import session as sessions
from kerolox.testing import BrokerThread, broker_in_thread
from tests.docs import pipeline_keys
from tests.docs.test_code import ADDRESS, Piece, sections
from tests.spark.conftest import spark  # noqa: F401

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

PAGE = pipeline_keys.PAGE
PIECES = [piece for section in sections(PAGE, "yaml", "console", "python") for piece in section.pieces]

pytestmark = pytest.mark.xdist_group("spark")


def file_of(piece: Piece) -> str:
    first = piece.code.splitlines()[0]
    return first.removeprefix("# ") if piece.kind == "yaml" and first.startswith("# ") else ""


@pytest.fixture(scope="module")
def broker() -> Iterator[BrokerThread]:
    with broker_in_thread() as running:
        yield running


@pytest.mark.long
def test_files_and_commands(
    spark: SparkSession, broker: BrokerThread, tmp_path: Path, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    monkeypatch.setattr(sessions, "stop", lambda: None)  # the session is that of all tests
    monkeypatch.chdir(tmp_path)

    def here(text: str) -> str:
        return text.replace(ADDRESS, broker.nameserver_address).replace("/data", str(tmp_path))

    def send(topic: str, count: int) -> None:
        broker.create_topic(topic)
        with Producer(broker.nameserver_address, group="guide") as producer:
            producer.send_many(
                Message(topic, f"{n}", tags=("paid", "open")[n % 2], keys=[f"k-{n}"]) for n in range(count)
            )

    saved: list[str] = []  # names of files that Python blocks are
    names: dict[str, Any] = {
        "spark": spark,
        "send": send,
        "save": saved.append,
        "step": lambda text: load_function(text, tmp_path),
    }
    for piece in PIECES:
        exec(here(piece.notes.get("before", "")), names)
        if file_of(piece):
            (tmp_path / file_of(piece)).write_text(here(piece.code))
        elif piece.kind == "console":
            for line in here(piece.code).splitlines():
                run_command(line.removeprefix("$ "))
        elif piece.kind == "python":
            (tmp_path / saved.pop()).write_text(here(piece.code))
            assert "step(" in piece.notes.get("after", ""), "a function of the page is applied, too"
        exec(here(piece.notes.get("after", "")), names)


def run_command(line: str) -> None:
    if "--master spark://" in line:  # another machine
        return
    program, *arguments = shlex.split(line)
    assert program == "kerolox", line
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, f"{line}\n{result.output}"


def test_parts_of_files_fit_into_one(tmp_path: Path) -> None:
    """Each alone, and with the parts before it."""
    whole: dict[str, Any] = {}
    for piece in PIECES:
        if piece.kind == "python":
            (tmp_path / "my_steps.py").write_text(piece.code)
        if piece.kind != "yaml":
            continue
        part = yaml.safe_load(piece.code)
        if file_of(piece) == "archive.yaml":
            continue
        for key, value in part.items():
            whole[key] = whole.get(key, {}) | value if isinstance(value, dict) else value
        file = tmp_path / "pipeline.yaml"
        file.write_text(yaml.safe_dump(whole))
        pipeline, document = read_pipeline(file, {}, os.environ)
        make_plan(pipeline, document)
        assert [each for each in document.problems if each.level == "error"] == []
    assert len(whole["sinks"]) > 4


def test_the_reference_is_made_of_the_structs() -> None:
    assert PAGE.read_text() == pipeline_keys.written(), "python -m tests.docs.pipeline_keys writes it anew"
