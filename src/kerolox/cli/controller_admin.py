"""``kerolox controller status``, ``settings``, ``elect`` and ``clean``"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from kerolox.cli.output import JsonFlag, OutputTable, one_line_errors, output
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
MEMBER_COLUMNS = ("controller", "address", "leads", "why not")
GROUP_COLUMNS = ("broker", "master", "address", "epoch", "in sync", "set epoch", "replicas", "alive")
REPLICA_COLUMNS = ("broker", "id", "address", "role", "in sync", "alive", "log ends at", "behind")
REFUSED = "refused"  # the role of a replica that does not copy from its leader
UNKNOWN = "-"  # of what Apache's controllers do not tell

T = TypeVar("T")

ControllerOption = Annotated[
    str,
    typer.Option(
        "--controller",
        "-a",
        envvar="KEROLOX_CONTROLLER_ADDR",
        help="Addresses of controllers, joined by ';' or ','; the others are found by them.",
        metavar="HOST:PORT",
    ),
]
BrokerOption = Annotated[str, typer.Option("--broker", help="Name of the brokers.", metavar="NAME")]


class SettingsIncomplete(KeroloxError):
    """Some controllers of the group did not answer."""

    retriable = True


class NotElected(KeroloxError):
    """The master stays who it is."""


class NotForgotten(KeroloxError):
    """The controller keeps what it knows."""


@one_line_errors
def status(
    controller: ControllerOption = DEFAULT_ADDRESS,
    broker: Annotated[
        list[str] | None, typer.Option(help="Brokers of this name only; may be repeated.", metavar="NAME")
    ] = None,
    nameserver: Annotated[
        str | None,
        typer.Option(
            "--nameserver",
            "-n",
            help="Apache's controllers tell of names that are given only: take those of all brokers from "
            "this name server.",
            metavar="HOST:PORT",
        ),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Show the controllers and who leads, and of each name of brokers the master, its epoch, who is in sync,
    who is alive, how far each is behind, who is refused and why, and for whom an election waits."""
    from kerolox.client.errors import NotFound

    async def work(controllers: Controllers) -> tuple[SeenControllers, dict[str, ReplicasInfo]]:
        seen = await controllers.survey()
        if seen.leader is None:
            return seen, {}
        names = broker or (await _registered(nameserver) if nameserver else None)
        found = await controllers.groups(seen.leader, names)
        for name in broker or ():
            if name not in found:
                await controllers.group(seen.leader, name)  # says what there is
        return seen, found

    seen, found = _run(controller, work)
    out = output(json)
    members = [
        (one.id or UNKNOWN, one.address, UNKNOWN if one.leads is None else one.leads, one.error)
        for one in seen.members
    ]
    tables = [OutputTable(MEMBER_COLUMNS, members)]
    if seen.leader is not None:
        empty = f"no broker has got an id from the controller at {seen.leader}"
        groups = [_group_row(name, one) for name, one in found.items()]
        tables.append(OutputTable(GROUP_COLUMNS, groups, empty=empty))
        if found:
            replicas = [row for each in found.items() for row in _replica_rows(*each)]
            tables.append(OutputTable(REPLICA_COLUMNS, replicas))
    document = {
        "group": seen.group,
        "leader": seen.leader,
        "controllers": [one._asdict() for one in seen.members],
        "brokers": {name: _document(one) for name, one in found.items()},
    }
    out.show(document, *tables)
    for name, one in found.items():
        for sentence in _sentences(name, one):
            out.note(sentence)
    if seen.leader is None:
        raise NotFound("no controller leads: nobody is elected until one does. Ask again in a few seconds")


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
        changed = " The others are changed; repeat the command when these answer." if wanted else ""
        raise SettingsIncomplete(f"{len(silent)} of the controllers do not answer: {which}.{changed}")


