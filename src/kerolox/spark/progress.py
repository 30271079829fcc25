"""What a streaming query tells its group at the broker: how far it is, right after each batch."""

from __future__ import annotations

from collections.abc import Mapping

from pyspark.sql import SparkSession


def report_progress(spark: SparkSession, options: Mapping[str, str]) -> None:
    """Add the listener to a session, once."""
