"""``kerolox pipeline run`` and ``kerolox pipeline check``"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kerolox.cli.output import (
    JsonFlag,
    OutputTable,
    echo,
    one_line_errors,
    output,
    say,
    say_document,
    say_error,
)
from kerolox.cli.pipeline_job import INTERRUPTED, ConfOption, MasterOption
from kerolox.cli.storage_options import pairs
from kerolox.errors import KeroloxError

if TYPE_CHECKING:
    from kerolox.pipeline.flows.definition import Pipeline
    from kerolox.pipeline.flows.document import Document, Problem
    from kerolox.pipeline.flows.plan import Plan
    from kerolox.pipeline.flows.run import Run

RUN_EXAMPLE = (
    "Example: kerolox pipeline run orders.yaml --set DATA=/data --metrics-port 9464   "
    "(exit code 0: done or stopped, 1: not started, 3: a flow failed, 130: stopped before --once was done)"
)
CHECK_EXAMPLE = "Example: kerolox pipeline check orders.yaml --plan   (exit code 0: valid, 1: problems)"
FAILED = 3
LINES_EVERY_S = 10.0

FileArgument = Annotated[Path, typer.Argument(help="File of the pipeline.", metavar="PIPELINE.YAML")]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", help="Value for ${NAME} in the file. Repeatable.", metavar="NAME=VALUE"),
]


@one_line_errors
def check(
    file: FileArgument,
    given: SetOption = None,
    plan: Annotated[bool, typer.Option("--plan", help="Show the data flow and the columns.")] = False,
    spark: Annotated[
        bool, typer.Option("--spark/--no-spark", help="Analyse the query plans with Spark, or skip it.")
    ] = True,
    master: MasterOption = "local[*]",
    conf: ConfOption = None,
    json: JsonFlag = False,
) -> None:
    """Validate a pipeline without running it, and report all problems.

    Checks the file and its variables, then topics, addresses and functions; then Spark analyses every step,
    check and sink with empty batches. No rows are read and no tables or catalogs created. To test write
    access, a small file is written to each address and deleted again, with the folders created for it.
    """
    from kerolox.pipeline.flows.document import PipelineInvalid

    problems: list[Problem] = []
    made: Plan | None = None
    columns: dict[str, str] = {}
    try:
        made, document = _read(file, given)
        problems = document.problems
        if made is not None and spark:  # also for a file with other problems: report all at once
            columns = _analysed(made, document, master, pairs("--conf", conf))
    except PipelineInvalid as error:
        problems = error.problems
    _show_check(file, made, problems, columns, show_plan=plan, json=json, looked=spark)
    if _errors(problems):
        raise typer.Exit(1)


@one_line_errors
def run(
    file: FileArgument,
    given: SetOption = None,
    flows: Annotated[
        list[str] | None, typer.Option("--flow", help="Run only this sink or archive. Repeatable.")
    ] = None,
    once: Annotated[
        bool,
        typer.Option("--once", help="Stop at the current end of the sources. Overrides the file's trigger."),
    ] = False,
    dry: Annotated[
        bool, typer.Option("--dry", help="Check the pipeline, show its data flow, then exit.")
    ] = False,
    metrics_port: Annotated[
        int | None,
        typer.Option(
            help="Port for the status page and Prometheus metrics; 0: a free port.", min=0, max=65_535
        ),
    ] = None,
    metrics_host: Annotated[str, typer.Option(help="Listen address of the metrics port.")] = "127.0.0.1",
    master: MasterOption = "local[*]",
    conf: ConfOption = None,
    json: JsonFlag = False,
) -> None:
    """Run a pipeline (sources, steps, sinks) until it is stopped or complete.

    The whole pipeline is validated before it starts. A failed flow is restarted from its checkpoint after a
    pause; a flow that keeps failing ends the run. On SIGTERM or Ctrl-C, running batches are completed first;
    a second signal stops at once. STORAGE/runs/ID/page.html is a status page of the run.
    """
    from kerolox.pipeline.flows.document import PipelineInvalid

    if dry:
        check(file, given, plan=True, spark=True, master=master, conf=conf, json=json)
        return
    try:
        plan, document = _read(file, given)
        if plan is None or document.has_errors:
            raise PipelineInvalid(document.problems)
        made = _run(plan, document, once, flows or [], (metrics_host, metrics_port), master,
                    pairs("--conf", conf), quiet=json)  # fmt: skip
    except PipelineInvalid as error:
        for problem in error.problems:
            say_document(problem.document()) if json else say(problem)
        raise typer.Exit(1) from error
    _show_run(made, json)
    if made.result.failed or made.result.stopped:
        for name, why in {**made.result.failed, **made.result.stopped}.items():
            say_error(KeroloxError(f"flow {name} failed: {why}"), json)
        raise typer.Exit(FAILED)
    if made.result.interrupted and (once or plan.pipeline.trigger.once):
        say("interrupted. Written data is kept. Run the same command again to continue")
        raise typer.Exit(INTERRUPTED)


# --- shared steps -------------------------------------------------------------------------------------


def _read(file: Path, given: list[str] | None) -> tuple[Plan | None, Document]:
    """Return the plan, as far as the file is readable, and the document with problems found without Spark."""
    from kerolox.pipeline.flows.checking import check_places
    from kerolox.pipeline.flows.plan import make_plan
    from kerolox.pipeline.flows.reading import read_loosely

    pipeline, document = read_loosely(file, pairs("--set", given))
    if pipeline is None:
        return None, document
    plan = make_plan(pipeline, document)
    check_places(pipeline, document)
    return plan, document


def _errors(problems: list[Problem]) -> list[Problem]:
    return [problem for problem in problems if problem.level == "error"]


def _session(pipeline: Pipeline, master: str, conf: dict[str, str]) -> Any:
    import logging
    import os

    from kerolox.spark import session
    from kerolox.spark.java import SHOW

    # kerolox reports failures in one line; Spark and py4j would log them again with stack traces.
    is_shown = bool(os.environ.get(SHOW))
    for name in ("py4j", "SQLQueryContextLogger"):
        logging.getLogger(name).setLevel(logging.WARNING if is_shown else logging.CRITICAL + 1)
    return session.session(
        f"kerolox-{pipeline.name}", session.with_retries(master), memory=pipeline.spark.memory,
        conf={**session.QUICK, **pipeline.spark.conf, **conf}, log_level="WARN" if is_shown else "OFF",
    )  # fmt: skip


def _analysed(plan: Plan, document: Document, master: str, conf: dict[str, str]) -> dict[str, str]:
    from kerolox.pipeline.flows.checking import check_plans
    from kerolox.spark import session

    session.settings(master)
    try:
        return check_plans(_session(plan.pipeline, master, conf), plan, document)
    finally:
        session.stop()


def _run(
    plan: Plan,
    document: Document,
    once: bool,
    flows: list[str],
    listen: tuple[str, int | None],
    master: str,
    conf: dict[str, str],
    *,
    quiet: bool,
) -> Run:
    from kerolox.pipeline.flows.reporting import Reporter
    from kerolox.pipeline.flows.run import Run
    from kerolox.spark import session

    session.settings(master)  # raises before a JVM starts
    made = Run(plan, document, once=once, only=flows)
    with made, _signals(made) as install, Reporter(made, host=listen[0], port=listen[1]) as reporter:
        if not quiet:
            at = f", at http://{reporter.server.address}/" if reporter.server else ""
            say(f"run {made.run_id} of {plan.pipeline.name}: {reporter.page_address}{at}")
        elif reporter.server:
            say_document(
                {"run": made.run_id, "page": reporter.page_address, "address": reporter.server.address}
            )
        try:
            made.prepare(_session(plan.pipeline, master, conf))
            install()  # again, because PySpark has replaced the handlers
            with _lines(made, quiet):
                made.run()
        finally:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            session.stop()
    return made


@contextmanager
def _signals(made: Run) -> Iterator[Any]:
    """Handle signals: the first one stops the run gracefully, a second one at once."""
    before: dict[int, Any] = {}

    def handle(number: int, frame: FrameType | None) -> None:
        if made.stopping.is_set():
            raise KeyboardInterrupt
        made.stopping.set()

    def install() -> None:
        if threading.current_thread() is not threading.main_thread():
            return
        for number in (signal.SIGINT, signal.SIGTERM):
            found = signal.signal(number, handle)
            before.setdefault(number, found)

    install()
    try:
        yield install
    finally:
        for number, found in before.items():
            signal.signal(number, found)


@contextmanager
def _lines(made: Run, quiet: bool) -> Iterator[None]:
    """Print periodic progress lines during the run."""
    ended = threading.Event()

    def tell() -> None:
        seen = -1
        while not ended.wait(LINES_EVERY_S):
            with made.figures.lock:
                if made.figures.changes == seen:
                    continue
                seen = made.figures.changes
                parts = [
                    f"{flow.name} {flow.state}, {flow.rows_out:,} rows"
                    + (f", {flow.lag_total:,} behind" if flow.lag_total is not None else "")
                    for flow in made.figures.flows.values()
                ]
            say("; ".join(parts))

    thread = threading.Thread(target=tell, daemon=True)
    if not quiet:
        thread.start()
    try:
        yield
    finally:
        ended.set()


# --- output -------------------------------------------------------------------------------------------


def _show_check(
    file: Path,
    plan: Plan | None,
    problems: list[Problem],
    columns: dict[str, str],
    *,
    show_plan: bool,
    json: bool,
    looked: bool,
) -> None:
    from kerolox.pipeline.flows.plan import rows_of, text_graph

    rows = rows_of(plan) if plan is not None else []
    heads = ("what", "name", "kind", "where", "reads")
    shown = output(json)
    if json:
        document: dict[str, Any] = {
            "file": str(file),
            "valid": not _errors(problems),
            "analysed": looked and not _errors(problems),
            "problems": [problem.document() for problem in problems],
        }
        if plan is not None:
            document["pipeline"] = plan.pipeline.name
            document["plan"] = [dict(zip(heads, row, strict=True)) for row in rows]
            document["columns"] = columns
        shown.show(document)
        return
    for problem in problems:
        echo(problem if problem.level == "error" else f"{problem} (warning)")
    if plan is not None and show_plan:
        shown.table(OutputTable(heads, rows))
        if columns:
            shown.table(OutputTable(("name", "columns"), list(columns.items())))
        echo(text_graph(plan))
    errors = len(_errors(problems))
    if errors:
        echo(f"{errors} problem{'s' if errors > 1 else ''}: {file} cannot be run")
    else:
        echo(f"{file} is valid{'' if looked else ' (not analysed with Spark)'}.")


def _show_run(made: Run, json: bool) -> None:
    document = made.figures.document()
    rows = [
        (name, flow["kind"], flow["state"], f"{flow['rowsIn']:,}", f"{flow['rowsOut']:,}", flow["batches"],
         flow["badRows"] or None, flow["restarts"] or None)
        for name, flow in document["flows"].items()
    ]  # fmt: skip
    heads = ("flow", "kind", "state", "rows in", "rows out", "batches", "bad rows", "restarts")
    document["page"] = made.storage.name(f"runs/{made.run_id}/page.html")
    output(json).show(document, OutputTable(heads, rows))
