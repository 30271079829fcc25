"""Bodies with a schema: JSON, Avro, Protobuf and text become columns, and columns bodies."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame


def decoded(frame: DataFrame, column: str = "body", **options: str) -> DataFrame:
    """See :func:`kerolox.spark.bodies.frames.decoded`. Its modules are imported at the first call."""
    from kerolox.spark.bodies import frames

    return frames.decoded(frame, column, **options)


def encoded(frame: DataFrame, **options: str) -> DataFrame:
    """See :func:`kerolox.spark.bodies.frames.encoded`."""
    from kerolox.spark.bodies import frames

    return frames.encoded(frame, **options)


def set_aside(batch: DataFrame, number: int, folder: str) -> DataFrame:
    """See :func:`kerolox.spark.bodies.frames.set_aside`."""
    from kerolox.spark.bodies import frames

    return frames.set_aside(batch, number, folder)
