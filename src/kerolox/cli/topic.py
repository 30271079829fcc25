"""``kerolox topic``"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
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
    say,
    table,
)
from kerolox.errors import OptionError
from kerolox.times import time_text

if TYPE_CHECKING:
    from kerolox.client.admin.results import Topic
    from kerolox.client.admin.topics import TopicAdmin
    from kerolox.protocol.bodies.routes import TopicRoute

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

T = TypeVar("T")


def _run(nameserver: str, work: Callable[[TopicAdmin], Coroutine[Any, Any, T]]) -> T:
    from kerolox.client.admin.topics import TopicAdmin

    return run_admin(nameserver, lambda admin: work(TopicAdmin(admin)))


@command(app, "list", "kerolox topic list --all")
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

    async def work(topics: TopicAdmin) -> tuple[list[str], list[str]]:
        shown = await topics.list_topics(cluster=cluster, system=everything)
        return shown, shown if everything else await topics.list_topics(cluster=cluster, system=True)

    topics, known = _run(nameserver, work)
    empty = "no topics. Create one: kerolox topic create NAME"
    output(json).show(topics, OutputTable(("topic",), [(topic,) for topic in topics], empty=empty))
    if len(topics) < len(known) and not json:
        say(f"{len(known) - len(topics)} system, retry and dead-letter topics are hidden. Show them: --all")


@command(app, "route", "kerolox topic route TopicTest")
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


@command(app, "create", "kerolox topic create TopicTest --queues 8")
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
    changes = _attributes(attributes)
    if removed := [name for name, value in changes.items() if value is None]:
        raise OptionError("--attribute", f"-{removed[0]}", "name=value: a new topic has no attributes yet")

    made = _run(
        nameserver,
        lambda topics: topics.create_topic(
            topic,
            queues=8 if queues is None else queues,
            read_queues=read_queues,
            perm=6 if perm is None else perm,
            ordered=order,
            attributes={name: value for name, value in changes.items() if value is not None},
            cluster=cluster,
            broker=broker,
        ),
    )
    _show(made, json)


@command(app, "update", "kerolox topic update TopicTest --queues 16 --perm 4")
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
    changed = _run(
        nameserver,
        lambda topics: topics.update_topic(
            topic,
            queues=queues,
            read_queues=read_queues,
            perm=perm,
            ordered=order,
            attributes=_attributes(attributes),
            cluster=cluster,
            broker=broker,
        ),
    )
    _show(changed, json)


def _attributes(given: list[str] | None) -> dict[str, str | None]:
    """Read ``name=value`` and ``-name``: name → value, or None to remove it."""
    found: dict[str, str | None] = {}
    for text in given or ():
        name, equals, value = text.partition("=")
        if text.startswith("-"):
            found[text[1:]] = None
        elif equals and name:
            found[name.removeprefix("+")] = value
        else:
            raise OptionError("--attribute", text, "name=value, or -name")
    return found


@row
class TopicRow:
    """Settings of a topic at one broker."""

    broker: str
    topic: str
    read_queues: int
    write_queues: int
    perm: int
    order: bool


def _show(topic: Topic, json: bool) -> None:
    rows = [
        TopicRow(one.broker, topic.name, one.read_queues, one.write_queues, one.perm, one.ordered)
        for one in topic.brokers
    ]
    output(json).show(rows, table(TopicRow, rows))


@command(app, "delete", "kerolox topic delete TopicTest --yes")
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
    deleted = _run(nameserver, lambda topics: topics.delete_topic(topic, cluster=cluster))
    done = f"{topic} was deleted" if deleted else f"no broker had {topic}; its route was deleted"
    output(json).report(done, {"topic": topic, "brokers": deleted})


@row
class QueueRow:
    """Offsets of a queue."""

    broker: str
    queue_id: int = column("queue")
    min_offset: int
    max_offset: int
    messages: int
    last_store_time: int | None = column("last stored", time_text)


@command(app, "stats", "kerolox topic stats TopicTest")
def stats(topic: TopicName, nameserver: NameServerOption = DEFAULT_ADDRESS, json: JsonFlag = False) -> None:
    """Show the offsets of every queue of a topic, and the time of its last message."""
    rows = [
        QueueRow(one.queue.broker, one.queue.queue_id, one.first, one.end, one.messages, one.stored_ms)
        for one in _run(nameserver, lambda topics: topics.topic_stats(topic))
    ]
    output(json).show(rows, table(QueueRow, rows, empty=f"no broker has queues of topic {topic}"))


@row
class ConsumerRow:
    """Group that consumes a topic."""

    group: str
    members: int
    lag: int | None


@command(app, "consumers", "kerolox topic consumers TopicTest")
def consumers(
    topic: TopicName, nameserver: NameServerOption = DEFAULT_ADDRESS, json: JsonFlag = False
) -> None:
    """List the groups that consume a topic, with the number of members and the lag."""
    found = _run(nameserver, lambda topics: topics.topic_groups(topic))
    rows = [ConsumerRow(one.group, one.members, one.lag) for one in found]
    output(json).show(rows, table(ConsumerRow, rows, empty=f"no group consumes topic {topic}"))
