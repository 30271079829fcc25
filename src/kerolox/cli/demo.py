"""``kerolox demo``: a demonstration that takes seconds and needs no setup."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kerolox.cli.output import JsonFlag, OutputTable, echo, one_line_errors, output

if TYPE_CHECKING:
    from kerolox.demo.demo import DemoResult

EXAMPLE = "Example: kerolox demo"

MISSING = "Not shown: streaming queries on Spark. To see them: pip install 'kerolox[spark]'"
BAR = 30


@one_line_errors
def play(
    messages: Annotated[
        int, typer.Option(min=1, help="Number of messages to send singly, and again in batches.")
    ] = 20_000,
    seconds: Annotated[
        float, typer.Option(min=0, help="Seconds of steady load, during which the broker is killed; 0: none.")
    ] = 12.0,
    data: Annotated[
        Path | None, typer.Option(help="Folder to keep the files in. Default: delete them.", metavar="DIR")
    ] = None,
    spark: Annotated[bool, typer.Option(help="Run streaming queries on Spark, if installed.")] = True,
    json: JsonFlag = False,
) -> None:
    """Demonstrate kerolox on this machine: servers, clients, a broker crash, and Spark.

    Starts a name server and a broker, sends and consumes thousands of orders, kills the broker under load
    (kill -9), restarts it and counts lost orders. Then Spark sums up the orders in Parquet files and sends
    alerts to a topic. Finally everything is stopped.
    """
    import tempfile

    from kerolox.cli.nameservers import forget_keys
    from kerolox.demo.demo import Demo
    from kerolox.demo.queries import is_installed
    from kerolox.net.loop import run

    forget_keys()
    out, has_spark = output(json), is_installed()
    with tempfile.TemporaryDirectory(prefix="kerolox-demo-") as temporary:
        place = data or Path(temporary)
        demo = Demo(out.note, messages, seconds, place, kept=data is not None, quiet=json)
        try:
            with _log_to(place / "demo.log"):  # no warnings on the terminal: the outage is intended
                result = run(demo.play(spark=spark and has_spark))
        except KeyboardInterrupt:
            echo("\nStopped. No process is left running.", err=True)
            raise typer.Exit(130) from None
    out.note("")
    out.show(result.document(), *_tables(result))
    for line in (*result.words, *result.where()):
        out.note(line)
    if result.failed is not None:
        raise result.failed
    if spark and not has_spark:
        out.note(MISSING)


@contextmanager
def _log_to(path: Path) -> Iterator[None]:
    import logging

    from kerolox.log_lines import LineFormatter

    path.parent.mkdir(parents=True, exist_ok=True)
    handler = logging.FileHandler(path)
    handler.setFormatter(LineFormatter())
    logger = logging.getLogger("kerolox")
    logger.addHandler(handler)
    try:
        yield
    finally:
        logger.removeHandler(handler)
        handler.close()


def _tables(result: DemoResult) -> list[OutputTable]:
    from kerolox.demo.shop import BATCH, IN_FLIGHT

    figures = result.figures
    rows = [
        (name, f"{row['messages']:,}", f"{row['perSecond']:,}", row["p50Ms"], row["p99Ms"])
        for name, row in (
            ("sent steadily, broker killed", figures["steady"]),
            (f"sent, {IN_FLIGHT} at a time", figures["sent"]),
            (f"sent in batches of {BATCH}", figures["sentInBatches"]),
            ("consumed (since sending)", figures["consumed"]),
        )
        if row["messages"]
    ]
    away = figures["steady"]["brokerAwayMs"]
    outcome = (
        *(figures["acknowledged"], figures["missing"], figures["twice"], figures["refusedOnce"]),
        None if away is None else f"{away / 1000:.1f} s",
    )
    tables = [
        OutputTable(("load", "messages", "per second", "p50 ms", "p99 ms"), rows),
        OutputTable(("acknowledged", "missing", "consumed twice", "retried", "broker away"), [outcome]),
    ]
    if result.spark is not None:
        tables.append(_regions(result.spark["regions"]))
    return tables


def _regions(regions: list[dict[str, Any]]) -> OutputTable:
    most = max((row["amount"] for row in regions), default=1.0)
    rows = [
        (
            row["region"],
            f"{row['orders']:,}",
            f"{row['amount']:,.2f}",
            "█" * round(BAR * row["amount"] / most),
        )
        for row in regions
    ]
    return OutputTable(("region", "orders", "amount", ""), rows)
