"""Session and broker of the Spark tests, and the runners of jobs.

Tests of the rules of jobs take ``runner``. Tests of a promise (exactly once, restart, kill) and one of each
command take ``on_spark``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from kerolox.pipeline.runner import InProcesses, OnSpark
from tests.spark.conftest import (  # noqa: F401
    broker,
    new_topic,
    pytest_collection_modifyitems,
    send,
    spark,
    topic,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


@pytest.fixture(scope="session")
def runner() -> Iterator[InProcesses]:
    """Processes of this machine, for all tests of a worker."""
    with InProcesses(2) as processes:
        yield processes


@pytest.fixture(scope="session")
def on_spark(spark: SparkSession) -> OnSpark:  # noqa: F811
    return OnSpark(spark.sparkContext)
