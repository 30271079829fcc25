"""Pipelines whose state lies in an object store that has to be told its keys."""

from __future__ import annotations

from pathlib import Path

import pytest

from kerolox.pipeline.flows.checking import check_places
from kerolox.pipeline.flows.plan import make_plan
from kerolox.pipeline.flows.reading import read_pipeline
from kerolox.pipeline.flows.run import Run
from tests.rig.s3_server import KEY, SECRET, S3Server

FILE = """\
name: far
storage: ${WHERE}
storage_options: {key: "${ID}", secret: "${SECRET}", endpoint_url: "${ENDPOINT}"}
sources:
  people: {format: csv, path: people.csv, schema: "id INT"}
sinks:
  lake: {from: people, format: noop}
"""


def test_a_run_reaches_its_storage_by_the_options_of_the_file(
    s3: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in s3.environment:  # nothing else tells the keys
        monkeypatch.delenv(name, raising=False)
    file = tmp_path / "far.yaml"
    file.write_text(FILE)
    where = f"{s3.bucket()}/state"
    environment = {"WHERE": where, "ID": KEY, "SECRET": SECRET, "ENDPOINT": s3.endpoint}
    pipeline, document = read_pipeline(file, environment=environment)
    plan = make_plan(pipeline, document)
    check_places(pipeline, document)
    assert [str(each) for each in document.problems] == []
    run = Run(plan, document)
    run.storage.put("runs/x/page.html", b"a page")
    assert run.storage.read("runs/x/page.html") == b"a page"
    assert SECRET not in str(run.storage)
