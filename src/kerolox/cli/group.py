"""``kerolox group``"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from kerolox.cli import completion
from kerolox.cli.nameservers import DEFAULT_ADDRESS, NameServerOption, run_admin
from kerolox.cli.output import (
    JsonFlag,
    Output,
    OutputTable,
    column,
    command,
    output,
    row,
    table,
)
from kerolox.errors import OptionError
from kerolox.times import parse_time, time_text

if TYPE_CHECKING:
    from kerolox.client.admin.groups import GroupAdmin
    from kerolox.client.admin.results import Group, QueueProgress

app = typer.Typer(help="Manage consumer groups.", no_args_is_help=True)

GroupArgument = Annotated[str, typer.Argument(help="Name of the group.", autocompletion=completion.groups)]


T = TypeVar("T")


def _run(nameserver: str, work: Callable[[GroupAdmin], Coroutine[Any, Any, T]]) -> T:
    from kerolox.client.admin.groups import GroupAdmin

    return run_admin(nameserver, lambda admin: work(GroupAdmin(admin)))


@row
class GroupRow:
    """Consumer group and its settings."""

    group: str
    brokers: list[str] = column("brokers", len)
    consume_enabled: bool = column("may consume")
    orderly: bool
    retry_max: int = column("retries")
    disabled: dict[str, str] = column(None)


@command(app, "list", "kerolox group list")
def list_groups(
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    broker: Annotated[str | None, typer.Option(help="Name of the broker. Default: all brokers.")] = None,
    json: JsonFlag = False,
) -> None:
    """List consumer groups, with the number of brokers that have each."""
    groups = _run(nameserver, lambda groups: groups.list_groups(broker=broker))
    rows = [
        GroupRow(
            group.name,
            [one.broker for one in group.brokers],
            all(one.consume for one in group.brokers),
            any(one.ordered for one in group.brokers),
            max(one.retries for one in group.brokers),
            group.disabled,
        )
        for group in groups
    ]
    out = output(json)
    out.show(rows, table(GroupRow, rows))
    for group in groups:
        tell_disabled(out, group.name, group.disabled)


def tell_disabled(out: Output, group: str, why: Mapping[str, str]) -> None:
    for broker, reason in why.items():
        out.note(f"{group} was disabled at {broker}: {reason}. Enable it again: kerolox group enable {group}")


@command(app, "enable", "kerolox group enable billing")
def enable(
    group: GroupArgument,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Allow a group to consume again. Other settings stay as they are."""
    _let_consume(group, True, nameserver, json)


