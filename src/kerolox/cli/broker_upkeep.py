"""``kerolox broker status``, ``settings``, ``drain``, ``undrain`` and ``expire``"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from kerolox.cli.nameservers import DEFAULT_ADDRESS, NameServerOption, run_admin
from kerolox.cli.output import JsonFlag, column, one_line_errors, output, row, table
from kerolox.cli.settings import KeysArgument, SetOption, changes_of, matching, settings_tables
from kerolox.errors import OptionError

if TYPE_CHECKING:
    from kerolox.client.admin.calls import AdminCalls

STATUS_EXAMPLE = "Example: kerolox broker status --broker broker-a"
SETTINGS_EXAMPLE = "Example: kerolox broker settings fileReserved --set fileReservedTime=24 --broker broker-a"
DRAIN_EXAMPLE = "Example: kerolox broker drain broker-a"
UNDRAIN_EXAMPLE = "Example: kerolox broker undrain broker-a"
EXPIRE_EXAMPLE = "Example: kerolox broker expire --broker broker-a"

NameOption = Annotated[
    str | None, typer.Option("--broker", help="Name of the broker. Default: all brokers.", metavar="NAME")
]
IdOption = Annotated[
    int | None,
    typer.Option(min=0, help="Id of the broker: 0 for the master. Default: all ids.", metavar="ID"),
]
AddressOption = Annotated[
    str | None,
    typer.Option("--address", "-b", help="Address of the broker, without name servers.", metavar="HOST:PORT"),
]
NameArgument = Annotated[str, typer.Argument(help="Name of the broker.", metavar="BROKER")]


@one_line_errors
def status(
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    broker: NameOption = None,
    id: IdOption = None,
    address: AddressOption = None,
    json: JsonFlag = False,
) -> None:
    """Show the runtime statistics of brokers."""
    from kerolox.client.admin.servers import Servers

    async def work(admin: AdminCalls) -> dict[str, dict[str, str]]:
        brokers = await Servers(admin).brokers(broker, id, address)
        return {name: await admin.runtime_info(at) for name, at in brokers.items()}

    found = run_admin(nameserver, work)
    output(json).show(found, *settings_tables(found, ("figure", "value")))


@one_line_errors
def settings(
    keys: KeysArgument = None,
    changes: SetOption = None,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    broker: NameOption = None,
    id: IdOption = None,
    address: AddressOption = None,
    json: JsonFlag = False,
) -> None:
    """Show settings of brokers, or change them at run time. Changes need --broker or --address."""
    from kerolox.client.admin.servers import Servers, change_settings, read_settings
    from kerolox.protocol.codes import RequestCode

    wanted = changes_of(changes)
    if wanted and broker is None and address is None:
        raise OptionError("--set", (changes or [""])[0], "--broker NAME or --address HOST:PORT as well")

    async def work(admin: AdminCalls) -> dict[str, dict[str, str]]:
        show, update = RequestCode.GET_BROKER_CONFIG, RequestCode.UPDATE_BROKER_CONFIG
        found: dict[str, dict[str, str]] = {}
        for name, at in (await Servers(admin).brokers(broker, id, address)).items():
            if wanted:
                await change_settings(admin.ask, at, wanted, show=show, update=update)
            found[name] = await read_settings(admin.ask, at, show)
        return found

    found = run_admin(nameserver, work)
    shown = {name: matching(f"broker {name}", table, keys, wanted) for name, table in found.items()}
    output(json).show(shown, *settings_tables(shown, ("setting", "value")))


@one_line_errors
def drain(
    broker: NameArgument, nameserver: NameServerOption = DEFAULT_ADDRESS, json: JsonFlag = False
) -> None:
    """Remove a broker's topics from the routes for sending. Producers notice within 30 s."""
    _drain(broker, nameserver, json, writable=False)


@one_line_errors
def undrain(
    broker: NameArgument, nameserver: NameServerOption = DEFAULT_ADDRESS, json: JsonFlag = False
) -> None:
    """Restore a drained broker's topics in the routes for sending."""
    _drain(broker, nameserver, json, writable=True)


@row
class DrainRow:
    """Change of a broker's topics at a name server."""

    nameserver: str = column("name server")
    broker: str
    writable: bool
    topics_changed: int


def _drain(broker: str, nameserver: str, json: bool, *, writable: bool) -> None:
    from kerolox.client.admin.servers import Servers

    found = run_admin(nameserver, lambda admin: Servers(admin).drain(broker, writable=writable))
    rows = [DrainRow(address, broker, writable, count) for address, count in found.items()]
    output(json).show(rows, table(DrainRow, rows))


@row
class ExpireRow:
    """Broker that was ordered to delete its expired files."""

    broker: str
    address: str
    ordered: bool


@one_line_errors
def expire(
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    broker: NameOption = None,
    id: IdOption = None,
    address: AddressOption = None,
    json: JsonFlag = False,
) -> None:
    """Delete expired files now: log files older than fileReservedTime, and queue files without messages.

    Needs --broker or --address. The newest log file stays.
    """
    from kerolox.client.admin.servers import Servers

    if broker is None and address is None:
        raise OptionError("--broker", broker, "a name, or --address of the broker")

    async def work(admin: AdminCalls) -> dict[str, str]:
        servers = Servers(admin)
        brokers = await servers.brokers(broker, id, address)
        for at in brokers.values():
            await servers.expire(at)
        return brokers

    ordered = run_admin(nameserver, work)
    rows = [ExpireRow(name, at, True) for name, at in ordered.items()]
    output(json).show(rows, table(ExpireRow, rows))
