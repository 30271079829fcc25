"""``kerolox topic``"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kerolox.cli.nameservers import DEFAULT_ADDRESS, NameServerOption, NameServers, run_with
from kerolox.cli.output import JsonFlag, Output, Table, one_line_errors, output

if TYPE_CHECKING:
    from kerolox.protocol.bodies.routes import TopicRoute

app = typer.Typer(help="Topics and where they are served.", no_args_is_help=True)


@app.command("list", epilog="Example: kerolox topic list --cluster DefaultCluster")
@one_line_errors
def list_topics(
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    cluster: Annotated[str | None, typer.Option(help="Only topics with queues in this cluster.")] = None,
    json: JsonFlag = False,
) -> None:
    """List the topics name servers know."""
    from kerolox.protocol.bodies.routes import TopicList
    from kerolox.protocol.codes import RequestCode
    from kerolox.protocol.headers.route import ClusterTopicsRequest

    async def work(servers: NameServers) -> TopicList:
        if cluster is None:
            answer = await servers.ask(RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER)
        else:
            answer = await servers.ask(
                RequestCode.GET_TOPICS_BY_CLUSTER, ClusterTopicsRequest(cluster=cluster)
            )
        return TopicList.decode(answer.body)

    topics = sorted(run_with(nameserver, work).topic_list)
    output(json).show(topics, Table(("topic",), [(topic,) for topic in topics]))


@app.command("route", epilog="Example: kerolox topic route TopicTest")
@one_line_errors
def route(
    topic: Annotated[str, typer.Argument(help="Name of the topic.")],
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Show which brokers serve a topic, with how many queues."""
    show_route(output(json), topic, run_with(nameserver, lambda servers: ask_route(servers, topic)))


async def ask_route(servers: NameServers, topic: str) -> TopicRoute:
    from kerolox.protocol.bodies.routes import TopicRoute
    from kerolox.protocol.codes import RequestCode
    from kerolox.protocol.headers.route import RouteRequest

    asked = RouteRequest(topic=topic, standard_json_only=True)
    return TopicRoute.decode((await servers.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, asked)).body)


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
    out.show(json.loads(found.encode()), Table(columns, queues, title=f"topic {topic}"))


def perm_words(perm: int) -> str:
    """``6`` → ``read, write``."""
    words = [word for bit, word in ((4, "read"), (2, "write")) if perm & bit]
    return ", ".join(words) or "none"
