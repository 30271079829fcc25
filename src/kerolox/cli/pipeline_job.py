"""Shared parts of commands that process stores on Spark: session, progress steps, one-line failures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from kerolox.cli.output import say
from kerolox.cli.pipeline_archive import INTERRUPTED, QUICK
from kerolox.cli.progress import ProgressLine
from kerolox.errors import KeroloxError, OptionError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

Made = TypeVar("Made")
MasterOption = Annotated[str, typer.Option(help="Spark master.")]
ConfOption = Annotated[list[str] | None, typer.Option(help="Spark setting. Repeatable.", metavar="KEY=VALUE")]
ToOption = Annotated[
    Path,
    typer.Option(
        "--to", "--out", "-o", help="New directory, or that of an interrupted run to continue.", metavar="DIR"
    ),
]
_MIB_FROM = 1 << 20


class Steps:
    """Periodic progress of a job."""

    def __init__(self) -> None:
        self._text = "Spark starts"
        self._line = ProgressLine(lambda: self._text)

    def __call__(self, what: str, done: int, total: int) -> None:
        if total >= _MIB_FROM:
            self._text = f"{what}: {done >> 20:,} of {total >> 20:,} MiB"
        else:
            self._text = f"{what}: {done:,} of {total:,}"
        self._line.tell()

    def end(self) -> None:
        self._line.end()


def run_job(
    app: str,
    master: str,
    conf: list[str] | None,
    work: Callable[[SparkSession, Steps], Made],
    *,
    before: Callable[[], object],
) -> Made:
    """Run the checks ``before``, start Spark, work, and stop Spark.

    Errors raised by Spark become one line on stderr and exit code 2.
    """
    from kerolox.spark import session

    settings = dict(_setting(each) for each in conf or ())
    session.settings(master)
    before()  # raises before Spark starts
    steps = Steps()
    try:
        spark = session.session(app, master, conf={**QUICK, **settings}, sources=False)
        return work(spark, steps)
    except KeyboardInterrupt:
        say("interrupted. Run the same command again to continue")
        raise typer.Exit(INTERRUPTED) from None
    except (KeroloxError, OSError):
        raise
    except Exception as error:  # Spark raises many classes, with long texts
        from kerolox.spark.shipping import cause_of

        say(f"not finished: {cause_of(error)}. Run the same command again to continue.")
        raise typer.Exit(2) from error
    finally:
        steps.end()
        session.stop()


def _setting(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise OptionError("--conf", text, "KEY=VALUE, such as spark.driver.memory=2g")
    return key, value
