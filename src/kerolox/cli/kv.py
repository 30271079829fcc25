"""``kerolox kv``"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kerolox.cli.nameservers import DEFAULT_ADDRESS, NameServerOption, run_with
from kerolox.cli.output import JsonFlag, OutputTable, command, output
from kerolox.errors import KeroloxError, RequestFailed, nearest

if TYPE_CHECKING:
    from kerolox.client.nameservers import NameServers

app = typer.Typer(
    help="Manage key-value settings of name servers. Ordered topics use the namespace ORDER_TOPIC_CONFIG.",
    no_args_is_help=True,
)

Namespace = Annotated[str, typer.Argument(help="Namespace of the setting.")]
KeyArgument = Annotated[str, typer.Argument(help="Key of the setting.")]


@command(app, "get", "kerolox kv get ORDER_TOPIC_CONFIG TopicTest")
def get(
    namespace: Namespace,
    key: KeyArgument,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Print one value."""
    from kerolox.protocol.codes import RequestCode
    from kerolox.protocol.headers.kv import GetKvAnswer, GetKvRequest

    async def work(servers: NameServers) -> str:
        asked = GetKvRequest(namespace=namespace, key=key)
        try:
            answer = await servers.ask(RequestCode.GET_KV_CONFIG, asked)
        except RequestFailed as error:
            raise await _missing(servers, namespace, key, error) from None
        return answer.header(GetKvAnswer).value or ""

    output(json).show(run_with(nameserver, work))


async def _missing(
    servers: NameServers, namespace: str, key: str | None, error: RequestFailed
) -> KeroloxError:
    """Return the error of a failed lookup: NotFound for an unknown namespace or key, else ``error``."""
    from kerolox.client.errors import NotFound
    from kerolox.protocol.codes import ResponseCode

    if error.response_code != ResponseCode.QUERY_NOT_FOUND:
        return error
    known: dict[str, str] = {}
    if key is not None:
        try:
            known = await _values(servers, namespace)
        except RequestFailed:
            pass
    if not known:
        return NotFound(f"namespace {namespace!r} does not exist at name server {error.address}")
    near = nearest(key or "", known)
    return NotFound(f"namespace {namespace!r} at {error.address} has no key {key!r}.{near}")


async def _values(servers: NameServers, namespace: str) -> dict[str, str]:
    from kerolox.protocol.bodies.routes import KVTable
    from kerolox.protocol.codes import RequestCode
    from kerolox.protocol.headers.kv import KvListRequest

    asked = KvListRequest(namespace=namespace)
    return KVTable.decode((await servers.ask(RequestCode.GET_KVLIST_BY_NAMESPACE, asked)).body).table


@command(app, "put", "kerolox kv put ORDER_TOPIC_CONFIG TopicTest 'broker-a:4;broker-b:4'")
def put(
    namespace: Namespace,
    key: KeyArgument,
    value: Annotated[str, typer.Argument(help="New value.")],
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Set a value at every given name server."""
    from kerolox.protocol.codes import RequestCode
    from kerolox.protocol.headers.kv import PutKvRequest

    told = PutKvRequest(namespace=namespace, key=key, value=value)
    run_with(nameserver, lambda servers: servers.tell_all(RequestCode.PUT_KV_CONFIG, told))
    document = {"namespace": namespace, "key": key, "value": value}
    output(json).report(f"{namespace} {key} was set", document)


@command(app, "delete", "kerolox kv delete ORDER_TOPIC_CONFIG TopicTest")
def delete(
    namespace: Namespace,
    key: KeyArgument,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Delete a value at every given name server."""
    from kerolox.protocol.codes import RequestCode
    from kerolox.protocol.headers.kv import DeleteKvRequest, GetKvRequest

    async def work(servers: NameServers) -> None:
        missing: list[KeroloxError] = []
        for one in servers.each():
            try:
                await one.ask(RequestCode.GET_KV_CONFIG, GetKvRequest(namespace=namespace, key=key))
            except RequestFailed as error:
                missing.append(await _missing(one, namespace, key, error))
        await servers.tell_all(RequestCode.DELETE_KV_CONFIG, DeleteKvRequest(namespace=namespace, key=key))
        if len(missing) == len(servers.addresses):  # no name server had it
            raise missing[0]

    run_with(nameserver, work)
    output(json).report(f"{namespace} {key} was deleted", {"namespace": namespace, "key": key})


@command(app, "list", "kerolox kv list ORDER_TOPIC_CONFIG --json")
def list_values(
    namespace: Namespace, nameserver: NameServerOption = DEFAULT_ADDRESS, json: JsonFlag = False
) -> None:
    """List all values of a namespace."""

    async def work(servers: NameServers) -> dict[str, str]:
        try:
            return await _values(servers, namespace)
        except RequestFailed as error:
            raise await _missing(servers, namespace, None, error) from None

    values = run_with(nameserver, work)
    empty = f"namespace {namespace} is empty"
    output(json).show(values, OutputTable(("key", "value"), sorted(values.items()), empty=empty))
