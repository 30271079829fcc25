"""``kerolox group``"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kerolox.cli import completion
from kerolox.cli.nameservers import DEFAULT_ADDRESS, NameServerOption, run_admin
from kerolox.cli.output import JsonFlag, Output, OutputTable, one_line_errors, output
from kerolox.cli.times import parse_time, time_text
from kerolox.errors import OptionError

if TYPE_CHECKING:
    from kerolox.client.admin.admin import Admin
    from kerolox.protocol.bodies.body import MessageQueue
    from kerolox.protocol.bodies.clients import ConsumerConnection
    from kerolox.protocol.bodies.groups import GroupConfig
    from kerolox.protocol.bodies.stats import ConsumeOffsets

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

    async def work(admin: Admin) -> dict[str, dict[str, GroupConfig]]:
        from kerolox.client.admin.admin import at_all

        return await at_all(await admin.masters(broker=broker), admin.groups)

    groups: dict[str, dict[str, GroupConfig]] = {}
    for name, table in run_admin(nameserver, work).items():
        for group, config in table.items():
            groups.setdefault(group, {})[name] = config
    document = [
        {
            "group": group,
            "brokers": sorted(found),
            "consumeEnabled": all(config.consume_enable for config in found.values()),
            "orderly": any(config.consume_message_orderly for config in found.values()),
            "retryMax": max(config.retry_max_times for config in found.values()),
            "disabled": disabled(found),
        }
        for group, found in sorted(groups.items())
    ]
    rows = [
        (row["group"], len(row["brokers"]), row["consumeEnabled"], row["orderly"], row["retryMax"])  # type: ignore[arg-type]
        for row in document
    ]
    out = output(json)
    out.show(document, OutputTable(("group", "brokers", "may consume", "orderly", "retries"), rows))
    for group, found in sorted(groups.items()):
        tell_disabled(out, group, disabled(found))


async def known(admin: Admin, group: str) -> dict[str, GroupConfig]:
    """Return broker → settings of the group.

    Raises NotFound if no broker has settings or progress of the group. A group of pull consumers may have
    progress but no settings; the result is then empty.
    """
    from kerolox.client.admin.admin import NotFound

    try:
        return await admin.group(group)
    except NotFound:
        if not await admin.progress(group):
            raise
        return {}


def disabled(found: Mapping[str, GroupConfig]) -> dict[str, str]:
    """Return broker → reason why it disabled the group, for brokers that recorded a reason."""
    from kerolox.protocol.bodies.groups import WHY_DISABLED

    return {
        name: config.attributes[WHY_DISABLED]
        for name, config in sorted(found.items())
        if not config.consume_enable and WHY_DISABLED in config.attributes
    }


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
    import msgspec

    async def work(admin: Admin) -> dict[str, bool]:
        masters, found = await admin.masters(), await admin.group(group)
        for name, config in found.items():
            if config.consume_enable != may:
                await admin.put_group(masters[name], msgspec.structs.replace(config, consume_enable=may))
        return {name: config.consume_enable for name, config in sorted(found.items())}

    before = run_admin(nameserver, work)
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
    _put(nameserver, json, group, cluster, _changes(retries, consume, orderly, broadcast), new=True)


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
    changes = _changes(retries, consume, orderly, broadcast)
    if not changes:
        raise OptionError("--retries", None, "at least one setting to change")
    _put(nameserver, json, group, cluster, changes, new=False)


def _changes(
    retries: int | None, consume: bool | None, orderly: bool | None, broadcast: bool | None
) -> dict[str, Any]:
    """Return the given settings, by field of GroupConfig."""
    given = {
        "retry_max_times": retries,
        "consume_enable": consume,
        "consume_message_orderly": orderly,
        "consume_broadcast_enable": broadcast,
    }
    return {name: value for name, value in given.items() if value is not None}


def _put(
    nameserver: str, json: bool, group: str, cluster: str | None, changes: dict[str, Any], *, new: bool
) -> None:
    import msgspec

    from kerolox.protocol.bodies.groups import GroupConfig

    async def work(admin: Admin) -> list[str]:
        from kerolox.client.admin.admin import AlreadyThere, NotFound

        masters = await admin.masters(cluster=cluster)
        try:
            there = await admin.group(group)
        except NotFound:
            if not new:
                raise
            there = {}
        there = {name: config for name, config in there.items() if name in masters}
        if new and there:
            raise AlreadyThere(
                f"group {group} exists at {', '.join(there)}. Change it with: kerolox group update {group}"
            )
        for name, address in masters.items():
            if not new and name not in there:
                continue
            base = there.get(name) or GroupConfig(group_name=group)
            await admin.put_group(address, msgspec.structs.replace(base, **changes))
        return sorted(masters if new else there)

    brokers = run_admin(nameserver, work)
    out = output(json)
    out.note(f"{group} {'was created' if new else 'was changed'} at {', '.join(brokers)}")
    if json:
        out.show({"group": group, "brokers": brokers})


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

    async def work(admin: Admin) -> list[str]:
        masters = await admin.masters(cluster=cluster)
        await known(admin, group)
        for address in masters.values():
            await admin.delete_group(address, group, clean_offsets=not keep_progress)
        return sorted(masters)

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

    async def work(admin: Admin) -> tuple[dict[MessageQueue, ConsumeOffsets], dict[str, str]]:
        if topic is not None:
            await admin.route(topic)  # raises for an unknown topic
        configs = await known(admin, group)
        return await admin.progress(group, topic), disabled(configs)

    found, why = run_admin(nameserver, work)
    queues: list[dict[str, Any]] = [
        {
            "topic": queue.topic,
            "broker": queue.broker_name,
            "queueId": queue.queue_id,
            "brokerOffset": offsets.broker_offset,
            "consumerOffset": offsets.consumer_offset,
            "lag": offsets.broker_offset - offsets.consumer_offset,
            "inFlight": max(0, offsets.pull_offset - offsets.consumer_offset),
            "lastConsumedStoreTime": offsets.last_timestamp or None,
        }
        for queue, offsets in found.items()
    ]
    total = sum(queue["lag"] for queue in queues)
    columns = ("topic", "broker", "queue", "broker offset", "consumer offset", "lag", "in flight", "consumed")
    rows = [(*list(queue.values())[:-1], time_text(queue["lastConsumedStoreTime"])) for queue in queues]
    out = output(json)
    out.show(
        {"group": group, "lag": total, "queues": queues, "disabled": why},
        OutputTable(
            columns,
            rows,
            title=f"group {group} is {total} messages behind",
            empty=f"group {group} has no progress yet",
        ),
    )
    tell_disabled(out, group, why)


def _lag_of_all(topic: str | None, nameserver: str, json: bool) -> None:
    """Show a line for each group and topic, and a note with the number of groups without progress."""

    async def work(admin: Admin) -> dict[str, dict[MessageQueue, ConsumeOffsets]]:
        from kerolox.client.admin.admin import at_all

        if topic is not None:
            await admin.route(topic)
        tables = await at_all(await admin.masters(), admin.groups)
        names = sorted({name for table in tables.values() for name in table})
        return {name: await admin.progress(name, topic) for name in names}

    found = run_admin(nameserver, work)
    rows: list[dict[str, Any]] = []
    for name, queues in found.items():
        by_topic: dict[str, list[ConsumeOffsets]] = {}
        for queue, offsets in queues.items():
            by_topic.setdefault(queue.topic, []).append(offsets)
        for one, offsets_of in by_topic.items():
            rows.append(
                {
                    "group": name,
                    "topic": one,
                    "queues": len(offsets_of),
                    "lag": sum(each.broker_offset - each.consumer_offset for each in offsets_of),
                    "inFlight": sum(max(0, each.pull_offset - each.consumer_offset) for each in offsets_of),
                    "lastConsumedStoreTime": max(each.last_timestamp for each in offsets_of) or None,
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

    async def work(admin: Admin) -> dict[str, ConsumerConnection]:
        found = await admin.members(group)
        if not found:
            await known(admin, group)
        return found

    from kerolox.protocol.codes import version_name

    found = run_admin(nameserver, work)
    clients: dict[tuple[str, str], dict[str, Any]] = {}
    subscriptions: dict[str, str] = {}
    for broker, connections in sorted(found.items()):
        for connection in connections.connection_set:
            client = clients.setdefault(
                (connection.client_id or "", connection.client_addr or ""),
                {
                    "clientId": connection.client_id,
                    "address": connection.client_addr,
                    "language": connection.language,
                    "version": version_name(connection.version),
                    "brokers": [],
                },
            )
            client["brokers"].append(broker)
        for topic, data in connections.subscription_table.items():
            subscriptions[topic] = data.sub_string or ""
    first = next(iter(found.values()), None)
    document = {
        "group": group,
        "model": None if first is None else first.message_model,
        "type": None if first is None else first.consume_type,
        "members": list(clients.values()),
        "subscriptions": subscriptions,
    }
    columns = ("client", "address", "language", "version", "brokers")
    rows = [(*list(client.values())[:-1], ", ".join(client["brokers"])) for client in clients.values()]
    shown = [
        OutputTable(
            columns, rows, title=f"members of {group}", empty=f"no member of group {group} is connected"
        )
    ]
    if subscriptions:
        shown.append(OutputTable(("topic", "subscription"), sorted(subscriptions.items())))
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
    from kerolox.client.admin.admin import LATEST_MS
    from kerolox.clock import SYSTEM_CLOCK

    words = {"earliest": 0, "latest": LATEST_MS, "now": LATEST_MS}
    time_ms = words[to] if to in words else parse_time(to, SYSTEM_CLOCK.wall_ms(), "--to")
    if not yes:
        where = to if to in words else time_text(time_ms)
        typer.confirm(f"Move group {group} in topic {topic} to {where}?", abort=True, err=True)

    async def work(admin: Admin) -> dict[MessageQueue, int]:
        await known(admin, group)
        return await admin.reset(group, topic, time_ms)

    document = [
        {"broker": queue.broker_name, "queueId": queue.queue_id, "offset": offset}
        for queue, offset in run_admin(nameserver, work).items()
    ]
    output(json).show(
        document, OutputTable(("broker", "queue", "offset"), [tuple(row.values()) for row in document])
    )
