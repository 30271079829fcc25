"""Shared parts of commands that process stores on Spark: session, progress steps, one-line failures."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from kerolox.cli.output import say
from kerolox.cli.progress import ProgressLine
from kerolox.cli.storage_options import pairs
from kerolox.errors import KeroloxError

if TYPE_CHECKING:
    from kerolox.pipeline.runner import Runner

Made = TypeVar("Made")
MasterOption = Annotated[
    str, typer.Option(help="Spark master: local[N], spark://HOST:PORT, yarn, k8s://URL.")
]
ConfOption = Annotated[
    list[str] | None, typer.Option(help="Spark setting. Repeatable.", metavar="NAME=VALUE")
]


class RunnerKind(StrEnum):
    """Place of the tasks of a job."""

    SPARK = "spark"
    PROCESSES = "processes"


RunnerOption = Annotated[
    RunnerKind,
    typer.Option(help="Place of the tasks: spark, or processes of this machine (for small work)."),
]
TopicsOption = Annotated[list[str] | None, typer.Option("--topic", help="Only this topic. Repeatable.")]
SinceOption = Annotated[
    str | None, typer.Option(help="Only messages stored at this time or later, such as 2h.")
]
UntilOption = Annotated[str | None, typer.Option(help="Only messages stored before this time.")]
ToOption = Annotated[
    Path,
    typer.Option(
        "--to", "--out", "-o", help="New directory, or that of an interrupted run to continue.", metavar="DIR"
    ),
]
_MIB_FROM = 1 << 20
INTERRUPTED = 130  # exit code of shells for Ctrl-C


class Steps:
    """Periodic progress of a job."""

    def __init__(self) -> None:
        self._text = "starting"
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
    kind: RunnerKind,
    work: Callable[[Runner, Steps], Made],
    *,
    before: Callable[[], object],
) -> Made:
    """Run the checks ``before``, start the runner, work, and stop the runner.

    Errors of tasks become one line on stderr and exit code 2.
    """
    from kerolox.spark import session

    settings = pairs("--conf", conf)
    session.settings(master)
    before()  # raises before Spark starts
    steps = Steps()
    again = "Run the same command again to continue"
    with spark_errors(lambda: f"interrupted. {again}", lambda why: f"not finished: {why}. {again}."):
        try:
            with started(kind, app, master, settings) as runner:
                return work(runner, steps)
        finally:
            steps.end()


@contextmanager
def started(kind: RunnerKind, app: str, master: str, conf: dict[str, str]) -> Iterator[Runner]:
    """Start the runner of a command. Spark ends with :func:`spark_errors`."""
    from kerolox.pipeline.runner import InProcesses, OnSpark
    from kerolox.spark import session

    if kind is RunnerKind.PROCESSES:
        with InProcesses() as processes:
            yield processes
        return
    spark = session.session(app, master, conf={**session.QUICK, **conf}, sources=False)
    yield OnSpark(spark.sparkContext)


@contextmanager
def spark_errors(
    interrupted: Callable[[], str], failed: Callable[[str], str], code: int = 2
) -> Iterator[None]:
    """Stop Spark after the work. Ctrl-C and Spark's errors become one line on stderr and an exit code."""
    from kerolox.pipeline.runner import TaskFailed
    from kerolox.spark import session

    try:
        yield
    except KeyboardInterrupt:
        say(interrupted())
        raise typer.Exit(INTERRUPTED) from None
    except TaskFailed as error:
        say(failed(error.cause))
        raise typer.Exit(code) from error
    except (KeroloxError, OSError):
        raise
    except Exception as error:  # Spark raises many classes, with long texts
        from kerolox.spark.shipping import cause_of

        say(failed(cause_of(error)))
        raise typer.Exit(code) from error
    finally:
        session.stop()
