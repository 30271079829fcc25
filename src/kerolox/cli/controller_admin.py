"""``kerolox controller status``, ``settings``, ``elect`` and ``clean``"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from kerolox.cli.output import JsonFlag, OutputTable, column, one_line_errors, output, row, table
from kerolox.cli.settings import KeysArgument, SetOption, changes_of, matching, settings_tables
from kerolox.errors import KeroloxError, OptionError

if TYPE_CHECKING:
    from kerolox.client.admin.controllers import Controllers, SeenControllers
    from kerolox.protocol.bodies.controller import ReplicaIdentity, ReplicasInfo

STATUS_EXAMPLE = "Example: kerolox controller status --controller 10.0.0.1:9878"
ELECT_EXAMPLE = "Example: kerolox controller elect --broker broker-a --id 2"
CLEAN_EXAMPLE = "Example: kerolox controller clean --broker broker-a --id 3 --yes"

SETTINGS_EXAMPLE = "Example: kerolox controller settings unclean --set enableElectUncleanMaster=true"

DEFAULT_ADDRESS = "127.0.0.1:9878"
REFUSED = "refused"  # role of a replica that its leader rejects
UNKNOWN = "-"  # value that Apache's controllers do not report

T = TypeVar("T")

ControllerOption = Annotated[
    str,
    typer.Option(
        "--controller",
        "-a",
        envvar="KEROLOX_CONTROLLER_ADDR",
        help="Controller addresses, separated by ';' or ','. The others of the group are discovered.",
        metavar="HOST:PORT",
    ),
]
BrokerOption = Annotated[str, typer.Option("--broker", help="Broker name of the replicas.", metavar="NAME")]


@row
class ReplicaRow:
    """Replica of a broker name."""

    broker: str = column("broker", in_json=False)
    id: int
    address: str
    role: str = column("role", in_json=False)
    in_sync: bool
    alive: bool
    max_offset: int | None = column("log ends at")
    confirm_offset: int | None = column(None)
    behind_bytes: int | None = column("behind")
    lacks_bytes: int | None = column(None)
    refused: str | None = column(None)


@row
class BrokerRow:
    """Broker name and its replicas."""

    broker: str = column("broker", in_json=False)
    master: int | None = column("master", lambda id: "none" if id is None else id)
    address: str | None = column("address", lambda address: address or UNKNOWN)
    master_epoch: int | None = column("epoch")
    in_sync: str = column("in sync", in_json=False)
    in_sync_epoch: int | None = column("set epoch")
    confirmed: int | None = column(None)
    waits_for: list[int] | None = column(None)
    replicas: list[ReplicaRow] = column("replicas", len)
    alive: int = column("alive", in_json=False)


@row
class ElectedRow:
    """Result of an election."""

    broker: str
    master: int | None
    address: str | None
    master_epoch: int | None = column("epoch")
    before: int | None


class SettingsIncomplete(KeroloxError):
    """Some controllers of the group did not answer."""

    retriable = True


class NotElected(KeroloxError):
    """The controller did not elect another master."""


class NotForgotten(KeroloxError):
    """The controller did not remove the replicas."""


@one_line_errors
def status(
    controller: ControllerOption = DEFAULT_ADDRESS,
    broker: Annotated[
        list[str] | None, typer.Option(help="Show only this broker name. Repeatable.", metavar="NAME")
    ] = None,
    nameserver: Annotated[
        str | None,
        typer.Option(
            "--nameserver",
            "-n",
            help="Name server with the broker names. Apache's controllers answer only for given names.",
            metavar="HOST:PORT",
        ),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Show the controllers, their leader, and the state of every broker group.

    For each broker name: the master and its epoch, the in-sync set, the live replicas and their lag, rejected
    replicas with the reason, and the replicas that an election waits for.
    """
    from kerolox.client.errors import NotFound

    async def work(controllers: Controllers) -> tuple[SeenControllers, dict[str, ReplicasInfo]]:
        seen = await controllers.survey()
        if seen.leader is None:
            return seen, {}
        names = broker or (await _registered(nameserver) if nameserver else None)
        found = await controllers.groups(seen.leader, names)
        for name in broker or ():
            if name not in found:
                await controllers.group(seen.leader, name)  # raises an error that lists the known names
        return seen, found

    seen, found = _run(controller, work)
    out = output(json)
    members = [
        (one.id or UNKNOWN, one.address, UNKNOWN if one.leads is None else one.leads, one.error)
        for one in seen.members
    ]
    tables = [OutputTable(("controller", "address", "leads", "why not"), members)]
    brokers = [_broker_row(name, one) for name, one in found.items()]
    if seen.leader is not None:
        empty = f"no broker is registered with the controller at {seen.leader}"
        tables.append(table(BrokerRow, brokers, empty=empty, unknown=UNKNOWN))
        if brokers:
            replicas = [replica for one in brokers for replica in one.replicas]
            tables.append(table(ReplicaRow, replicas, unknown=UNKNOWN))
    document = {
        "group": seen.group,
        "leader": seen.leader,
        "controllers": [one._asdict() for one in seen.members],
        "brokers": {one.broker: one for one in brokers},
    }
    out.show(document, *tables)
    for name, one in found.items():
        for sentence in _sentences(name, one):
            out.note(sentence)
    if seen.leader is None:
        raise NotFound("the controllers have no leader, so no master can be elected. Retry in a few seconds")


