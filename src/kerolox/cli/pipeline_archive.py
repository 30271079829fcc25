"""``kerolox pipeline archive``"""

from __future__ import annotations

import signal
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kerolox.cli.catalog_options import (
    CatalogName,
    CatalogOptions,
    CatalogUri,
    IcebergName,
    Warehouse,
    catalog_place,
    check_one,
)
from kerolox.cli.nameservers import DEFAULT_ADDRESS, NameServerOption
from kerolox.cli.output import JsonFlag, OutputTable, one_line_errors, output, say
from kerolox.cli.pipeline_job import (
    INTERRUPTED,
    ConfOption,
    MasterOption,
    RunnerKind,
    RunnerOption,
    started,
)
from kerolox.cli.progress import bars
from kerolox.cli.storage_options import (
    StorageFile,
    StorageOptions,
    pairs,
    read_storage_options,
    storage_at,
)
from kerolox.errors import OptionError
from kerolox.sizes import size_text
from kerolox.times import parse_span

if TYPE_CHECKING:
    from kerolox.pipeline.archive.archive import Archive
    from kerolox.pipeline.archive.summary import Summary
    from kerolox.pipeline.flows.definition import ArchiveFlow
    from kerolox.pipeline.lake.iceberg_catalog import CatalogPlace

EXAMPLE = (
    "Example: kerolox pipeline archive --topic orders,payments --to /data/archive --follow --interval 15m"
)
LINES_EVERY_S = 10.0  # if stderr is not a terminal