@one_line_errors
def elect(
    broker: BrokerOption,
    id: Annotated[int, typer.Option(min=1, help="The replica that is to be master.", metavar="ID")],
    accept_loss: Annotated[
        int | None,
        typer.Option(
            "--accept-loss",
            min=0,
            help="Elect it though it lacks up to so many bytes that were confirmed, or is not in sync: "
            "what it lacks is lost. Without this option the error says how many bytes those are.",
            metavar="BYTES",
        ),
    ] = None,
    controller: ControllerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Make another replica the master: one that is in sync and alive, and has all that was confirmed."""
    from kerolox.client.admin.controllers import is_master_already
    from kerolox.errors import RequestFailed

    async def work(controllers: Controllers) -> dict[str, Any]:
        leader = await controllers.leader()
        before = await controllers.group(leader, broker, [id])
        try:
            elected = await controllers.elect(leader, broker, id, accepted_loss=accept_loss)
        except RequestFailed as error:
            if is_master_already(error):
                raise NotElected(
                    f"replica {id} of {broker} is master already, in epoch {before.master_epoch}"
                ) from error
            raise NotElected(f"replica {id} of {broker} was not elected: {error.remark or error}") from error
        return {
            "broker": broker,
            "master": elected.master_broker_id,
            "address": elected.master_address,
            "masterEpoch": elected.master_epoch,
            "before": before.master_broker_id,
        }

    found = _run(controller, work)
    columns = ("broker", "master", "address", "epoch", "before")
    output(json).show(found, OutputTable(columns, [tuple(found.values())]))


@one_line_errors
def clean(
    broker: BrokerOption,
    id: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Forget this replica; may be repeated. Without: all of that name."),
    ] = None,
    even_living: Annotated[
        bool, typer.Option("--even-living", help="Forget all of that name, though some are alive.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
    controller: ControllerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Let the controller forget replicas that will not come back. One that does needs a new id: remove its
    file brokerIdentity."""
    if id and even_living:
        raise OptionError("--even-living", True, "no --id beside it: all replicas of the name are forgotten")
    ids = sorted(set(id or ()))
    which = f"replicas {', '.join(map(str, ids))}" if ids else "all replicas"
    if not yes:
        typer.confirm(f"Forget {which} of {broker}?", abort=True, err=True)

    async def work(controllers: Controllers) -> None:
        from kerolox.errors import RequestFailed

        leader = await controllers.leader()
        await controllers.group(leader, broker, ids)
        try:
            await controllers.clean(leader, broker, ids, even_living)
        except RequestFailed as error:
            raise NotForgotten(f"nothing was forgotten: {error.remark or error}") from error

    _run(controller, work)
    out = output(json)
    out.note(f"{which} of {broker} are forgotten")
    if json:
        out.show({"broker": broker, "ids": ids or None})


def _run(addresses: str, work: Callable[[Controllers], Coroutine[Any, Any, T]]) -> T:
    from kerolox.cli.nameservers import new_dialer, split_addresses
    from kerolox.client.admin.controllers import Controllers
    from kerolox.net.loop import run

    async def main() -> T:
        async with new_dialer() as dialer:
            return await work(Controllers(dialer, split_addresses(addresses)))

    return run(main())


async def _registered(nameserver: str) -> list[str]:
    """The names of brokers that a name server knows."""
    from kerolox.cli.nameservers import new_dialer, split_addresses
    from kerolox.client.admin.admin import Admin
    from kerolox.client.nameservers import NameServers

    async with new_dialer() as dialer:
        admin = Admin(NameServers(split_addresses(nameserver), dialer), dialer)
        return sorted((await admin.cluster_info()).broker_addr_table)


def _replicas(info: ReplicasInfo) -> list[tuple[ReplicaIdentity, bool]]:
    """All of a name, by id, and whether each is in sync."""
    found = [(one, True) for one in info.in_sync_replicas] + [
        (one, False) for one in info.not_in_sync_replicas
    ]
    return sorted(found, key=lambda each: each[0].broker_id)


def _sentences(name: str, info: ReplicasInfo) -> Iterator[str]:
    """What stands against an election, or against a replica."""
    if info.waits_for is not None:
        ids = ", ".join(map(str, info.waits_for)) or "nobody"
        yield (
            f"{name}: the controller's state is an older copy. Nobody is elected until all in sync have said "
            f"which set they know; waiting for {ids}"
        )
    for one, in_sync in _replicas(info):
        if one.lacks and (in_sync or info.master_broker_id is None):
            yield (
                f"{name}: replica {one.broker_id} lacks {one.lacks} bytes that were confirmed, up to "
                f"{info.confirmed}, so it is not elected. Start one that has them; or give them up: kerolox "
                f"controller elect --broker {name} --id {one.broker_id} --accept-loss {one.lacks}"
            )
        if one.refused:
            yield f"{name}: replica {one.broker_id} does not copy from the master: {one.refused}"


def _role(info: ReplicasInfo, one: ReplicaIdentity) -> str:
    if one.broker_id == info.master_broker_id:
        return "master"
    return REFUSED if one.refused else "replica"


def _behind(info: ReplicasInfo, one: ReplicaIdentity) -> int | None:
    if one.refused:
        return None  # its log is another one
    ends = {each.broker_id: each.max_offset for each, _ in _replicas(info)}
    master = None if info.master_broker_id is None else ends.get(info.master_broker_id)
    return None if master is None or one.max_offset is None else max(0, master - one.max_offset)


def _group_row(name: str, info: ReplicasInfo) -> tuple[object, ...]:
    replicas = _replicas(info)
    return (
        name,
        "none" if info.master_broker_id is None else info.master_broker_id,
        info.master_address or UNKNOWN,
        info.master_epoch,
        ", ".join(str(one.broker_id) for one, in_sync in replicas if in_sync) or "none",
        info.sync_state_set_epoch,
        len(replicas),
        sum(one.alive for one, _ in replicas),
    )


def _replica_rows(name: str, info: ReplicasInfo) -> list[tuple[object, ...]]:
    return [
        (
            name,
            one.broker_id,
            one.broker_address,
            _role(info, one),
            in_sync,
            one.alive,
            UNKNOWN if one.max_offset is None else one.max_offset,
            UNKNOWN if (behind := _behind(info, one)) is None else behind,
        )
        for one, in_sync in _replicas(info)
    ]


def _document(info: ReplicasInfo) -> dict[str, Any]:
    return {
        "master": info.master_broker_id,
        "address": info.master_address,
        "masterEpoch": info.master_epoch,
        "inSyncEpoch": info.sync_state_set_epoch,
        "confirmed": info.confirmed,
        "waitsFor": None if info.waits_for is None else list(info.waits_for),
        "replicas": [
            {
                "id": one.broker_id,
                "address": one.broker_address,
                "inSync": in_sync,
                "alive": one.alive,
                "maxOffset": one.max_offset,
                "confirmOffset": one.confirm_offset,
                "behindBytes": _behind(info, one),
                "lacksBytes": one.lacks,
                "refused": one.refused,
            }
            for one, in_sync in _replicas(info)
        ],
    }
