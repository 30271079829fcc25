"""``kerolox store``: inspect, verify and repair store files offline."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

import typer

from kerolox.cli.output import (
    JsonFlag,
    Output,
    OutputTable,
    command,
    echo,
    json_text,
    output,
    say_error,
)
from kerolox.errors import KeroloxError, OptionError
from kerolox.times import time_text

if TYPE_CHECKING:
    from kerolox.store.disk.lock import StoreLock
    from kerolox.store.offline.layout import Layout
    from kerolox.store.offline.verify import Report
    from kerolox.store.options import StoreOptions
    from kerolox.store.repair import Repair

app = typer.Typer(help="Inspect, verify and repair store files offline.", no_args_is_help=True)


ConfigFileOption = Annotated[
    Path | None,
    typer.Option(
        "--config-file",
        "-c",
        help="The broker's configuration file. Required if it sets file sizes or paths.",
    ),
]
StoreDirectory = Annotated[Path, typer.Argument(help="Directory of the store, or its parent.", metavar="DIR")]

_SHOWN = 100
_COLUMNS = {  # columns of tables; JSON has all fields
    "log": (
        "offset",
        "record",
        "size",
        "storeTimestamp",
        "topic",
        "queueId",
        "queueOffset",
        "properties",
        "body",
    ),
}


@command(app, "inspect", "kerolox store inspect store/commitlog/00000000000000000000 --count 5")
def inspect(
    path: Annotated[Path, typer.Argument(help="File of a store, or its directory for a summary.")],
    kind: Annotated[
        str | None, typer.Option(help="Kind of the file: log, queue, index, ... Default: by its name.")
    ] = None,
    start: Annotated[
        int | None,
        typer.Option("--from", help="First row: log offset, queue offset, or number of an entry."),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(help=f"Number of rows; 0: all. Default: {_SHOWN}, or all with --json."),
    ] = None,
    slots: Annotated[
        int | None, typer.Option(help="Number of slots of an index file (maxHashSlotNum).")
    ] = None,
    config_file: ConfigFileOption = None,
    json: JsonFlag = False,
) -> None:
    """Print the contents of a store file: messages, queue entries, keys or times.

    With --json, one object per line.
    """
    from kerolox.store.errors import FileMissing
    from kerolox.store.offline.inspect import Kind, kind_of, rows

    if path.is_dir():
        _show_summary(layout_of(path, config_file), output(json))
        return
    if not path.exists():
        raise FileMissing(f"{path} does not exist. Give a file of a store, or its directory.")
    if kind is None:
        known = kind_of(str(path))
    else:
        try:
            known = Kind(kind)
        except ValueError:
            raise OptionError("--kind", kind, ", ".join(kind.value for kind in Kind)) from None
    found = rows(str(path), known, start, slots)
    if json:
        _print_lines(found, count or 0)
    else:
        _print_table(found, known.value, _SHOWN if count is None else count)


@app.command(
    "verify", epilog="Example: kerolox store verify store   (exit code 0: clean, 1: damaged, 2: not verified)"
)
def verify(
    directory: StoreDirectory,
    config_file: ConfigFileOption = None,
    live: Annotated[bool, typer.Option("--live", help="Verify a store that is in use.")] = False,
    queues: Annotated[bool, typer.Option(help="Check the consume queues.")] = True,
    index: Annotated[bool, typer.Option(help="Check the key index.")] = True,
    json: JsonFlag = False,
) -> None:
    """Verify every record, queue entry and key of a store. Changes nothing."""
    from kerolox.store.offline.verify import verify as look

    try:
        layout = layout_of(directory, config_file)
        with _not_in_use(layout, live=live), progress_of("verify") as progress:
            report = look(layout, live=live, queues=queues, index=index, progress=progress)
    except (KeroloxError, OSError) as error:
        say_error(error, json)
        raise typer.Exit(2) from error
    _show_report(report, output(json))
    raise typer.Exit(0 if report.clean else 1)


@command(app, "repair", "kerolox store repair store --skip 1073742000")
def repair(
    directory: StoreDirectory,
    queues: Annotated[bool, typer.Option("--queues", help="Rebuild the consume queues.")] = False,
    index: Annotated[bool, typer.Option("--index", help="Rebuild the key index.")] = False,
    tables: Annotated[
        bool, typer.Option("--tables", help="Rebuild missing or damaged tables, empty without a source.")
    ] = False,
    skip: Annotated[
        int | None, typer.Option(help="Skip the damage at this log offset and keep the messages after it.")
    ] = None,
    cut: Annotated[int | None, typer.Option(help="Truncate the log at this offset.")] = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt.")] = False,
    config_file: ConfigFileOption = None,
    json: JsonFlag = False,
) -> None:
    """Repair a store: rebuild its queues and key index from the log, or its tables.

    Without --queues or --index, both are rebuilt. --skip and --cut repair the log first. Replaced files are
    renamed, not deleted.
    """
    from kerolox.store.disk.files import Files
    from kerolox.store.disk.lock import StoreLock
    from kerolox.store.repair import Repair

    if skip is not None and cut is not None:
        raise OptionError("--cut", cut, "either --skip or --cut")
    layout = layout_of(directory, config_file)
    if not queues and not index and not (tables and skip is None and cut is None):
        queues, index = True, layout.index_enabled is not False
    out = output(json)
    with StoreLock(Files(), layout.root):
        done: dict[str, Any] = {"store": layout.root}
        under_way = Repair(layout)
        if under_way.interrupted is not None:
            out.note(
                f"A repair was interrupted ({under_way.interrupted or 'rebuild'}). This one continues it."
            )
        if under_way.interrupted is not None or skip is not None or cut is not None:
            queues, index = True, layout.index_enabled is not False
        if skip is not None:
            done["skip"] = _skip(under_way, layout, skip, out, yes)
        if cut is not None:
            done["cut"] = _cut(under_way, layout, cut, out, yes)
        if queues or index:
            answered = yes or skip is not None or cut is not None
            done["rebuilt"] = _rebuild(under_way, layout, queues, index, out, answered)
        if tables:
            done["tables"] = _mend_tables(layout, out, yes)
    if json:
        out.show(done)


def _skip(repair: Repair, layout: Layout, offset: int, out: Output, yes: bool) -> dict[str, Any]:
    from kerolox.store.offline.mend import plan_skip

    plan = plan_skip(layout, offset)
    if not plan.pieces:
        out.note(f"the damage at {offset} was skipped before")
        return {"offset": offset, "lostBytes": 0, "saved": None}
    records = sum(len(piece.data) for piece in plan.pieces)
    out.note(
        f"The log is damaged at {offset}: {plan.what}. {plan.lost_bytes} bytes, up to {plan.valid_from}, are "
        f"lost. They will be saved to {layout.path(f'damaged-{offset}.bin')} and replaced by {records} "
        "filler records, which consumers do not see. Then the queues and the index are rebuilt from the log."
    )
    ask("Skip the damage?", yes)
    saved = repair.skip(plan)
    out.note(f"Skipped {plan.lost_bytes} bytes at {offset}" + (f", saved in {saved}." if saved else "."))
    return {"offset": offset, "validFrom": plan.valid_from, "lostBytes": plan.lost_bytes, "saved": saved}


def _cut(repair: Repair, layout: Layout, offset: int, out: Output, yes: bool) -> dict[str, Any]:
    from kerolox.store.offline.mend import plan_cut

    plan = plan_cut(layout, offset)
    if plan is None:
        out.note(f"the log ends at {offset} already")
        return {"offset": offset, "records": 0, "putAside": []}
    since = f", stored from {time_text(plan.first_ms)} on," if plan.first_ms else ""
    out.note(
        f"The log will be truncated at {offset}: {plan.records} messages{since} of {plan.bytes_used} bytes "
        f"are removed. {len(plan.later_files)} whole files and the rest of {plan.path} are moved aside. "
        "Then the queues and the index are rebuilt from the log."
    )
    ask("Truncate the log?", yes)
    put = repair.cut(plan)
    out.note(f"The log ends at {offset}. Moved aside: {', '.join(put) or 'nothing'}.")
    return {"offset": offset, "records": plan.records, "putAside": put}


def _rebuild(
    repair: Repair, layout: Layout, queues: bool, index: bool, out: Output, yes: bool
) -> dict[str, Any]:
    import msgspec

    from kerolox.store.offline.mend import open_log

    what = " and ".join(word for word, wanted in (("consume queues", queues), ("key index", index)) if wanted)
    segments = open_log(layout)
    out.note(
        f"The {what} will be rebuilt from {len(segments.all)} log files, from {segments.min_offset} to at "
        f"most {segments.max_offset}. The old files are renamed to <name>.before-repair-<time>."
    )
    ask(f"Rebuild the {what}?", yes)
    with progress_of("rebuild") as progress:
        made = repair.rebuild(queues=queues, index=index, progress=progress)
    parts = [f"{made.records} messages up to {made.log_end}"]
    if queues:
        parts.append(f"{made.queues} queues ({made.kept_queues} without messages, kept for their offset)")
    if made.holes:
        parts.append(f"{made.holes} lost messages marked in their queues")
    if made.left_out:
        parts.append(f"{made.left_out} messages of deleted topics left out")
    if index:
        parts.append(f"{made.index_files} index files")
    out.note(
        f"Done in {made.seconds:.1f} s: {', '.join(parts)}. Moved aside: {', '.join(made.put_aside) or '-'}."
    )
    document: dict[str, Any] = msgspec.to_builtins(made)
    return document


def _mend_tables(layout: Layout, out: Output, yes: bool) -> list[dict[str, Any]]:
    import msgspec

    from kerolox.store.disk.files import Files
    from kerolox.store.offline.tables import mend_tables

    out.note(
        f"Missing or unreadable tables in {layout.path('config')} will be rebuilt: topics from the queues, "
        "and groups from offsets and retry topics, both with default settings. Offsets and delay progress "
        "start empty: groups start where their consumers choose, and delayed messages in the log are "
        "delivered again."
    )
    ask("Rebuild the tables?", yes)
    mended = mend_tables(layout, Files())
    for table in mended:
        aside = f" Moved aside: {', '.join(table.put_aside)}." if table.put_aside else ""
        out.note(f"{table.path}: {table.what}.{aside}")
    if not mended:
        out.note("All tables exist and are readable. Nothing was changed.")
    documents: list[dict[str, Any]] = msgspec.to_builtins(mended)
    return documents


def ask(question: str, yes: bool) -> None:
    if yes:
        return
    if not sys.stdin.isatty():
        raise OptionError(
            "--yes", "missing", "--yes, because stdin is not a terminal for the confirmation prompt"
        )
    if not typer.confirm(question, err=True):
        echo("kerolox: nothing was changed", err=True)
        raise typer.Exit(1)


# --- shared ------------------------------------------------------------------------------------------


def layout_of(directory: Path, config_file: Path | None) -> Layout:
    from kerolox.store.offline.layout import find_layout

    return find_layout(directory, options_of(config_file))


def options_of(config_file: Path | None) -> StoreOptions | None:
    from kerolox.cli.serving import load_options
    from kerolox.store.options import StoreOptions

    return None if config_file is None else load_options(StoreOptions, config_file, {}).options


@contextmanager
def _not_in_use(layout: Layout, *, live: bool) -> Iterator[None]:
    """Hold the store's lock, if one exists, while a command reads the store."""
    from kerolox.store.disk.files import Files
    from kerolox.store.disk.lock import StoreLock
    from kerolox.store.errors import FileAccessDenied, ReadOnlyDisk, StoreLocked

    lock: StoreLock | None = None
    if not live and Path(layout.path("lock")).exists():
        lock = StoreLock(Files(), layout.root)
        try:
            lock.take()
        except (FileAccessDenied, ReadOnlyDisk):
            lock = None  # a read-only store cannot be locked; reading it is allowed
        except StoreLocked as error:
            raise _in_use(layout, error) from error
    try:
        yield
    finally:
        if lock is not None:
            lock.release()


