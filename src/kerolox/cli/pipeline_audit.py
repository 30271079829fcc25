"""``kerolox pipeline audit``"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kerolox.cli.output import JsonFlag, OutputTable, output, say_error
from kerolox.cli.pipeline_job import (
    ConfOption,
    MasterOption,
    RunnerKind,
    RunnerOption,
    SinceOption,
    TopicsOption,
    UntilOption,
    spark_errors,
    started,
)
from kerolox.cli.progress import bars
from kerolox.cli.storage_options import StorageFile, StorageOptions, pairs, storage_at
from kerolox.errors import KeroloxError
from kerolox.sizes import size_text
from kerolox.times import parse_time

if TYPE_CHECKING:
    from kerolox.pipeline.audit.audit import Audit
    from kerolox.pipeline.lake.storage import Storage

EXAMPLE = (
    "Example: kerolox pipeline audit /data/broker-a/store s3://backup/broker-b/store --to report   "
    "(exit code 0: no problems, 1: problems, 2: not audited)"
)


def audit(
    stores: Annotated[
        list[str],
        typer.Argument(
            help="Directories of kerolox or Apache stores, or addresses of copies: s3://BUCKET/FOLDER, "
            "gs://, abfs://.",
            metavar="STORE_DIR...",
        ),
    ],
    to: Annotated[
        str,
        typer.Option(
            "--to",
            "--out",
            "-o",
            help="Folder or address for the report. An older report there is replaced.",
            metavar="ADDRESS",
        ),
    ],
    topics: TopicsOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    storage_options: StorageOptions = None,
    storage_file: StorageFile = None,
    master: MasterOption = "local[*]",
    conf: ConfOption = None,
    runner: RunnerOption = RunnerKind.SPARK,
    json: JsonFlag = False,
) -> None:
    """Verify whole stores and report on their traffic, as an HTML page and as tables.

    Verifies the checksum of every message, every queue against the log in both directions, gaps, duplicates
    by unique key, open transactions and dead letters. Reports rates, sizes and latencies by topic, tag and
    minute. Changes nothing; brokers may use the stores meanwhile.
    """
    from kerolox.clock import SYSTEM_CLOCK

    try:
        now_ms = SYSTEM_CLOCK.wall_ms()
        choice: dict[str, Any] = {
            "topics": sorted(set(topics or ())),
            "since_ms": None if since is None else parse_time(since, now_ms, "--since"),
            "until_ms": None if until is None else parse_time(until, now_ms, "--until"),
        }
        settings = pairs("--conf", conf)
        places = [storage_at("STORE_DIR", store, storage_options, storage_file) for store in stores]
        target = storage_at("--to", to, storage_options, storage_file)
        made = _run(places, target, runner, master, settings, choice, quiet=json)
    except (KeroloxError, OSError) as error:
        say_error(error, json)
        raise typer.Exit(2) from error
    from kerolox.pipeline.audit.audit import document

    out = output(json)
    page = target.name("report.html")
    out.show({"report": page, **document(made)}, *_tables(made, page))
    out.note(made.headline)
    raise typer.Exit(1 if made.problems else 0)


def _run(
    stores: list[Storage],
    to: Storage,
    kind: RunnerKind,
    master: str,
    conf: dict[str, str],
    choice: dict[str, Any],
    *,
    quiet: bool,
) -> Audit:
    from rich.progress import DownloadColumn

    from kerolox.spark import session

    with session.spark_packages():
        from kerolox.pipeline.audit.audit import audit, check_request
    session.settings(master)
    check_request(stores, to, **choice)  # raises before Spark starts
    bar = bars(DownloadColumn(binary_units=True), quiet=quiet, transient=True)
    interrupted = "interrupted; no report was written"
    with spark_errors(lambda: interrupted, lambda why: f"the audit failed: {why}"), bar:
        task = bar.add_task("starting", total=None)

        def progress(done: int, total: int) -> None:
            words = "comparing queues and keys" if done == total else "reading logs"
            bar.update(task, description=words, completed=done, total=total)

        with started(kind, "kerolox-audit", master, conf) as runner:
            return audit(runner, stores, to, progress=progress, **choice)


def _tables(made: Audit, page: str) -> list[OutputTable]:
    from kerolox.pipeline.audit.finding_kinds import KINDS

    rows = [
        ("messages", f"{made.messages:,} in {len(made.topics)} topics, {size_text(made.bytes_read)} of log"),
        ("checksums", f"{made.bodies:,}"),
        ("queue entries", f"{made.entries:,} in {made.queues:,} queues are correct"),
        ("half messages", f"{made.halves:,}"),
        ("time", f"{made.seconds:.1f} s on {made.runner}"),
        ("report", page),
    ]
    tables = [OutputTable(("audit", ", ".join(store.label for store in made.stores)), rows)]
    found = [
        (kind.title, made.findings.count(kind), (made.findings.problems(kind) or [{}])[0].get("what"))
        for kind in KINDS
        if made.findings.count(kind)
    ]
    if found:
        tables.append(OutputTable(("problems", "count", "the first one"), found, title="findings"))
    return tables