@one_line_errors
def archive(
    topics: Annotated[
        list[str],
        typer.Option("--topic", "-t", help="Topics, comma-separated. Repeatable.", metavar="T[,T2]"),
    ],
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            "--out",
            "-o",
            help="Folder or address of the archive: s3://BUCKET/FOLDER, gs://, abfs://. Created if missing.",
            metavar="ADDRESS",
        ),
    ] = None,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    delta: Annotated[
        bool,
        typer.Option("--delta", help="Write a Delta table. Needs: pip install 'kerolox\\[spark,delta]'."),
    ] = False,
    iceberg: IcebergName = None,
    catalog: CatalogName = None,
    catalog_uri: CatalogUri = None,
    catalog_options: CatalogOptions = None,
    warehouse: Warehouse = None,
    once: Annotated[
        bool,
        typer.Option("--once/--follow", help="Stop at the current end of the topics, or run continuously."),
    ] = True,
    interval: Annotated[
        str,
        typer.Option(help="Longest time between commits with --follow: 90s, 15m, 1h."),
    ] = "60s",
    group: Annotated[
        str, typer.Option(help="Consumer group to report the progress under.")
    ] = "kerolox_archive",
    rows_max: Annotated[
        int, typer.Option("--max-rows-per-file", help="Maximum number of messages per file.", min=1)
    ] = 1_000_000,
    join: Annotated[
        bool, typer.Option("--join/--no-join", help="Compact the small files of past hours.")
    ] = True,
    expire: Annotated[
        str | None,
        typer.Option(help="Delete hours that ended longer ago than this: 30d.", metavar="SPAN"),
    ] = None,
    compression: Annotated[
        str, typer.Option(help="Compression of files: zstd, lz4, snappy, gzip or none.")
    ] = "zstd",
    properties: Annotated[
        str, typer.Option(help="Properties column: map, string (as stored) or none. Fixed by the first run.")
    ] = "map",
    partition_by: Annotated[
        str,
        typer.Option(
            help="Partition columns: topic,date or topic,date,hour, then tag or property.NAME. Fixed by the "
            "first run.",
            metavar="COLUMNS",
        ),
    ] = "",
    options: Annotated[
        list[str] | None,
        typer.Option(
            "--option",
            help="Option of the rocketmq source: startingOffsets, tags, accessKey, failOnDataLoss, ... "
            "Repeatable.",
            metavar="NAME=VALUE",
        ),
    ] = None,
    storage_options: StorageOptions = None,
    storage_file: StorageFile = None,
    master: MasterOption = "local[*]",
    conf: ConfOption = None,
    runner: RunnerOption = RunnerKind.SPARK,
    json: JsonFlag = False,
) -> None:
    """Archive topics to Parquet files or a table, exactly once, partitioned by topic and hour of storage.

    The same command continues after the last commit of a run that was stopped or killed at any point: no
    message is lost or duplicated. spark.read.parquet(DIR) and other readers see only committed files. A
    second run adds new messages; without new messages it changes nothing.
    """
    from kerolox.pipeline.flows.definition import ArchiveFlow, Span

    every, age = (
        parse_span(interval, "--interval"),
        None if expire is None else parse_span(expire, "--expire"),
    )
    if every < ArchiveFlow.EVERY_S_MIN:
        raise OptionError("--interval", interval, f"{ArchiveFlow.EVERY_S_MIN:g}s or more")
    if age is not None and age < ArchiveFlow.EXPIRE_S_MIN:
        raise OptionError("--expire", expire, "1h or more")
    source = pairs("--option", options)
    check_one(to, iceberg, catalog, catalog_uri, catalog_options, warehouse)
    place: CatalogPlace | None = None
    if iceberg:
        if delta:
            raise OptionError("--iceberg", iceberg, "no --delta: choose one table format")
        place = catalog_place(catalog, catalog_uri, catalog_options, warehouse)
    else:
        storage_at("--to", to or "", storage_options, storage_file)
    chosen = ArchiveFlow(
        topics=topics,
        path=to or "",
        format="iceberg" if iceberg else "delta" if delta else "parquet",
        table=iceberg or "",
        every=Span(every),
        nameserver=nameserver,
        group=group,
        partition_by=[word.strip() for word in partition_by.split(",")] if partition_by else [],
        properties=properties,  # type: ignore[arg-type]  # Format checks it
        compression=compression,  # type: ignore[arg-type]
        max_rows_per_file=rows_max,
        compact=join,
        expire=None if age is None else Span(age),
        storage_options=read_storage_options(storage_options, storage_file),
        options=source,
    )
    to = to or f"{iceberg} in {place.text if place else ''}"
    summary, stopped = _run(chosen, place, once, runner, master, pairs("--conf", conf), quiet=json)
    rate = summary.rows / summary.seconds if summary.seconds else 0.0
    document = {
        "to": to,
        "format": "iceberg" if iceberg else "delta" if delta else "parquet",
        "group": group,
        "messages": summary.rows,
        "bytes": summary.bytes,
        "files": summary.files,
        "missing": summary.missing,
        "filesJoined": summary.files_joined,
        "filesExpired": summary.files_expired,
        "leftoverFilesRemoved": summary.swept.files,
        "leftoverBytesRemoved": summary.swept.bytes,
        "commits": summary.rounds,
        "seconds": round(summary.seconds, 3),
        "runner": summary.runner,
        "messagesPerSecond": round(rate),
        "complete": not stopped or not once,
        "unreachable": summary.unreachable,
        "topics": {
            name: {"messages": t.rows, "bytes": t.bytes, "files": t.files, "missing": t.missing}
            for name, t in summary.topics.items()
        },
    }
    rows = [
        (name, f"{t.rows:,}", t.files, size_text(t.bytes), t.missing or None)
        for name, t in sorted(summary.topics.items())
    ]
    shown = output(json)
    if rows or json:
        shown.show(document, OutputTable(("topic", "messages", "files", "size", "missing"), rows))
    shown.note(_sentence(summary, rate, to))
    if summary.swept.files:
        size = size_text(summary.swept.bytes)
        say(f"removed {summary.swept.files} files ({size}) left by killed runs")
    if summary.files_expired:
        say(f"removed {summary.files_expired} files of hours that ended more than {expire} ago")
    if summary.missing:
        say(f"{summary.missing} messages expired before they were read; the commits list their topics")
    if summary.unreachable:
        say(f"unreachable now, archived later: {', '.join(summary.unreachable)}")
    if stopped and once:
        say("interrupted. Commits are kept. Run the same command again to continue")
        raise typer.Exit(INTERRUPTED)


