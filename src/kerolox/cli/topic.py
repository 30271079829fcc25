"""``kerolox topic``"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kerolox.cli import completion
from kerolox.cli.nameservers import DEFAULT_ADDRESS, NameServerOption, near_topic, run_admin
from kerolox.cli.output import JsonFlag, Output, OutputTable, one_line_errors, output, say
from kerolox.cli.times import time_text

if TYPE_CHECKING:
    from kerolox.client.admin.admin import Admin
    from kerolox.protocol.bodies.body import MessageQueue
    from kerolox.protocol.bodies.routes import TopicRoute
    from kerolox.protocol.bodies.stats import QueueBounds

app = typer.Typer(help="Manage topics.", no_args_is_help=True)

TopicName = Annotated[str, typer.Argument(help="Name of the topic.", autocompletion=completion.topics)]
ClusterOption = Annotated[str | None, typer.Option(help="Name of the cluster. Default: all clusters.")]
BrokerOption = Annotated[str | None, typer.Option(help="Name of a single broker.")]
QueuesOption = Annotated[int | None, typer.Option(help="Number of write and read queues.", min=1)]
ReadQueuesOption = Annotated[int | None, typer.Option(help="Number of read queues, if different.", min=0)]
PermOption = Annotated[int | None, typer.Option(help="Permissions: 4 read, 2 write, 6 both.", min=0, max=7)]
AttributeOption = Annotated[
    list[str] | None,
    typer.Option("--attribute", help="Attribute: name=value sets it, -name removes it. Repeatable."),
]


@app.command("list", epilog="Example: kerolox topic list --all")
@one_line_errors
def list_topics(
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    cluster: Annotated[str | None, typer.Option(help="Only topics with queues in this cluster.")] = None,
    everything: Annotated[
        bool,
        typer.Option("--all", "-a", help="Include system, retry and dead-letter topics."),
    ] = False,
    json: JsonFlag = False,
) -> None:
    """List topics."""

    async def work(admin: Admin) -> tuple[list[str], list[str]]:
        known = await admin.topics(cluster)
        return known if everything else await admin.made_by_people(known), known

    topics, known = run_admin(nameserver, work)
    empty = "no topics. Create one: kerolox topic create NAME"
    output(json).show(topics, OutputTable(("topic",), [(topic,) for topic in topics], empty=empty))
    if len(topics) < len(known) and not json:
        say(f"{len(known) - len(topics)} system, retry and dead-letter topics are hidden. Show them: --all")


@app.command("route", epilog="Example: kerolox topic route TopicTest")
@one_line_errors
def route(
    topic: TopicName,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Show the brokers and queues of a topic."""
    show_route(output(json), topic, run_admin(nameserver, lambda admin: admin.route(topic)))


def show_route(out: Output, topic: str, found: TopicRoute) -> None:
    import json

    brokers = {data.broker_name: data for data in found.broker_datas}
    queues: list[tuple[Any, ...]] = []
    for data in sorted(found.queue_datas, key=lambda data: data.broker_name):
        broker = brokers.get(data.broker_name)
        addresses = {} if broker is None else broker.broker_addrs
        queues.append(
            (
                data.broker_name,
                "" if broker is None else broker.cluster,
                perm_words(data.perm),
                data.read_queue_nums,
                data.write_queue_nums,
                addresses.get(0),
                ", ".join(address for id, address in sorted(addresses.items()) if id != 0),
            )
        )
    columns = ("broker", "cluster", "rights", "read queues", "write queues", "master", "slaves")
    shown = OutputTable(
        columns, queues, title=f"topic {topic}", empty=f"no broker has queues of topic {topic}"
    )
    out.show(json.loads(found.encode()), shown)


def perm_words(perm: int) -> str:
    """``6`` → ``read, write``."""
    words = [word for bit, word in ((4, "read"), (2, "write")) if perm & bit]
    return ", ".join(words) or "none"


