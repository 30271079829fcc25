"""Pipelines as files are tested with the session and the broker of the Spark tests."""

from __future__ import annotations

from tests.spark.conftest import (  # noqa: F401
    broker,
    new_topic,
    pytest_collection_modifyitems,
    send,
    spark,
    topic,
)
