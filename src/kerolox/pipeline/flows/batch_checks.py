"""Checks of the rows before a sink writes them, and the rows that checks set aside."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from kerolox.errors import KeroloxError
from kerolox.pipeline.flows.definition import Check

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame

REASON: Final = "_kerolox_reason"
_DOUBLE: Final = "_kerolox_double"
ORDER: Final = ("store_timestamp", "topic", "broker", "queue_id", "queue_offset")  # order of arrival


class CheckFailed(KeroloxError):
    """A batch failed a check that ends the flow or the run."""

    def __init__(self, outcome: Outcome, batch: int) -> None:
        self.outcome = outcome
        self.ends_run = outcome.then == "fail"
        super().__init__(
            f"check {outcome.name} failed in batch {batch}: {outcome.text}. The batch was not written. "
            "Correct the data or the check, and run again: the run continues with this batch"
        )


@dataclass(frozen=True)
class Outcome:
    """Result of one check on one batch."""

    name: str
    then: str
    held: bool
    rows: int = 0  # rows that failed it
    text: str = ""


def look(batch: DataFrame, checks: Mapping[str, Check]) -> tuple[int, list[Outcome]]:
    """Count the rows and run the checks: in one pass, plus one for each ``unique``."""
    from pyspark.sql import functions as f

    wanted: list[Column] = [f.count(f.lit(1)).alias("rows")]
    for number, check in enumerate(checks.values()):
        figure = _figure(check)
        if figure is not None:
            wanted.append(figure.alias(f"c{number}"))
    found = batch.agg(*wanted).collect()[0].asDict()
    rows = int(found["rows"])
    outcomes = []
    for number, (name, check) in enumerate(checks.items()):
        value = _doubles(batch, check) if check.unique else found.get(f"c{number}")
        outcomes.append(_outcome(name, check, value, rows))
    return rows, outcomes


def _figure(check: Check) -> Column | None:
    """Return the aggregate over the batch that a check needs."""
    from pyspark.sql import functions as f

    if check.not_null or check.where:
        return f.count(f.when(is_bad(check), 1))
    if check.fresh is not None:
        return f.max(f.col(check.fresh.column).cast("timestamp")).cast("double")
    return f.expr(check.total) if check.total else None


def is_bad(check: Check) -> Column:
    """Return a condition that is true of rows that fail a check of rows."""
    from pyspark.sql import functions as f

    if check.where:  # null counts as a failure
        return ~f.coalesce(f.expr(check.where).cast("boolean"), f.lit(False))
    bad = f.lit(False)
    for column in check.not_null:
        bad = bad | f.col(column).isNull()
    return bad


def _doubles(batch: DataFrame, check: Check) -> int:
    """Count rows that repeat another: all but the first of each. As in SQL, nulls are not equal."""
    from pyspark.sql import functions as f

    counts = batch.dropna(subset=list(check.unique)).groupBy(*check.unique).count()
    return int(counts.agg(f.coalesce(f.sum(f.col("count") - 1), f.lit(0))).collect()[0][0])


def repeats(batch: DataFrame, check: Check) -> Column:
    """Return a condition that is true of rows that repeat another, except the first.

    The first row is the first in its queue, if rows have the columns for that; else the least row, so that a
    repeated batch sets the same rows aside.
    """
    from pyspark.sql import Window
    from pyspark.sql import functions as f

    kinds = dict(batch.dtypes)
    sortable = [name for name, kind in kinds.items() if name not in ORDER and "map<" not in kind]
    order = [name for name in ORDER if name in kinds] + [n for n in sortable if kinds[n] != "variant"]
    same = Window.partitionBy(*check.unique).orderBy(*map(f.col, order or check.unique))
    known = f.lit(True)
    for name in check.unique:
        known = known & f.col(name).isNotNull()
    return known & (f.row_number().over(same) > 1)


def _outcome(name: str, check: Check, value: Any, rows: int) -> Outcome:
    def outcome(held: bool, text: str = "", bad: int = 0) -> Outcome:
        return Outcome(name, check.then, held, bad, text)

    if check.rows is not None:
        low, high = check.rows.min, check.rows.max
        if rows < low:
            return outcome(False, f"{rows:,} rows; expected at least {low:,}")
        if high is not None and rows > high:
            return outcome(False, f"{rows:,} rows; expected at most {high:,}")
        return outcome(True)
    if check.total:
        if value is None and not rows:
            return outcome(True)
        return outcome(bool(value), f"{check.total} is {str(value).lower()} of the {rows:,} rows")
    if check.fresh is not None:
        if value is None:
            return outcome(not rows, f"{check.fresh.column} is null in all {rows:,} rows")
        age_s = datetime.now(UTC).timestamp() - float(value)
        newest = datetime.fromtimestamp(float(value), UTC).isoformat(timespec="seconds")
        within = float(check.fresh.within)
        return outcome(
            age_s <= within, f"the newest row is from {newest}, {age_s:,.0f} s ago; {within:g} s are allowed"
        )
    bad = int(value or 0)
    what = {
        "not_null": f"nulls in {', '.join(check.not_null)}",
        "unique": f"the {', '.join(check.unique)} of another row",
        "where": f"not {check.where}",
    }[check.kind]
    return outcome(bad == 0, f"{bad:,} of {rows:,} rows: {what}", bad)


def split(
    batch: DataFrame, checks: Mapping[str, Check], failed: Sequence[Outcome]
) -> tuple[DataFrame, DataFrame]:
    """Return the rows that pass the failed checks, and the others with the reason."""
    from pyspark.sql import functions as f

    marked, reasons, helping = batch, [], [REASON]
    for number, outcome in enumerate(failed):
        check = checks[outcome.name]
        if check.unique:
            column = f"{_DOUBLE}{number}"
            helping.append(column)
            marked = marked.withColumn(column, repeats(batch, check))
            bad = f.col(column)
        else:
            bad = is_bad(check)
        reasons.append(f.when(bad, f.lit(f"check {outcome.name}")))
    marked = marked.withColumn(REASON, f.concat_ws(", ", *reasons))
    return marked.where(f"{REASON} = ''").drop(*helping), marked.where(f"{REASON} != ''").drop(*helping[1:])