@command(app, "disable", "kerolox group disable billing")
def disable(
    group: GroupArgument,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Forbid a group to consume. Other settings stay as they are."""
    _let_consume(group, False, nameserver, json)


def _let_consume(group: str, may: bool, nameserver: str, json: bool) -> None:
    async def work(groups: GroupAdmin) -> Group:
        before = await groups.describe_group(group)
        await groups.update_group(group, consume=may)
        return before

    before = {one.broker: one.consume for one in _run(nameserver, work).brokers}
    changed = [name for name, could in before.items() if could != may]
    what = "may consume" if may else "may not consume"
    output(json).report(
        f"{group} {what} at {', '.join(before)}" + ("" if changed else ", as before"),
        {"group": group, "consumeEnabled": may, "brokers": list(before), "changed": changed},
    )


RetriesOption = Annotated[
    int | None, typer.Option(help="Retries before a message becomes a dead letter.", min=-1)
]
ConsumeOption = Annotated[
    bool | None, typer.Option("--consume/--no-consume", help="Allow the group to consume.")
]
OrderlyOption = Annotated[
    bool | None, typer.Option("--orderly/--no-orderly", help="Mark the group as ordered.")
]
BroadcastOption = Annotated[
    bool | None, typer.Option("--broadcast/--no-broadcast", help="Allow broadcast consumption.")
]
ClusterOption = Annotated[str | None, typer.Option(help="Name of the cluster. Default: all clusters.")]


@command(app, "create", "kerolox group create billing --retries 16")
def create(
    group: GroupArgument,
    retries: RetriesOption = 16,
    consume: ConsumeOption = True,
    orderly: OrderlyOption = False,
    broadcast: BroadcastOption = True,
    cluster: ClusterOption = None,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Create a group. Fails if the group exists."""
    made = _run(
        nameserver,
        lambda groups: groups.create_group(
            group,
            retries=16 if retries is None else retries,
            consume=consume is not False,
            ordered=bool(orderly),
            broadcast=broadcast is not False,
            cluster=cluster,
        ),
    )
    _say_brokers(made, "was created", json)


@command(app, "update", "kerolox group update billing --retries 3")
def update(
    group: GroupArgument,
    retries: RetriesOption = None,
    consume: ConsumeOption = None,
    orderly: OrderlyOption = None,
    broadcast: BroadcastOption = None,
    cluster: ClusterOption = None,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Change settings of a group. Settings without an option stay as they are."""
    if all(given is None for given in (retries, consume, orderly, broadcast)):
        raise OptionError("--retries", None, "at least one setting to change")
    changed = _run(
        nameserver,
        lambda groups: groups.update_group(
            group, retries=retries, consume=consume, ordered=orderly, broadcast=broadcast, cluster=cluster
        ),
    )
    _say_brokers(changed, "was changed", json)


def _say_brokers(group: Group, what: str, json: bool) -> None:
    brokers = [one.broker for one in group.brokers]
    done = f"{group.name} {what} at {', '.join(brokers)}"
    output(json).report(done, {"group": group.name, "brokers": brokers})


@command(app, "delete", "kerolox group delete billing --yes")
def delete(
    group: GroupArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt.")] = False,
    keep_progress: Annotated[bool, typer.Option("--keep-progress", help="Keep the group's offsets.")] = False,
    cluster: Annotated[str | None, typer.Option(help="Name of the cluster. Default: all clusters.")] = None,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Delete a group's settings and progress. Connected members may create the group again."""
    if not yes:
        typer.confirm(f"Delete group {group}?", abort=True, err=True)
    brokers = _run(
        nameserver,
        lambda groups: groups.delete_group(group, keep_progress=keep_progress, cluster=cluster),
    )
    output(json).report(f"{group} was deleted", {"group": group, "brokers": brokers})


@row
class QueueLagRow:
    """Progress of a group in one queue."""

    topic: str
    broker: str
    queue_id: int = column("queue")
    broker_offset: int
    consumer_offset: int
    lag: int
    in_flight: int
    last_consumed_store_time: int | None = column("consumed", time_text)


@row
class TopicLagRow:
    """Progress of a group in one topic."""

    group: str
    topic: str
    queues: int
    lag: int
    in_flight: int
    last_consumed_store_time: int | None = column("consumed", time_text)


@command(app, "lag", "kerolox group lag billing")
def lag(
    group: Annotated[
        str | None,
        typer.Argument(help="Name of the group. Default: all groups.", autocompletion=completion.groups),
    ] = None,
    topic: Annotated[str | None, typer.Option(help="Name of the topic. Default: all topics.")] = None,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Show the lag of a group by queue, or the lag of all groups."""
    if group is None:
        _lag_of_all(topic, nameserver, json)
        return

    async def work(groups: GroupAdmin) -> tuple[list[QueueProgress], Group]:
        return await groups.group_lag(group, topic), await groups.describe_group(group)

    found, settings = _run(nameserver, work)
    rows = [
        QueueLagRow(*one.queue, one.end, one.committed, one.lag, one.in_flight, one.consumed_ms)
        for one in found
    ]
    total = sum(one.lag for one in found)
    out = output(json)
    out.show(
        {"group": group, "lag": total, "queues": rows, "disabled": settings.disabled},
        table(
            QueueLagRow,
            rows,
            title=f"group {group} is {total} messages behind",
            empty=f"group {group} has no progress yet",
        ),
    )
    tell_disabled(out, group, settings.disabled)


def _lag_of_all(topic: str | None, nameserver: str, json: bool) -> None:
    """Show a line for each group and topic, and a note with the number of groups without progress."""
    found = _run(nameserver, lambda groups: groups.group_lags(topic))
    rows: list[TopicLagRow] = []
    for name, queues in found.items():
        by_topic: dict[str, list[QueueProgress]] = {}
        for one in queues:
            by_topic.setdefault(one.queue.topic, []).append(one)
        for in_topic, of_topic in by_topic.items():
            rows.append(
                TopicLagRow(
                    name,
                    in_topic,
                    len(of_topic),
                    sum(each.lag for each in of_topic),
                    sum(each.in_flight for each in of_topic),
                    max(each.consumed_ms or 0 for each in of_topic) or None,
                )
            )
    rows.sort(key=lambda row: (-row.lag, row.group, row.topic))
    idle = [name for name, queues in found.items() if not queues]
    out = output(json)
    out.show(
        {"groups": rows, "withoutProgress": idle},
        table(TopicLagRow, rows, empty="no group has progress yet"),
    )
    if idle:
        out.note(f"{len(idle)} groups have no progress: {', '.join(idle[:10])}{', ...' * (len(idle) > 10)}")


@row
class MemberRow:
    """Connected member of a group."""

    client_id: str = column("client")
    address: str
    language: str
    version: str
    brokers: tuple[str, ...] = column("brokers", ", ".join)


@command(app, "members", "kerolox group members billing")
def members(
    group: GroupArgument, nameserver: NameServerOption = DEFAULT_ADDRESS, json: JsonFlag = False
) -> None:
    """Show a group's members and their subscriptions."""
    found = _run(nameserver, lambda groups: groups.group_members(group))
    rows = [
        MemberRow(one.client_id, one.address, one.language, one.version, one.brokers) for one in found.members
    ]
    document = {
        "group": group,
        "model": found.model,
        "type": found.type,
        "members": rows,
        "subscriptions": dict(found.subscriptions),
    }
    empty = f"no member of group {group} is connected"
    shown = [table(MemberRow, rows, title=f"members of {group}", empty=empty)]
    if found.subscriptions:
        shown.append(OutputTable(("topic", "subscription"), sorted(found.subscriptions.items())))
    output(json).show(document, *shown)


@row
class OffsetRow:
    """Offset of a group in a queue."""

    broker: str
    queue_id: int = column("queue")
    offset: int


@command(app, "reset", "kerolox group reset billing TopicTest --to 2h")
def reset(
    group: GroupArgument,
    topic: Annotated[
        str, typer.Argument(help="Topic in which to move the group.", autocompletion=completion.topics)
    ],
    to: Annotated[str, typer.Option(help="New position: earliest, latest, 2h (ago), or a time.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt.")] = False,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Move a group's offsets in a topic, to consume messages again or to skip them."""
    from kerolox.client.admin.part import BEGIN, END
    from kerolox.clock import SYSTEM_CLOCK

    words = {"earliest": BEGIN, "latest": END, "now": END}
    time_ms = 0 if to in words else parse_time(to, SYSTEM_CLOCK.wall_ms(), "--to")
    if not yes:
        where = to if to in words else time_text(time_ms)
        typer.confirm(f"Move group {group} in topic {topic} to {where}?", abort=True, err=True)
    found = _run(nameserver, lambda groups: groups.reset_offsets(group, topic, words.get(to, time_ms)))
    rows = [OffsetRow(one.queue.broker, one.queue.queue_id, one.after) for one in found]
    output(json).show(rows, table(OffsetRow, rows))
