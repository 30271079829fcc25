"""``kerolox pipeline rebuild``"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kerolox.cli.output import JsonFlag, OutputTable, one_line_errors, output
from kerolox.cli.pipeline_job import ConfOption, MasterOption, RunnerKind, RunnerOption, ToOption, run_job
from kerolox.cli.store import ConfigFileOption, layout_of

if TYPE_CHECKING:
    from kerolox.pipeline.rebuild.rebuild import RebuildResult

EXAMPLE = "Example: kerolox pipeline rebuild /data/broker-a/store --to /data/broker-a/rebuilt --in-place"


@one_line_errors
def rebuild(
    store: Annotated[
        Path, typer.Argument(help="Directory of a kerolox or Apache store.", metavar="STORE_DIR")
    ],
    to: ToOption,
    only: Annotated[
        list[str] | None,
        typer.Option("--only", help="Rebuild only the queues of this topic, without the index. Repeatable."),
    ] = None,
    low: Annotated[
        int | None,
        typer.Option("--from", help="Only messages from this log offset, the start of a record."),
    ] = None,
    high: Annotated[
        int | None, typer.Option("--to-offset", "--until", help="Only messages before this log offset.")
    ] = None,
    on_damage: Annotated[
        str,
        typer.Option(
            help="Action at damage in the log: fail; skip (continue after it and mark lost offsets); stop "
            "(end there)."
        ),
    ] = "fail",
    like: Annotated[
        str | None,
        typer.Option(
            help="Index format: kerolox, apache or apache-5.3 (and older). Default: that of the store's "
            "writer."
        ),
    ] = None,
    index: Annotated[bool, typer.Option(help="Rebuild the key index, too.")] = True,
    in_place: Annotated[
        bool,
        typer.Option("--in-place", help="Then replace the store's files; the old ones are moved aside."),
    ] = False,
    config_file: ConfigFileOption = None,
    master: MasterOption = "local[*]",
    conf: ConfOption = None,
    runner: RunnerOption = RunnerKind.SPARK,
    json: JsonFlag = False,
) -> None:
    """Rebuild the consume queues and the key index of a store from its commit log.

    The files are byte for byte those that the broker writes. Spark tasks each process a part of the log. Stop
    the broker first. Every task must be able to read the store and to write to DIR. After an interruption,
    the same command continues; for a finished rebuild, --in-place only replaces the files.
    """
    from kerolox.spark.session import spark_packages

    with spark_packages():
        from kerolox.pipeline.rebuild import rebuild as made_by
    layout = layout_of(store, config_file)
    request = made_by.RebuildRequest(
        layout,
        str(to.absolute()),
        topics=tuple(sorted(set(only or ()))),
        low=low,
        high=high,
        on_damage=on_damage,
        like=like,
        index=index and layout.index_enabled is not False,
    )
    if in_place:
        made_by.check_place(layout, request.to)
    with made_by.not_in_use(layout):
        done = made_by.finished(request)
        made = done or run_job(
            "kerolox-rebuild",
            master,
            conf,
            runner,
            lambda runner, steps: made_by.rebuild(runner, request, progress=steps),
            before=lambda: made_by.check_request(request),
        )
    if in_place:
        made = made_by.put_in_place(request, made)
    _show(made, json)


def _show(made: RebuildResult, json: bool) -> None:
    import msgspec

    from kerolox.pipeline.rebuild.rebuild import how_to_put_in_place

    out = output(json)
    rows = [
        ("log", f"{made.log_begin:,} to {made.log_end:,}, {made.records:,} records in {made.parts:,} parts"),
        ("queues", f"{made.queues:,} with {made.entries:,} entries in {made.queue_files:,} files"),
        ("index", f"{made.keys:,} keys in {len(made.index_files)} files" if made.index_files else "none"),
        ("lost messages", f"{made.holes:,}" if made.holes else "none"),
        ("damage", f"{len(made.damage)} places, {sum(d.valid_from - d.offset for d in made.damage):,} bytes")
        if made.damage
        else ("damage", "none"),
        ("time", f"{made.seconds:.1f} s on {made.runner}"),
        ("directory", made.to),
    ]
    if made.left_out:
        rows.insert(2, ("of deleted topics", f"{made.left_out:,} messages left out"))
    out.show(
        {**msgspec.to_builtins(made), "bytes": made.log_end - made.log_begin},
        OutputTable(("rebuild", made.store), rows),
    )
    if made.in_place:
        out.note(f"in place; old files: {' and '.join(made.put_aside) or 'none existed'}")
    elif made.whole:
        out.note("While the broker is stopped, replace the store's files with --in-place, or with:")
        for line in how_to_put_in_place(made):
            out.note(f"  {line}")
