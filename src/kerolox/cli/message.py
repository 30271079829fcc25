"""``kerolox message``"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from kerolox.cli import completion
from kerolox.cli.messages import COLUMNS, Begin, End, KeyFilter, LimitOption, document, documents, row
from kerolox.cli.nameservers import DEFAULT_ADDRESS, NameServerOption, run_admin
from kerolox.cli.output import JsonFlag, OutputTable, command, echo, output
from kerolox.errors import OptionError
from kerolox.times import parse_time, time_text

if TYPE_CHECKING:
    from kerolox.client.admin.calls import AdminCalls
    from kerolox.client.admin.lookups import FoundRecords
    from kerolox.protocol.message import StoredMessage

app = typer.Typer(help="Show and find stored messages.", no_args_is_help=True)


@command(app, "get", "kerolox message get 7F00000100002A9F00000000000003E8")
def get(
    id: Annotated[
        str, typer.Argument(help="Offset id or unique key of the message; with --topic also a user key.")
    ],
    topic: Annotated[str | None, typer.Option(help="Topic of the message.")] = None,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Show a message with all its fields."""

    async def work(admin: AdminCalls) -> StoredMessage:
        from kerolox.client.admin.lookups import Lookups

        return await Lookups(admin).by_id(id, topic)

    found = document(run_admin(nameserver, work))
    output(json).show(
        found, OutputTable(("", ""), [(key, _shown(key, value)) for key, value in found.items()])
    )


@command(app, "find", "kerolox message find TopicTest --key order-42 --from 2h")
def find(
    topic: Annotated[str, typer.Argument(help="Topic of the messages.", autocompletion=completion.topics)],
    key: KeyFilter = None,
    begin: Begin = None,
    end: End = None,
    limit: LimitOption = 100,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Find messages by key, by time, or both. Reports when the result is truncated."""
    from kerolox.client.errors import NotFound
    from kerolox.clock import SYSTEM_CLOCK
    from kerolox.protocol.limits import INT64_MAX

    now_ms = SYSTEM_CLOCK.wall_ms()
    begin_ms = 0 if begin is None else parse_time(begin, now_ms, "--from")
    end_ms = INT64_MAX if end is None else parse_time(end, now_ms, "--to")

    async def work(admin: AdminCalls) -> FoundRecords:
        from kerolox.client.admin.lookups import Lookups

        if key is None:
            return await Lookups(admin).by_time(topic, begin_ms, end_ms, limit)
        found = await Lookups(admin).by_key(topic, key, begin_ms=begin_ms, end_ms=end_ms)
        if len(found.messages) > limit:
            found.cut = f"the first {limit} of {len(found.messages)}"
            found.messages = found.messages[:limit]
        return found

    found = run_admin(nameserver, work)
    if not found.messages:
        sought = (("--key", key), ("--from", begin), ("--to", end))
        wanted = " ".join(f"{option} {value}" for option, value in sought if value is not None)
        raise NotFound(f"topic {topic} has no {f'message that matches {wanted}' if wanted else 'messages'}")
    shown = {
        "messages": documents(found.messages),
        "complete": not found.cut,
        "cut": found.cut or None,
    }
    output(json).show(shown, OutputTable(COLUMNS, [row(message) for message in found.messages]))
    if found.cut:
        echo(f"truncated: {found.cut}", err=True)


@command(app, "resume", "kerolox message resume 7F00000100002A9F00000000000003E8")
def resume(
    id: Annotated[str, typer.Argument(help="Offset id of the half message.", metavar="ID")],
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Resume the transaction checks of a half message after the broker gave up.

    The broker asks the producer again.
    """
    from kerolox.client.admin.lookups import place_of
    from kerolox.client.admin.servers import Servers
    from kerolox.protocol.hosts import host_text

    place = place_of(id)
    if place is None:
        raise OptionError("ID", id, "an offset id of 32 or 56 hexadecimal digits, as message get shows it")
    address = host_text(place.store_host)
    run_admin(nameserver, lambda admin: Servers(admin).resume_check(address, id, None))
    sentence = f"the broker at {address} will ask the producer of {id} again"
    output(json).report(sentence, {"id": id, "broker": address})


def _shown(key: str, value: Any) -> object:
    if key in ("bornTime", "storeTime"):
        return time_text(value)
    if key == "properties":
        return ", ".join(f"{name}={text}" for name, text in sorted(value.items()))
    return " ".join(value) if isinstance(value, list) else value
