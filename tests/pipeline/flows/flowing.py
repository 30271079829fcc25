"""Runs of pipelines in tests, in the session that all tests share."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kerolox.pipeline.flows.checking import check_places, check_plans
from kerolox.pipeline.flows.document import PipelineInvalid
from kerolox.pipeline.flows.plan import make_plan
from kerolox.pipeline.flows.reading import read_pipeline
from kerolox.pipeline.flows.reporting import Reporter
from kerolox.pipeline.flows.run import Run

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EXAMPLES = Path(__file__).parents[3] / "examples" / "pipelines"


def checked(spark: SparkSession | None, file: Path, **given: str) -> list[str]:
    """All problems of a file."""
    try:
        pipeline, document = read_pipeline(file, given)
        plan = make_plan(pipeline, document)
        check_places(pipeline, document)
        if spark is not None:
            check_plans(spark, plan, document)
    except PipelineInvalid as error:
        return [str(each) for each in error.problems]
    return [str(each) for each in document.problems]


def run_once(spark: SparkSession, file: Path, **given: str) -> Run:
    """One run to the end of what there is."""
    pipeline, document = read_pipeline(file, given)
    plan = make_plan(pipeline, document)
    with Run(plan, document, once=True) as run, Reporter(run):
        run.prepare(spark)
        run.run()
    return run
