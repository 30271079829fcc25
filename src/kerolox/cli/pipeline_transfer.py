"""``kerolox pipeline split`` and ``kerolox pipeline merge``"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kerolox.cli.output import JsonFlag, OutputTable, one_line_errors, output
from kerolox.cli.pipeline_job import ConfOption, MasterOption, RunnerKind, RunnerOption, ToOption, run_job
from kerolox.cli.store import ConfigFileOption, layout_of

if TYPE_CHECKING:
    from kerolox.pipeline.transfer.transfer import Transferred
    from kerolox.store.offline.layout import Layout

SPLIT_EXAMPLE = (
    "Example: kerolox pipeline split /data/broker-a/store --topic orders --to /data/broker-b/store"
)
MERGE_EXAMPLE = (
    "Example: kerolox pipeline merge /data/broker-a/store /data/broker-b/store --to /data/one/store"
)

StoreHostOption = Annotated[
    str,
    typer.Option(
        help="Address of the new store's broker, which is part of the offset ids of messages.",
        metavar="IP:PORT",
    ),
]
OnDamageOption = Annotated[
    str,
    typer.Option(help="Action at damage in a log: fail; skip (continue after it and mark lost offsets)."),
]


@one_line_errors
def split(
    store: Annotated[
        Path, typer.Argument(help="Directory of a kerolox or Apache store.", metavar="STORE_DIR")
    ],
    to: ToOption,
    topic: Annotated[list[str], typer.Option(help="Topic to copy. Repeatable.")],
    store_host: StoreHostOption = "",
    on_damage: OnDamageOption = "fail",
    config_file: ConfigFileOption = None,
    master: MasterOption = "local[*]",
    conf: ConfOption = None,
    runner: RunnerOption = RunnerKind.SPARK,
    json: JsonFlag = False,
) -> None:
    """Copy topics of a store into a new store, for another broker.

    Messages keep their queues and offsets, so that consumers continue where they are. Queues, key index,
    topic settings and the consuming groups with their progress are copied, too. Stop the broker first: the
    source store is only read, and the topic stays in it until you delete it. After an interruption, the same
    command continues.
    """
    _run(
        "kerolox-split",
        [layout_of(store, config_file)],
        to,
        topic,
        store_host,
        on_damage,
        master,
        conf,
        runner,
        json,
    )


@one_line_errors
def merge(
    sources: Annotated[
        list[str],
        typer.Argument(
            help="Directories of kerolox or Apache stores; archives in a folder or at an address such as "
            "s3://BUCKET/FOLDER.",
            metavar="SOURCE...",
        ),
    ],
    to: ToOption,
    topic: Annotated[
        list[str] | None, typer.Option(help="Only this topic. Repeatable. Default: all user topics.")
    ] = None,
    store_host: StoreHostOption = "",
    on_damage: OnDamageOption = "fail",
    master: MasterOption = "local[*]",
    conf: ConfOption = None,
    runner: RunnerOption = RunnerKind.SPARK,
    json: JsonFlag = False,
) -> None:
    """Merge the stores of several brokers, or archives, into one store.

    The queues of a topic that several sources have are appended: those of the second store after those of the
    first. Messages keep their order and offsets within a queue; the mapping of queues is printed and stored
    in kerolox.mapping.json. Consumer progress is copied. Internal data of brokers is not: pending delayed
    messages and open transactions. Stop the brokers first; the stores are only read. After an interruption,
    the same command continues.
    """
    stores, archives = _told_apart(sources)
    from kerolox.store.offline.layout import find_layout

    instead = "put the log and the queues below one directory: merge has no option for separate ones."
    layouts = [find_layout(store, elsewhere=instead) for store in stores]
    _run("kerolox-merge", layouts, to, topic, store_host, on_damage, master, conf, runner, json, archives)


def _told_apart(sources: list[str]) -> tuple[list[Path], list[str]]:
    """Return the sources that are stores, and those that are archives."""
    from kerolox.spark.session import spark_packages

    with spark_packages():
        from kerolox.pipeline.transfer.archives import is_archive
    archives = [source for source in sources if is_archive(source)]
    return [Path(source) for source in sources if source not in archives], archives


def _run(
    app: str,
    layouts: list[Layout],
    to: Path,
    topics: list[str] | None,
    store_host: str,
    on_damage: str,
    master: str,
    conf: list[str] | None,
    runner: RunnerKind,
    json: bool,
    archives: Sequence[str] = (),
) -> None:
    from kerolox.spark.session import spark_packages

    with spark_packages():
        from kerolox.pipeline.rebuild.rebuild import not_in_use
        from kerolox.pipeline.transfer import transfer as made_by
    request = made_by.TransferRequest(
        layouts,
        str(to.absolute()),
        archives=tuple(archives),
        topics=tuple(sorted(set(topics or ()))),
        store_host=store_host,
        on_damage=on_damage,
    )
    with ExitStack() as locks:
        for layout in layouts:
            locks.enter_context(not_in_use(layout))
        made = made_by.finished(request) or run_job(
            app,
            master,
            conf,
            runner,
            lambda runner, steps: made_by.transfer(runner, request, progress=steps),
            before=lambda: made_by.check_request(request),
        )
    _show(made, json)


def _show(made: Transferred, json: bool) -> None:
    import msgspec

    rows = [
        ("messages", f"{made.messages:,} in {made.log_end - made.log_begin:,} bytes of log"),
        ("queues", f"{made.queues:,}"),
        ("keys", f"{made.keys:,}"),
        ("groups with progress", f"{made.groups:,}"),
        ("lost messages", f"{made.holes:,}" if made.holes else "none"),
        ("damage", f"{len(made.damage)} places" if made.damage else "none"),
        ("time", f"{made.seconds:.1f} s on {made.runner}"),
        ("directory", made.to),
    ]
    if made.deleted:
        rows.insert(1, ("of deleted topics", f"{made.deleted:,} messages left out"))
    rows += [(f"not copied: {topic}", f"{count:,} messages") for topic, count in made.left_out.items()]
    moves = [
        (each.source, each.topic, each.queue_id, each.new_queue_id, each.messages, each.end)
        for each in made.mapping
    ]
    output(json).show(
        msgspec.to_builtins(made),
        OutputTable(("new store", " + ".join(made.sources)), rows),
        OutputTable(("store", "topic", "queue", "new queue", "messages", "next offset"), moves),
    )