def _run(
    chosen: ArchiveFlow,
    place: CatalogPlace | None,
    once: bool,
    kind: RunnerKind,
    master: str,
    conf: dict[str, str],
    *,
    quiet: bool,
) -> tuple[Summary, bool]:
    from kerolox.pipeline.archive.tasks import ArchiveTasks, check_shared
    from kerolox.pipeline.flows.archive_flow import archive_of, archive_options
    from kerolox.spark import session
    from kerolox.spark.source.options import read_wanted

    source = archive_options(chosen.nameserver, chosen)
    wanted = read_wanted(source, "batch")  # raises for invalid options before Spark starts
    progress = ArchiveProgress(quiet)

    def on_round(summary: Summary, left: int) -> None:
        progress.told(summary, left)
        interrupts.check()

    tasks = ArchiveTasks()
    run = archive_of(chosen, wanted, tasks, place, on_round=on_round)
    with progress, _interrupts() as interrupts:
        # Raises for errors before a JVM starts. The option retryForMs may set how long to wait for servers.
        session.settings(master)
        run.look(patient="retryForMs" in source)
        with run:
            run.check()
            try:
                with started(kind, "kerolox-archive", session.with_retries(master), conf) as runner:
                    interrupts.install()  # again, because PySpark has replaced the handlers
                    interrupts.archive = run
                    tasks.runner, run.cores, run.summary.runner = runner, runner.cores, runner.name
                    if not runner.is_here:
                        check_shared(runner, run.destination.storage)
                    progress.begins()
                    if once:
                        run.once()
                    else:
                        run.follow(interrupts.wait, float(chosen.every))
            except KeyboardInterrupt:
                return run.told(), True
            finally:
                interrupts.ignore()
                session.stop()
        return run.told(), False


class Interrupts:
    """Handlers of Ctrl-C and SIGTERM, which stop the run at once, but never during a commit."""

    def __init__(self) -> None:
        self.archive: Archive | None = None
        self._told = False
        self._before: dict[int, Any] = {}

    def install(self) -> None:
        for number in (signal.SIGINT, signal.SIGTERM):
            before = signal.signal(number, self._handle)
            self._before.setdefault(number, before)

    def ignore(self) -> None:
        """Ignore further signals during the shutdown."""
        for number in self._before:
            signal.signal(number, signal.SIG_IGN)

    def restore(self) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _handle(self, number: int, frame: FrameType | None) -> None:
        self._told = True
        if self.archive is None or not self.archive.is_committing:
            raise KeyboardInterrupt

    def check(self) -> None:
        if self._told:
            raise KeyboardInterrupt

    def wait(self, seconds: float) -> bool:
        """Sleep, then return True if a signal has arrived."""
        import time

        if not self._told:
            time.sleep(seconds)
        return self._told


@contextmanager
def _interrupts() -> Iterator[Interrupts]:
    made = Interrupts()
    made.install()
    try:
        yield made
    finally:
        made.restore()


class ArchiveProgress:
    """Progress: a bar on a terminal, otherwise lines; nothing with ``quiet``."""

    def __init__(self, quiet: bool) -> None:
        from rich.progress import MofNCompleteColumn, TextColumn

        from kerolox.clock import SYSTEM_CLOCK

        self._bar = bars(MofNCompleteColumn(), TextColumn("{task.fields[rate]}"), quiet=quiet)
        self._lines = self._bar.disable and not quiet
        self._task = self._bar.add_task("Spark starts", total=None, rate="")
        self._now_s = SYSTEM_CLOCK.monotonic_s
        self._began_s = self._said_s = self._now_s()

    def __enter__(self) -> ArchiveProgress:
        self._bar.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._bar.stop()

    def begins(self) -> None:
        self._began_s = self._said_s = self._now_s()
        self._bar.update(self._task, description="archive")

    def told(self, summary: Summary, left: int) -> None:
        now_s = self._now_s()
        rate = f"{summary.rows / max(1e-9, now_s - self._began_s):,.0f}/s" if summary.rows else ""
        self._bar.update(self._task, completed=summary.rows, total=summary.rows + left, rate=rate)
        if self._lines and now_s - self._said_s >= LINES_EVERY_S:
            self._said_s = now_s
            say(f"{summary.rows:,} messages archived, {left:,} left, {rate}")


def _sentence(summary: Summary, rate: float, to: str) -> str:
    if not summary.rows:
        return f"No new messages for {to}."
    files = "1 file" if summary.files == 1 else f"{summary.files:,} files"
    joined = f"; {summary.files_joined} small files compacted" if summary.files_joined else ""
    return (
        f"{summary.rows:,} messages in {files} ({size_text(summary.bytes)}) in {summary.seconds:.1f} s "
        f"on {summary.runner}, {rate:,.0f} per second{joined}: {to}"
    )