def _in_use(layout: Layout, error: Any) -> KeroloxError:
    return KeroloxError(
        f"{layout.root} is in use by {error.holder}. Stop that process, or use --live: data that is not yet "
        "on disk is then not reported as damage."
    )


@contextmanager
def progress_of(what: str) -> Iterator[Callable[[int, int], None]]:
    """Show progress as a bar on a terminal, otherwise as periodic lines."""
    from kerolox.clock import SYSTEM_CLOCK

    if sys.stderr.isatty():
        from rich.console import Console
        from rich.progress import Progress as Bar

        with Bar(console=Console(stderr=True), transient=True) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total)
        return
    last_s = SYSTEM_CLOCK.monotonic_s()

    def line(done: int, total: int) -> None:
        nonlocal last_s
        now_s = SYSTEM_CLOCK.monotonic_s()
        if now_s - last_s >= 5:
            last_s = now_s
            echo(f"{what}: {done >> 20} of at most {total >> 20} MiB", err=True)

    yield line


# --- printing ----------------------------------------------------------------------------------------


def _print_lines(found: Iterator[dict[str, Any]], count: int) -> None:
    from itertools import islice

    try:
        for row in islice(found, count) if count else found:
            sys.stdout.write(json_text(row) + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        _stop_quietly()


def _stop_quietly() -> NoReturn:
    """End without an error when the reader of a pipe has closed it."""
    import os

    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    raise typer.Exit(0)


def _print_table(found: Iterator[dict[str, Any]], kind: str, count: int) -> None:
    from itertools import islice

    rows = list(islice(found, count)) if count else list(found)
    if not rows:
        echo("no entries", err=True)
        return
    heads = [row for row in rows if row.get("index") == "header"]
    rows = [row for row in rows if row.get("index") != "header"]
    tables = [
        OutputTable(tuple(head), [[_cell(name, value) for name, value in head.items()]]) for head in heads
    ]
    columns = _COLUMNS.get(kind) or tuple(dict.fromkeys(name for row in rows for name in row))
    if any("problem" in row for row in rows) and "problem" not in columns:
        columns = (*columns, "problem")
    if rows:
        tables.append(
            OutputTable(columns, [[_cell(name, row.get(name)) for name in columns] for row in rows])
        )
    try:
        output(False).show(None, *tables)
        if count and next(found, None) is not None:
            echo(
                f"first {count} rows only. Show all with --count 0, or start elsewhere with --from", err=True
            )
    except BrokenPipeError:
        _stop_quietly()


def _cell(name: str, value: Any) -> Any:
    if isinstance(value, int) and (
        name.endswith(("Timestamp", "Ms")) or name in ("logFlushed", "queuesFlushed")
    ):
        return time_text(value)
    if isinstance(value, dict):
        return " ".join(f"{key}={item}" for key, item in value.items())
    if isinstance(value, str):
        return value.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
    return value


def _show_summary(layout: Layout, out: Output) -> None:
    from kerolox.store.offline.summary import summarize

    found = summarize(layout)
    log, index, checkpoint = found["log"], found["index"], found["checkpoint"]
    rows = [
        ("state", found["state"]),
        (
            "log",
            f"{log['from']} to {log['toAtLeast']} at least, {log['files']} files of {log['fileBytes']} bytes",
        ),
        ("oldest message", time_text(log["firstStoreTimestamp"])),
        ("log flushed", time_text(checkpoint["logFlushed"])),
        ("queues flushed", time_text(checkpoint["queuesFlushed"])),
        ("index files", f"{len(index)} with {sum(file['entries'] for file in index)} keys"),
        *(("missing in the log", f"{low} to {high}") for low, high in log["gaps"]),
        *(("problem", problem) for problem in found["problems"]),
    ]
    queues = [
        [queue[name] for name in ("topic", "queue", "min", "max", "files")] for queue in found["queues"]
    ]
    out.show(
        found,
        OutputTable(("store", found["store"]), rows),
        OutputTable(
            ("topic", "queue", "min", "max", "files"), queues, empty="the store has no consume queues"
        ),
    )


def _show_report(report: Report, out: Output) -> None:
    import msgspec

    document = msgspec.to_builtins(report)
    rate = report.records / report.seconds if report.seconds else 0
    document["recordsPerSecond"] = round(rate)
    document["clean"] = report.clean
    rows = [
        ("log", f"{report.log_min} to {report.log_end}, {report.records} messages"),
        ("queues", f"{report.queues} with {report.queue_entries} entries in order"),
        ("index", f"{report.index_files} files with {report.index_entries} keys"),
        ("speed", f"{report.seconds:.1f} s, {rate:.0f} messages a second"),
    ]
    tables = [OutputTable(("store", report.root), rows)]
    for title, found in (("findings", report.findings), ("notes", report.notes)):
        if found:
            cells = [(finding.kind, finding.path, finding.what, finding.next) for finding in found]
            tables.append(OutputTable(("what", "where", "found", "next step"), cells, title=title))
    out.show(document, *tables)
    if report.not_shown:
        out.note(f"{report.not_shown} further findings are not shown")
    out.note("the store is clean" if report.clean else f"{len(report.findings)} findings")
