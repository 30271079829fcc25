"""``kerolox kv``"""

from __future__ import annotations

from typing import Annotated

import typer

from kerolox.cli.nameservers import DEFAULT_ADDRESS, NameServerOption, NameServers, run_with
from kerolox.cli.output import JsonFlag, Table, one_line_errors, output

app = typer.Typer(
    help="Settings kept by name servers; ORDER_TOPIC_CONFIG is the namespace of ordered topics.",
    no_args_is_help=True,
)

Namespace = Annotated[str, typer.Argument(help="Namespace of the setting.")]
Key = Annotated[str, typer.Argument(help="Its key.")]


@app.command("get", epilog="Example: kerolox kv get ORDER_TOPIC_CONFIG TopicTest")
@one_line_errors
def get(
    namespace: Namespace, key: Key, nameserver: NameServerOption = DEFAULT_ADDRESS, json: JsonFlag = False
) -> None:
    """Print one value."""
    from kerolox.protocol.codes import RequestCode
    from kerolox.protocol.headers.kv import GetKvAnswer, GetKvRequest

    async def work(servers: NameServers) -> str:
        asked = GetKvRequest(namespace=namespace, key=key)
        answer = await servers.ask(RequestCode.GET_KV_CONFIG, asked)
        return answer.header(GetKvAnswer).value or ""

    output(json).show(run_with(nameserver, work))


@app.command("put", epilog="Example: kerolox kv put ORDER_TOPIC_CONFIG TopicTest 'broker-a:4;broker-b:4'")
@one_line_errors
def put(
    namespace: Namespace,
    key: Key,
    value: Annotated[str, typer.Argument(help="Its new value.")],
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Set a value, at every name server given."""
    from kerolox.protocol.codes import RequestCode
    from kerolox.protocol.headers.kv import PutKvRequest

    told = PutKvRequest(namespace=namespace, key=key, value=value)
    run_with(nameserver, lambda servers: servers.tell_all(RequestCode.PUT_KV_CONFIG, told))
    out = output(json)
    out.note(f"{namespace} {key} is set")
    if json:
        out.show({"namespace": namespace, "key": key, "value": value})


@app.command("delete", epilog="Example: kerolox kv delete ORDER_TOPIC_CONFIG TopicTest")
@one_line_errors
def delete(
    namespace: Namespace, key: Key, nameserver: NameServerOption = DEFAULT_ADDRESS, json: JsonFlag = False
) -> None:
    """Delete a value, at every name server given."""
    from kerolox.protocol.codes import RequestCode
    from kerolox.protocol.headers.kv import DeleteKvRequest

    told = DeleteKvRequest(namespace=namespace, key=key)
    run_with(nameserver, lambda servers: servers.tell_all(RequestCode.DELETE_KV_CONFIG, told))
    out = output(json)
    out.note(f"{namespace} {key} is deleted")
    if json:
        out.show({"namespace": namespace, "key": key})


@app.command("list", epilog="Example: kerolox kv list ORDER_TOPIC_CONFIG --json")
@one_line_errors
def list_values(
    namespace: Namespace, nameserver: NameServerOption = DEFAULT_ADDRESS, json: JsonFlag = False
) -> None:
    """List all values of a namespace."""
    from kerolox.protocol.bodies.routes import KVTable
    from kerolox.protocol.codes import RequestCode
    from kerolox.protocol.headers.kv import KvListRequest

    async def work(servers: NameServers) -> dict[str, str]:
        asked = KvListRequest(namespace=namespace)
        return KVTable.decode((await servers.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, asked)).body).table

    values = run_with(nameserver, work)
    output(json).show(values, Table(("key", "value"), sorted(values.items())))
