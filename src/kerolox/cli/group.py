"""``kerolox group``"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kerolox.cli import completion
from kerolox.cli.nameservers import DEFAULT_ADDRESS, NameServerOption, run_admin
from kerolox.cli.output import JsonFlag, Output, OutputTable, one_line_errors, output
from kerolox.cli.times import parse_time, time_text

if TYPE_CHECKING:
    from kerolox.client.admin.admin import Admin
    from kerolox.protocol.bodies.body import MessageQueue
    from kerolox.protocol.bodies.clients import ConsumerConnection
    from kerolox.protocol.bodies.groups import GroupConfig
    from kerolox.protocol.bodies.stats import ConsumeOffsets

app = typer.Typer(help="Consumer groups: settings, members, progress.", no_args_is_help=True)

GroupArgument = Annotated[str, typer.Argument(help="Name of the group.", autocompletion=completion.groups)]


@app.command("list", epilog="Example: kerolox group list")
@one_line_errors
def list_groups(
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    broker: Annotated[str | None, typer.Option(help="Only those of this broker.")] = None,
    json: JsonFlag = False,
) -> None:
    """List consumer groups and at how many brokers they are."""

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
    """Broker → its settings of the group. Raises NotFound when there is no such group: nobody has settings
    or progress of it. A group that only pulls may have progress and no settings."""
    from kerolox.client.admin.admin import NotFound

    try:
        return await admin.group(group)
    except NotFound:
        if not await admin.progress(group):
            raise
        return {}


def disabled(found: Mapping[str, GroupConfig]) -> dict[str, str]:
    """Broker → why it lets the group consume no more; of those that said why."""
    from kerolox.protocol.bodies.groups import WHY_DISABLED

    return {
        name: config.attributes[WHY_DISABLED]
        for name, config in sorted(found.items())
        if not config.consume_enable and WHY_DISABLED in config.attributes
    }


def tell_disabled(out: Output, group: str, why: Mapping[str, str]) -> None:
    for broker, reason in why.items():
        out.note(
            f"{group} was disabled at {broker}: {reason}. To let it consume: kerolox group enable {group}"
        )


@app.command("enable", epilog="Example: kerolox group enable billing")
@one_line_errors
def enable(
    group: GroupArgument,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Let a group consume (again), wherever it may not; its other settings stay."""
    _let_consume(group, True, nameserver, json)


@app.command("disable", epilog="Example: kerolox group disable billing")
@one_line_errors
def disable(
    group: GroupArgument,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Let a group consume no more, wherever it is; its other settings stay."""
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


@app.command("create", epilog="Example: kerolox group create billing --retries 16")
@one_line_errors
def create(
    group: GroupArgument,
    retries: Annotated[int, typer.Option(help="Tries before a message is given up.", min=-1)] = 16,
    consume: Annotated[bool, typer.Option("--consume/--no-consume", help="Whether it may.")] = True,
    orderly: Annotated[bool, typer.Option("--orderly", help="It consumes in order.")] = False,
    broadcast: Annotated[
        bool, typer.Option("--broadcast/--no-broadcast", help="Whether its members may all get all.")
    ] = True,
    cluster: Annotated[str | None, typer.Option(help="At the brokers of this cluster; else of all.")] = None,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Create a group, or give it these settings."""
    from kerolox.protocol.bodies.groups import GroupConfig

    config = GroupConfig(
        group_name=group,
        retry_max_times=retries,
        consume_enable=consume,
        consume_message_orderly=orderly,
        consume_broadcast_enable=broadcast,
    )

    async def work(admin: Admin) -> list[str]:
        masters = await admin.masters(cluster=cluster)
        for address in masters.values():
            await admin.put_group(address, config)
        return sorted(masters)

    brokers = run_admin(nameserver, work)
    out = output(json)
    out.note(f"{group} is at {', '.join(brokers)}")
    if json:
        out.show({"group": group, "brokers": brokers})


@app.command("delete", epilog="Example: kerolox group delete billing --yes")
@one_line_errors
def delete(
    group: GroupArgument,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    keep_progress: Annotated[bool, typer.Option("--keep-progress", help="Keep its offsets.")] = False,
    cluster: Annotated[str | None, typer.Option(help="At the brokers of this cluster; else of all.")] = None,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Delete a group's settings and progress. Members that are connected may create it again."""
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
    out.note(f"{group} is deleted")
    if json:
        out.show({"group": group, "brokers": brokers})


@app.command("lag", epilog="Example: kerolox group lag billing")
@one_line_errors
def lag(
    group: GroupArgument,
    topic: Annotated[str | None, typer.Option(help="Only of this topic.")] = None,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Show how far a group is behind, queue by queue."""

    async def work(admin: Admin) -> tuple[dict[MessageQueue, ConsumeOffsets], dict[str, str]]:
        if topic is not None:
            await admin.route(topic)  # says when there is no such topic
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
            empty=f"group {group} has consumed nothing yet",
        ),
    )
    tell_disabled(out, group, why)


@app.command("members", epilog="Example: kerolox group members billing")
@one_line_errors
def members(
    group: GroupArgument, nameserver: NameServerOption = DEFAULT_ADDRESS, json: JsonFlag = False
) -> None:
    """Show who is connected in a group, and what it has subscribed."""

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
        OutputTable(columns, rows, title=f"members of {group}", empty=f"nobody of group {group} is connected")
    ]
    if subscriptions:
        shown.append(OutputTable(("topic", "subscription"), sorted(subscriptions.items())))
    output(json).show(document, *shown)


@app.command("reset", epilog="Example: kerolox group reset billing TopicTest --to 2h")
@one_line_errors
def reset(
    group: GroupArgument,
    topic: Annotated[
        str, typer.Argument(help="Topic to go back or forward in.", autocompletion=completion.topics)
    ],
    to: Annotated[str, typer.Option(help="Where to go: earliest, latest, 2h (ago), or a time.")],
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Move a group in a topic to another place: to repeat messages, or to skip them."""
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
