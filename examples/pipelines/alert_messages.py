"""A step of alerts.yaml: rows become messages."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as f


def messages(short: DataFrame, tag: str) -> DataFrame:
    """One message for each order that was paid too little."""
    return short.select(
        f.to_json(f.struct("id", "amount", "paid")).alias("body"),
        f.col("id").alias("keys"),
        f.lit(tag).alias("tags"),
    )
