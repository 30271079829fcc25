"""``kerolox group``"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kerolox.cli import completion
from kerolox.cli.nameservers import DEFAULT_ADDRESS, NameServerOption, run_admin
from kerolox.cli.output import JsonFlag, Output, OutputTable, one_line_errors, output
from kerolox.errors import OptionError
from kerolox.times import parse_time, time_text

if TYPE_CHECKING:
    from kerolox.client.admin.calls import AdminCalls
    from kerolox.client.admin.results import Group, GroupMembers, OffsetChange, QueueProgress

app = typer.Typer(help="Manage consumer groups.", no_args_is_help=True)

GroupArgument = Annotated[str, typer.Argument(help="Name of the group.", autocompletion=completion.groups)]


@app.command("list", epilog="Example: kerolox group list")
@one_line_errors
def list_groups(
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    broker: Annotated[str | None, typer.Option(help="Name of the broker. Default: all brokers.")] = None,
    json: JsonFlag = False,
) -> None:
    """List consumer groups, with the number of brokers that have each."""

    async def work(admin: AdminCalls) -> list[Group]:
        from kerolox.client.admin.groups import GroupAdmin

        return await GroupAdmin(admin).list_groups(broker=broker)

    groups = run_admin(nameserver, work)
    document = [
        {
            "group": group.name,
            "brokers": [one.broker for one in group.brokers],
            "consumeEnabled": all(one.consume for one in group.brokers),
            "orderly": any(one.ordered for one in group.brokers),
            "retryMax": max(one.retries for one in group.brokers),
            "disabled": group.disabled,
        }
        for group in groups
    ]
    rows = [
        (row["group"], len(row["brokers"]), row["consumeEnabled"], row["orderly"], row["retryMax"])  # type: ignore[arg-type]
        for row in document
    ]
    out = output(json)
    out.show(document, OutputTable(("group", "brokers", "may consume", "orderly", "retries"), rows))
    for group in groups:
        tell_disabled(out, group.name, group.disabled)


def tell_disabled(out: Output, group: str, why: Mapping[str, str]) -> None:
    for broker, reason in why.items():
        out.note(f"{group} was disabled at {broker}: {reason}. Enable it again: kerolox group enable {group}")


@app.command("enable", epilog="Example: kerolox group enable billing")
@one_line_errors
def enable(
    group: GroupArgument,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Allow a group to consume again. Other settings stay as they are."""
    _let_consume(group, True, nameserver, json)