@app.command("create", epilog="Example: kerolox topic create TopicTest --queues 8")
@one_line_errors
def create(
    topic: TopicName,
    queues: QueuesOption = 8,
    read_queues: ReadQueuesOption = None,
    perm: PermOption = 6,
    order: Annotated[bool, typer.Option("--order", help="Mark the topic as ordered.")] = False,
    attributes: AttributeOption = None,
    cluster: ClusterOption = None,
    broker: BrokerOption = None,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Create a topic. Fails if the topic exists."""
    put(nameserver, topic, cluster, broker, queues, read_queues, perm, order, attributes, True, json)


@app.command("update", epilog="Example: kerolox topic update TopicTest --queues 16 --perm 4")
@one_line_errors
def update(
    topic: TopicName,
    queues: QueuesOption = None,
    read_queues: ReadQueuesOption = None,
    perm: PermOption = None,
    order: Annotated[
        bool | None, typer.Option("--order/--no-order", help="Mark the topic as ordered or not.")
    ] = None,
    attributes: AttributeOption = None,
    cluster: ClusterOption = None,
    broker: BrokerOption = None,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Change settings of a topic on the brokers that have it. Other settings stay as they are."""
    put(nameserver, topic, cluster, broker, queues, read_queues, perm, order, attributes, False, json)


def put(
    nameserver: str,
    topic: str,
    cluster: str | None,
    broker: str | None,
    queues: int | None,
    read_queues: int | None,
    perm: int | None,
    order: bool | None,
    attributes: list[str] | None,
    new: bool,
    json: bool,
) -> None:
    import msgspec

    from kerolox.protocol.bodies.topics import TopicConfig

    changes: dict[str, Any] = {"write_queue_nums": queues, "perm": perm, "order": order}
    changes["read_queue_nums"] = queues if read_queues is None else read_queues
    changes = {name: value for name, value in changes.items() if value is not None}
    altered = ",".join(text if text.startswith("-") else "+" + text for text in attributes or ())

    async def work(admin: Admin) -> dict[str, TopicConfig]:
        from kerolox.client.admin.admin import AlreadyThere, NotFound

        masters = await admin.masters(cluster=cluster, broker=broker)
        before = {name: await admin.topic_config(address, topic) for name, address in masters.items()}
        there = sorted(name for name, config in before.items() if config is not None)
        if new and there:
            raise AlreadyThere(
                f"topic {topic} exists at {', '.join(there)}. Change it with: kerolox topic update {topic}"
            )
        if not new and not there:
            near = await near_topic(admin, topic)
            raise NotFound(
                f"topic {topic} does not exist at {', '.join(masters)}. Create it: kerolox topic create "
                f"{topic}.{near}"
            )
        done: dict[str, TopicConfig] = {}
        for name, address in masters.items():
            if not new and name not in there:
                continue
            base = before[name] or TopicConfig(topic_name=topic)
            config = done[name] = msgspec.structs.replace(base, **changes)
            await admin.put_topic(address, config, altered)
        return done

    done = run_admin(nameserver, work)
    document = [
        {
            "broker": name,
            "topic": topic,
            "readQueues": config.read_queue_nums,
            "writeQueues": config.write_queue_nums,
            "perm": config.perm,
            "order": config.order,
        }
        for name, config in done.items()
    ]
    columns = ("broker", "topic", "read queues", "write queues", "perm", "order")
    output(json).show(document, OutputTable(columns, [tuple(row.values()) for row in document]))


@app.command("delete", epilog="Example: kerolox topic delete TopicTest --yes")
@one_line_errors
def delete(
    topic: TopicName,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt.")] = False,
    cluster: ClusterOption = None,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Delete a topic with its messages and the progress of its groups, on all brokers."""
    if not yes:
        typer.confirm(f"Delete topic {topic} and all its messages?", abort=True, err=True)

    async def work(admin: Admin) -> list[str]:
        from kerolox.client.admin.admin import NoSuchTopic

        missing: NoSuchTopic | None = None
        try:
            await admin.route(topic)
        except NoSuchTopic as error:
            missing = error
        # Also without a route: a broker may have the topic before it is registered with a name server.
        deleted = await admin.delete_topic(topic, cluster=cluster)
        if not deleted and missing is not None:
            raise missing
        return deleted

    deleted = run_admin(nameserver, work)
    out = output(json)
    out.note(f"{topic} was deleted" if deleted else f"no broker had {topic}; its route was deleted")
    if json:
        out.show({"topic": topic, "brokers": deleted})


@app.command("stats", epilog="Example: kerolox topic stats TopicTest")
@one_line_errors
def stats(topic: TopicName, nameserver: NameServerOption = DEFAULT_ADDRESS, json: JsonFlag = False) -> None:
    """Show the offsets of every queue of a topic, and the time of its last message."""

    async def work(admin: Admin) -> dict[MessageQueue, QueueBounds]:
        return await admin.topic_stats(topic)

    document = [
        {
            "broker": queue.broker_name,
            "queueId": queue.queue_id,
            "minOffset": bounds.min_offset,
            "maxOffset": bounds.max_offset,
            "messages": bounds.max_offset - bounds.min_offset,
            "lastStoreTime": bounds.last_update_timestamp or None,
        }
        for queue, bounds in run_admin(nameserver, work).items()
    ]
    rows = [(*list(row.values())[:-1], time_text(row["lastStoreTime"])) for row in document]  # type: ignore[arg-type]
    columns = ("broker", "queue", "min offset", "max offset", "messages", "last stored")
    output(json).show(document, OutputTable(columns, rows, empty=f"no broker has queues of topic {topic}"))


@app.command("consumers", epilog="Example: kerolox topic consumers TopicTest")
@one_line_errors
def consumers(
    topic: TopicName, nameserver: NameServerOption = DEFAULT_ADDRESS, json: JsonFlag = False
) -> None:
    """List the groups that consume a topic, with the number of members and the lag."""

    async def work(admin: Admin) -> list[dict[str, Any]]:
        rows: list[dict[str, Any]] = []
        for group in await admin.consumers_of(topic):
            progress, members = await admin.progress(group, topic), await admin.members(group)
            clients = {one.client_id for found in members.values() for one in found.connection_set}
            lag = sum(each.broker_offset - each.consumer_offset for each in progress.values())
            rows.append({"group": group, "members": len(clients), "lag": lag if progress else None})
        return rows

    rows = run_admin(nameserver, work)
    shown = [tuple(row.values()) for row in rows]
    table = OutputTable(("group", "members", "lag"), shown, empty=f"no group consumes topic {topic}")
    output(json).show(rows, table)
