"""Pipelines as files are tested with the session and the broker of the Spark tests."""

from __future__ import annotations

from tests.spark.conftest import broker, new_topic, send, spark, topic  # noqa: F401