@app.command("disable", epilog="Example: kerolox group disable billing")
@one_line_errors
def disable(
    group: GroupArgument,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Forbid a group to consume. Other settings stay as they are."""
    _let_consume(group, False, nameserver, json)


def _let_consume(group: str, may: bool, nameserver: str, json: bool) -> None:
    async def work(admin: AdminCalls) -> Group:
        from kerolox.client.admin.groups import GroupAdmin

        groups = GroupAdmin(admin)
        before = await groups.describe_group(group)
        await groups.update_group(group, consume=may)
        return before

    before = {one.broker: one.consume for one in run_admin(nameserver, work).brokers}
    changed = [name for name, could in before.items() if could != may]
    out = output(json)
    what = "may consume" if may else "may not consume"
    out.note(f"{group} {what} at {', '.join(before)}" + ("" if changed else ", as before"))
    if json:
        out.show({"group": group, "consumeEnabled": may, "brokers": list(before), "changed": changed})


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


@app.command("create", epilog="Example: kerolox group create billing --retries 16")
@one_line_errors
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

    async def work(admin: AdminCalls) -> Group:
        from kerolox.client.admin.groups import GroupAdmin

        return await GroupAdmin(admin).create_group(
            group,
            retries=16 if retries is None else retries,
            consume=consume is not False,
            ordered=bool(orderly),
            broadcast=broadcast is not False,
            cluster=cluster,
        )

    _say_brokers(run_admin(nameserver, work), "was created", json)


@app.command("update", epilog="Example: kerolox group update billing --retries 3")
@one_line_errors
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

    async def work(admin: AdminCalls) -> Group:
        from kerolox.client.admin.groups import GroupAdmin

        return await GroupAdmin(admin).update_group(
            group,
            retries=retries,
            consume=consume,
            ordered=orderly,
            broadcast=broadcast,
            cluster=cluster,
        )

    _say_brokers(run_admin(nameserver, work), "was changed", json)


def _say_brokers(group: Group, what: str, json: bool) -> None:
    brokers = [one.broker for one in group.brokers]
    out = output(json)
    out.note(f"{group.name} {what} at {', '.join(brokers)}")
    if json:
        out.show({"group": group.name, "brokers": brokers})


@app.command("delete", epilog="Example: kerolox group delete billing --yes")
@one_line_errors
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

    async def work(admin: AdminCalls) -> list[str]:
        from kerolox.client.admin.groups import GroupAdmin

        return await GroupAdmin(admin).delete_group(group, keep_progress=keep_progress, cluster=cluster)

    brokers = run_admin(nameserver, work)
    out = output(json)
    out.note(f"{group} was deleted")
    if json:
        out.show({"group": group, "brokers": brokers})


@app.command("lag", epilog="Example: kerolox group lag billing")
@one_line_errors
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

    async def work(admin: AdminCalls) -> tuple[list[QueueProgress], Group]:
        from kerolox.client.admin.groups import GroupAdmin

        groups = GroupAdmin(admin)
        return await groups.group_lag(group, topic), await groups.describe_group(group)

    found, settings = run_admin(nameserver, work)
    queues: list[dict[str, Any]] = [
        {
            "topic": one.queue.topic,
            "broker": one.queue.broker,
            "queueId": one.queue.queue_id,
            "brokerOffset": one.end,
            "consumerOffset": one.committed,
            "lag": one.lag,
            "inFlight": one.in_flight,
            "lastConsumedStoreTime": one.consumed_ms,
        }
        for one in found
    ]
    total = sum(queue["lag"] for queue in queues)
    columns = ("topic", "broker", "queue", "broker offset", "consumer offset", "lag", "in flight", "consumed")
    rows = [(*list(queue.values())[:-1], time_text(queue["lastConsumedStoreTime"])) for queue in queues]
    out = output(json)
    out.show(
        {"group": group, "lag": total, "queues": queues, "disabled": settings.disabled},
        OutputTable(
            columns,
            rows,
            title=f"group {group} is {total} messages behind",
            empty=f"group {group} has no progress yet",
        ),
    )
    tell_disabled(out, group, settings.disabled)


def _lag_of_all(topic: str | None, nameserver: str, json: bool) -> None:
    """Show a line for each group and topic, and a note with the number of groups without progress."""

    async def work(admin: AdminCalls) -> dict[str, list[QueueProgress]]:
        from kerolox.client.admin.groups import GroupAdmin

        return await GroupAdmin(admin).group_lags(topic)

    found = run_admin(nameserver, work)
    rows: list[dict[str, Any]] = []
    for name, queues in found.items():
        by_topic: dict[str, list[QueueProgress]] = {}
        for one in queues:
            by_topic.setdefault(one.queue.topic, []).append(one)
        for in_topic, of_topic in by_topic.items():
            rows.append(
                {
                    "group": name,
                    "topic": in_topic,
                    "queues": len(of_topic),
                    "lag": sum(each.lag for each in of_topic),
                    "inFlight": sum(each.in_flight for each in of_topic),
                    "lastConsumedStoreTime": max(each.consumed_ms or 0 for each in of_topic) or None,
                }
            )
    rows.sort(key=lambda row: (-row["lag"], row["group"], row["topic"]))
    idle = [name for name, queues in found.items() if not queues]
    columns = ("group", "topic", "queues", "lag", "in flight", "consumed")
    shown = [(*list(row.values())[:-1], time_text(row["lastConsumedStoreTime"])) for row in rows]
    out = output(json)
    out.show(
        {"groups": rows, "withoutProgress": idle},
        OutputTable(columns, shown, empty="no group has progress yet"),
    )
    if idle:
        out.note(f"{len(idle)} groups have no progress: {', '.join(idle[:10])}{', ...' * (len(idle) > 10)}")


@app.command("members", epilog="Example: kerolox group members billing")
@one_line_errors
def members(
    group: GroupArgument, nameserver: NameServerOption = DEFAULT_ADDRESS, json: JsonFlag = False
) -> None:
    """Show a group's members and their subscriptions."""

    async def work(admin: AdminCalls) -> GroupMembers:
        from kerolox.client.admin.groups import GroupAdmin

        return await GroupAdmin(admin).group_members(group)

    found = run_admin(nameserver, work)
    clients = [
        {
            "clientId": one.client_id,
            "address": one.address,
            "language": one.language,
            "version": one.version,
            "brokers": list(one.brokers),
        }
        for one in found.members
    ]
    document = {
        "group": group,
        "model": found.model,
        "type": found.type,
        "members": clients,
        "subscriptions": dict(found.subscriptions),
    }
    columns = ("client", "address", "language", "version", "brokers")
    rows = [
        (one.client_id, one.address, one.language, one.version, ", ".join(one.brokers))
        for one in found.members
    ]
    shown = [
        OutputTable(
            columns, rows, title=f"members of {group}", empty=f"no member of group {group} is connected"
        )
    ]
    if found.subscriptions:
        shown.append(OutputTable(("topic", "subscription"), sorted(found.subscriptions.items())))
    output(json).show(document, *shown)


@app.command("reset", epilog="Example: kerolox group reset billing TopicTest --to 2h")
@one_line_errors
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

    async def work(admin: AdminCalls) -> list[OffsetChange]:
        from kerolox.client.admin.groups import GroupAdmin

        return await GroupAdmin(admin).reset_offsets(group, topic, words.get(to, time_ms))

    document = [
        {"broker": one.queue.broker, "queueId": one.queue.queue_id, "offset": one.after}
        for one in run_admin(nameserver, work)
    ]
    output(json).show(
        document, OutputTable(("broker", "queue", "offset"), [tuple(row.values()) for row in document])
    )
