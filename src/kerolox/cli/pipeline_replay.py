"""``kerolox pipeline replay``"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kerolox.cli.catalog_options import CatalogName, CatalogOptions, CatalogUri, catalog_place
from kerolox.cli.nameservers import DEFAULT_ADDRESS, NameServerOption, split_addresses
from kerolox.cli.output import JsonFlag, OutputTable, one_line_errors, output, say
from kerolox.cli.pipeline_job import (
    ConfOption,
    MasterOption,
    SinceOption,
    TopicsOption,
    UntilOption,
    spark_errors,
)
from kerolox.cli.progress import bars
from kerolox.cli.storage_options import StorageFile, StorageOptions, pairs, read_storage_options
from kerolox.errors import OptionError
from kerolox.times import parse_time

if TYPE_CHECKING:
    from kerolox.pipeline.replay.plan import ReplayChoice, ReplayPlan
    from kerolox.pipeline.replay.replay import Replayed

EXAMPLE = (
    "Example: kerolox pipeline replay /data/archive --to-topic orders-2 --since 2h --tags paid --rate 500/s"
)


@one_line_errors
def replay(
    source: Annotated[
        str,
        typer.Argument(
            help="Archive or Delta table, in a folder or at an address such as s3://BUCKET/FOLDER; Iceberg "
            "table as iceberg:NAMESPACE.TABLE; or a broker's store directory."
        ),
    ],
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    to_topic: Annotated[
        str | None, typer.Option(help="Target topic. Default: the original topic of each message.")
    ] = None,
    topic_map: Annotated[
        list[str] | None, typer.Option(help="Target for one topic. Repeatable.", metavar="OLD=NEW")
    ] = None,
    topics: TopicsOption = None,
    since: SinceOption = None,
    until: UntilOption = None,
    tags: Annotated[str | None, typer.Option(help="Only messages with one of these tags: 'a || b'.")] = None,
    keys: Annotated[str | None, typer.Option(help="Only messages with one of these keys: 'a,b'.")] = None,
    where: Annotated[
        str | None, typer.Option(help="SQL condition: \"properties['region'] = 'north'\".")
    ] = None,
    rate: Annotated[str, typer.Option(help="Maximum messages per second; 0: unlimited.")] = "0",
    id: Annotated[
        str | None, typer.Option("--id", help="Id of the replay. That of an earlier replay continues it.")
    ] = None,
    state: Annotated[
        Path | None, typer.Option(help="Folder of replay state. Default: ~/.local/state/kerolox/replays.")
    ] = None,
    catalog: CatalogName = None,
    catalog_uri: CatalogUri = None,
    catalog_options: CatalogOptions = None,
    storage_options: StorageOptions = None,
    storage_file: StorageFile = None,
    master: MasterOption = "local[*]",
    conf: ConfOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only show what would be sent.")] = False,
    json: JsonFlag = False,
) -> None:
    """Resend archived messages to topics, in queue order.

    Bodies, keys, tags and properties are kept. Every copy has the properties KEROLOX_REPLAY (the id of the
    replay), KEROLOX_REPLAY_FROM (the source position) and KEROLOX_REPLAY_BORN (the original send time). To
    continue a replay that was stopped or killed, run the same command with its --id; no message is sent
    twice.
    """
    from kerolox.clock import SYSTEM_CLOCK
    from kerolox.pipeline.replay import replay as work
    from kerolox.pipeline.replay.plan import ReplayChoice, default_state

    if to_topic and topic_map:
        raise OptionError("--topic-map", " ".join(topic_map), "either --to-topic or --topic-map")
    now_ms = SYSTEM_CLOCK.wall_ms()
    choice = ReplayChoice(
        topics=tuple(sorted(topics or ())),
        since=since or "",
        until=until or "",
        since_ms=None if since is None else parse_time(since, now_ms, "--since"),
        until_ms=None if until is None else parse_time(until, now_ms, "--until"),
        tags=tuple(sorted(tag.strip() for tag in (tags or "").split("||") if tag.strip())),
        keys=tuple(sorted(key.strip() for key in (keys or "").split(",") if key.strip())),
        where=where or "",
        to_topic=to_topic or "",
        topic_map=work.parse_map(topic_map or []),
    )
    how = {
        "id": id or work.new_id(now_ms),
        "state": state or default_state(),
        "rate": work.parse_rate(rate),
        "dry_run": dry_run,
        "storage_options": read_storage_options(storage_options, storage_file),
        "catalog": catalog_place(catalog, catalog_uri, catalog_options, None),
    }
    result = _run(source, nameserver, choice, master, pairs("--conf", conf), how, quiet=json)
    document = {
        "id": result.id,
        "dryRun": dry_run,
        "planned": result.planned,
        "sent": result.sent,
        "sentBefore": result.before,
        "repeated": result.repeated,
        "complete": result.is_complete,
        "stopped": result.stopped or None,
        "queues": result.queues,
    }
    rows = [
        (each["from"], each["to"], f"{each['first']} - {each['last']}", each["messages"], each["sent"])
        for each in result.queues
    ]
    output(json).show(
        document, OutputTable(("from", "to", "offsets", "messages", "sent now"), rows), _totals(result)
    )
    if not result.is_complete:
        why = "; ".join(result.stopped) or "the source no longer has some of the planned messages"
        say(f"stopped: {why}. {_go_on(result.id)}")
        raise typer.Exit(1)


def _run(
    source: str,
    nameserver: str,
    choice: ReplayChoice,
    master: str,
    conf: dict[str, str],
    how: dict[str, Any],
    *,
    quiet: bool,
) -> Replayed:
    from rich.progress import MofNCompleteColumn

    from kerolox import ClientOptions
    from kerolox.pipeline.replay.replay import check, replay
    from kerolox.spark import session

    cluster = ClientOptions(split_addresses(nameserver))
    session.settings(master)
    check(source, cluster, choice=choice, **how)  # raises before Spark starts
    bar = bars(MofNCompleteColumn(), quiet=quiet)
    planned = False

    def on_plan(plan: ReplayPlan) -> None:
        nonlocal planned
        planned = True
        bar.update(task, description=f"replay {plan.id}", total=plan.count)
        if bar.disable:
            say(f"replay {plan.id}: {plan.count} messages of {len(plan.queues)} queues")

    def stopped(why: str) -> str:
        return f"{why}. {_go_on(how['id']) if planned else 'Nothing was sent.'}"

    with spark_errors(lambda: stopped("interrupted"), lambda why: stopped(f"stopped: {why}"), 1), bar:
        task = bar.add_task("Spark starts", total=None)
        spark = session.session("kerolox-replay", session.with_retries(master), conf=conf)
        bar.update(task, description="counting messages")
        return replay(
            spark,
            source,
            cluster,
            choice=choice,
            on_plan=on_plan,
            on_progress=lambda done: bar.update(task, completed=done),
            **how,
        )


def _totals(result: Replayed) -> OutputTable:
    columns = (
        "replay",
        "would be sent" if result.dry_run else "planned",
        "sent now",
        "sent before",
        "repeated",
    )
    return OutputTable(columns, [(result.id, result.planned, result.sent, result.before, result.repeated)])


def _go_on(id: str) -> str:
    return f"Continue with the same command and --id {id}: messages already sent are skipped"