@one_line_errors
def settings(
    keys: KeysArgument = None,
    changes: SetOption = None,
    controller: ControllerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Show settings of all controllers of a group, or change them at run time."""
    wanted = changes_of(changes)

    async def work(controllers: Controllers) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
        found: dict[str, dict[str, str]] = {}
        silent: dict[str, str] = {}
        for member in (await controllers.survey()).members:
            if member.error is not None:
                silent[member.address] = member.error
                continue
            if wanted:
                await controllers.change(member.address, wanted)
            found[member.address] = await controllers.settings(member.address)
        return found, silent

    found, silent = _run(controller, work)
    shown = {at: matching(f"the controller at {at}", table, keys, wanted) for at, table in found.items()}
    output(json).show(shown, *settings_tables(shown, ("setting", "value")))
    if silent:
        which = "; ".join(f"{at}: {error}" for at, error in silent.items())
        changed = " The others were changed. Repeat the command when these answer." if wanted else ""
        raise SettingsIncomplete(f"{len(silent)} of the controllers did not answer: {which}.{changed}")


@one_line_errors
def elect(
    broker: BrokerOption,
    id: Annotated[int, typer.Option(min=1, help="Id of the replica to elect.", metavar="ID")],
    accept_loss: Annotated[
        int | None,
        typer.Option(
            "--accept-loss",
            min=0,
            help="Elect the replica even if it is not in sync or lacks up to this many confirmed bytes, "
            "which are lost. Without this option, the error reports how many bytes it lacks.",
            metavar="BYTES",
        ),
    ] = None,
    controller: ControllerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Elect another replica as master. It must be alive and in sync, and have all confirmed data."""
    from kerolox.client.admin.controllers import is_master_already
    from kerolox.errors import RequestFailed

    async def work(controllers: Controllers) -> ElectedRow:
        leader = await controllers.leader()
        before = await controllers.group(leader, broker, [id])
        try:
            elected = await controllers.elect(leader, broker, id, accepted_loss=accept_loss)
        except RequestFailed as error:
            if is_master_already(error):
                raise NotElected(
                    f"replica {id} of {broker} is the master already, in epoch {before.master_epoch}"
                ) from error
            raise NotElected(f"replica {id} of {broker} was not elected: {error.remark or error}") from error
        return ElectedRow(
            broker,
            elected.master_broker_id,
            elected.master_address,
            elected.master_epoch,
            before.master_broker_id,
        )

    found = _run(controller, work)
    output(json).show(found, table(ElectedRow, [found]))


@one_line_errors
def clean(
    broker: BrokerOption,
    id: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Id of a replica to remove. Repeatable. Default: all of the broker name."),
    ] = None,
    even_living: Annotated[
        bool, typer.Option("--even-living", help="Remove all replicas of the name, even if some are alive.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Skip the confirmation prompt.")] = False,
    controller: ControllerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Remove permanently lost replicas from the controller.

    A removed replica that returns needs a new id: delete its file brokerIdentity.
    """
    if id and even_living:
        raise OptionError("--even-living", True, "no --id: this option removes all replicas of the name")
    ids = sorted(set(id or ()))
    which = f"replicas {', '.join(map(str, ids))}" if ids else "all replicas"
    if not yes:
        typer.confirm(f"Remove {which} of {broker} from the controller?", abort=True, err=True)

    async def work(controllers: Controllers) -> None:
        from kerolox.errors import RequestFailed

        leader = await controllers.leader()
        await controllers.group(leader, broker, ids)
        try:
            await controllers.clean(leader, broker, ids, even_living)
        except RequestFailed as error:
            raise NotForgotten(f"no replica was removed: {error.remark or error}") from error

    _run(controller, work)
    output(json).report(f"{which} of {broker} were removed", {"broker": broker, "ids": ids or None})


def _run(addresses: str, work: Callable[[Controllers], Coroutine[Any, Any, T]]) -> T:
    from kerolox.cli.nameservers import new_dialer, split_addresses
    from kerolox.client.admin.controllers import Controllers
    from kerolox.net.loop import run

    async def main() -> T:
        async with new_dialer() as dialer:
            return await work(Controllers(dialer, split_addresses(addresses)))

    return run(main())


async def _registered(nameserver: str) -> list[str]:
    """Return the broker names registered at a name server."""
    from kerolox.cli.nameservers import new_dialer, split_addresses
    from kerolox.client.admin.calls import AdminCalls
    from kerolox.client.nameservers import NameServers

    async with new_dialer() as dialer:
        admin = AdminCalls(NameServers(split_addresses(nameserver), dialer), dialer)
        return sorted((await admin.cluster_info()).broker_addr_table)


def _replicas(info: ReplicasInfo) -> list[tuple[ReplicaIdentity, bool]]:
    """Return all replicas of a broker name, ordered by id, each with True if it is in sync."""
    found = [(one, True) for one in info.in_sync_replicas] + [
        (one, False) for one in info.not_in_sync_replicas
    ]
    return sorted(found, key=lambda each: each[0].broker_id)


def _sentences(name: str, info: ReplicasInfo) -> Iterator[str]:
    """Yield a sentence for each obstacle to an election and for each rejected replica."""
    if info.waits_for is not None:
        ids = ", ".join(map(str, info.waits_for)) or "none"
        yield (
            f"{name}: the controller's state is an older copy. No master is elected until all replicas in "
            f"sync have reported the set they know. Waiting for replicas: {ids}"
        )
    for one, in_sync in _replicas(info):
        if one.lacks and (in_sync or info.master_broker_id is None):
            yield (
                f"{name}: replica {one.broker_id} lacks {one.lacks} confirmed bytes, up to "
                f"{info.confirmed}, so it is not elected. Start a replica that has them, or accept the "
                f"loss: kerolox controller elect --broker {name} --id {one.broker_id} --accept-loss "
                f"{one.lacks}"
            )
        if one.refused:
            yield f"{name}: replica {one.broker_id} does not replicate from the master: {one.refused}"


def _role(info: ReplicasInfo, one: ReplicaIdentity) -> str:
    if one.broker_id == info.master_broker_id:
        return "master"
    return REFUSED if one.refused else "replica"


def _behind(info: ReplicasInfo, one: ReplicaIdentity) -> int | None:
    if one.refused:
        return None  # its log has diverged from the master's
    ends = {each.broker_id: each.max_offset for each, _ in _replicas(info)}
    master = None if info.master_broker_id is None else ends.get(info.master_broker_id)
    return None if master is None or one.max_offset is None else max(0, master - one.max_offset)


def _broker_row(name: str, info: ReplicasInfo) -> BrokerRow:
    replicas = [
        ReplicaRow(
            name,
            one.broker_id,
            one.broker_address,
            _role(info, one),
            in_sync,
            one.alive,
            one.max_offset,
            one.confirm_offset,
            _behind(info, one),
            one.lacks,
            one.refused,
        )
        for one, in_sync in _replicas(info)
    ]
    return BrokerRow(
        name,
        info.master_broker_id,
        info.master_address,
        info.master_epoch,
        ", ".join(str(one.id) for one in replicas if one.in_sync) or "none",
        info.sync_state_set_epoch,
        info.confirmed,
        None if info.waits_for is None else list(info.waits_for),
        replicas,
        sum(one.alive for one in replicas),
    )
