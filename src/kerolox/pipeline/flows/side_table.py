"""Side table: bodies that do not fit their schema, and rows that checks have set aside.

Each row has the reason, its queue and offset if known, and the original content.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from kerolox.pipeline.flows.batch_checks import REASON
from kerolox.pipeline.flows.tables import BODY_ERROR

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

# Columns that locate a message, with their types; null if a row has no such column.
PLACE: Final = {"topic": "string", "broker": "string", "queue_id": "int", "queue_offset": "bigint"}
COLUMNS: Final = ("pipeline", "flow", "batch", "reason", *PLACE, "body", "row", "set_aside_at")
EXAMPLES: Final = 5
EXAMPLE_LENGTH: Final = 300


def side_rows(rows: DataFrame, pipeline: str, flow: str, batch: int) -> DataFrame:
    """Convert rows to those of the side table. The reason is in one of two columns, set by checks or
    decoding.
    """
    from pyspark.sql import functions as f

    reason = REASON if REASON in rows.columns else BODY_ERROR
    kinds = dict(rows.dtypes)
    plain = [
        name for name in rows.columns if name != reason and not (name == "body" and kinds[name] == "binary")
    ]
    places = [
        (f.col(name) if name in kinds else f.lit(None)).cast(kind).alias(name) for name, kind in PLACE.items()
    ]
    body = f.col("body").cast("binary") if "body" in kinds else f.lit(None).cast("binary")
    return rows.select(
        f.lit(pipeline).alias("pipeline"),
        f.lit(flow).alias("flow"),
        f.lit(batch).cast("bigint").alias("batch"),
        f.col(reason).alias("reason"),
        *places,
        body.alias("body"),
        f.to_json(f.struct(*plain)).alias("row"),
        f.current_timestamp().alias("set_aside_at"),
    )


def examples(rows: DataFrame) -> list[dict[str, Any]]:
    """Return a few rows of a side table, for the page."""
    found = []
    for row in rows.select("reason", *PLACE, "body", "row").limit(EXAMPLES).collect():
        where = "/".join(str(row[name]) for name in PLACE if row[name] is not None)
        text = bytes(row.body).decode(errors="replace") if row.body is not None else row["row"] or ""
        found.append({"reason": row.reason, "where": where, "text": text[:EXAMPLE_LENGTH]})
    return found
