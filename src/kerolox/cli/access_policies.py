"""``kerolox access policy``"""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING, Annotated

import typer

from kerolox.cli.access_places import (
    AddressOption,
    ClusterOption,
    FileOption,
    Place,
    Where,
    known_user,
    read_all,
    run_between,
)
from kerolox.cli.access_users import replace_rules
from kerolox.cli.nameservers import DEFAULT_ADDRESS, NameServerOption
from kerolox.cli.output import JsonFlag, column, command, output, row, say, table
from kerolox.client.admin import everywhere
from kerolox.errors import OptionError

if TYPE_CHECKING:
    from kerolox.protocol.bodies.access import Acl

app = typer.Typer(help="Manage access policies: the rules for each user.", no_args_is_help=True)

UserArgument = Annotated[str, typer.Argument(help="Name of the user.")]


class PolicyType(Enum):
    CUSTOM = "Custom"
    DEFAULT = "Default"


PolicyOption = Annotated[
    PolicyType,
    typer.Option(
        "--policy",
        help="Kind of policy. Default rules apply only if no Custom rule matches.",
        case_sensitive=False,
    ),
]


@row
class RuleRow:
    """Rule of a user, and the places that have it."""

    user: str
    policy_type: str = column("policy")
    resource: str
    actions: tuple[str, ...] = column("actions", ", ".join)
    source_ips: tuple[str, ...] = column("from", lambda sources: ", ".join(sources) or "anywhere")
    decision: str
    at: list[str] = column("at", ", ".join)


@command(app, "list", "kerolox access policy list alice")
def list_rules(
    user: Annotated[str, typer.Argument(help="Name of the user. Default: all users.")] = "",
    resource: Annotated[str, typer.Option(help="Only rules whose resource contains this text.")] = "",
    address: AddressOption = None,
    cluster: ClusterOption = None,
    file: FileOption = None,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """List rules, with the places that have each."""
    from kerolox.client.admin.access import subject_of
    from kerolox.client.errors import NotFound

    async def work(places: list[Place]) -> dict[str, list[Acl]]:
        if user:
            await known_user(places, user)
        found = await read_all(places, lambda place: place.all_rules(user, resource))
        wanted = subject_of(user)  # brokers also return users whose name contains this one
        return {at: [acl for acl in acls if not user or acl.subject == wanted] for at, acls in found.items()}

    found = Where(nameserver, address, cluster, file).run(work)
    rows = [RuleRow(*content, at) for content, at in everywhere.rules_by_content(found).items()]
    whose = f" of {user}" if user else ""
    if resource and not rows:
        raise NotFound(f"no rule{whose} has a resource that contains {resource!r} at {', '.join(found)}")
    empty = f"no rules{whose} at {', '.join(found)}: requests that no rule allows are denied"
    output(json).show(rows, table(RuleRow, rows, empty=empty))


@command(app, "set", "kerolox access policy set alice Topic:orders Group:shop-* --actions Pub,Sub")
def set_rules(
    user: UserArgument,
    resources: Annotated[
        list[str],
        typer.Argument(
            help="Resources: Topic:, Group: or Cluster: with a name, a prefix* or *; or * for all."
        ),
    ],
    actions: Annotated[
        str, typer.Option(help="Comma-separated actions: Pub, Sub, Create, Update, Delete, Get, List or All.")
    ],
    deny: Annotated[bool, typer.Option("--deny", help="Deny the actions instead of allowing them.")] = False,
    sources: Annotated[
        list[str] | None,
        typer.Option(
            "--from",
            help="Apply only to requests from this address or network, such as 10.0.0.0/8. Repeatable.",
            metavar="ADDRESS",
        ),
    ] = None,
    policy: PolicyOption = PolicyType.CUSTOM,
    address: AddressOption = None,
    cluster: ClusterOption = None,
    file: FileOption = None,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Allow or deny actions to a user. Replaces an existing rule for the same resource."""
    from kerolox.access.policies import entry_body, parse_entry
    from kerolox.client.admin.access import subject_of
    from kerolox.protocol.bodies.access import Acl, AclEntry, AclPolicy

    wanted = [one.strip() for one in actions.split(",") if one.strip()]
    # Checked here, because Apache's brokers silently drop unknown actions.
    entries = [
        parse_entry(
            AclEntry(
                actions=tuple(wanted),
                decision="Deny" if deny else "Allow",
                resource=resource,
                source_ips=tuple(sources or ()) or None,
            )
        )
        for resource in resources
    ]
    body = Acl(
        policies=(AclPolicy(entries=tuple(map(entry_body, entries)), policy_type=policy.value),),
        subject=subject_of(user),
    )
    where = Where(nameserver, address, cluster, file)
    places = where.change(user, lambda place: place.put_rules(user, body))
    out = output(json)
    for entry in entries:
        out.note(f"{user}: {entry}, at {', '.join(places)}")
    if json:
        import msgspec

        out.show({"user": user, "policies": msgspec.to_builtins(body.policies), "at": places})


@command(app, "delete", "kerolox access policy delete alice Topic:orders")
def delete(
    user: UserArgument,
    resources: Annotated[
        list[str] | None, typer.Argument(help="Resources of the rules, as shown by the list command.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="Delete all rules of the user.")] = False,
    policy: PolicyOption = PolicyType.CUSTOM,
    address: AddressOption = None,
    cluster: ClusterOption = None,
    file: FileOption = None,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Delete rules of a user."""
    from kerolox.access.resources import parse_pattern

    if bool(resources) == everything:
        raise OptionError("--all", everything, "either resources or --all")
    wanted = [str(parse_pattern(text)) for text in resources or ()]

    async def work(places: list[Place]) -> list[str]:
        known = await known_user(places, user)
        chosen = [one for one in places if one.name in known]
        await everywhere.delete_rules(chosen, user, wanted, policy.value, say)
        return list(known)

    places = Where(nameserver, address, cluster, file).run(work)
    sentence = (
        f"deleted the rules of {user} for {', '.join(wanted) or 'all resources'} at {', '.join(places)}"
    )
    output(json).report(sentence, {"user": user, "resources": wanted or None, "at": places})


@command(app, "copy", "kerolox access policy copy alice --from 10.0.0.1:10911 --to 10.0.0.2:10911")
def copy(
    source: Annotated[
        str, typer.Option("--from", help="Source: a broker's address or a file.", metavar="PLACE")
    ],
    target: Annotated[
        str, typer.Option("--to", help="Target: a broker's address or a file.", metavar="PLACE")
    ],
    users: Annotated[list[str] | None, typer.Argument(help="Names of users. Default: all.")] = None,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Copy rules from one place to another. Replaces the users' rules there; the users must exist there."""

    async def work(origin: Place, place: Place) -> list[str]:
        from kerolox.client.admin.access import SUBJECT_PREFIX

        for user in users or ():
            await known_user([origin], user)
        names = users or [
            (acl.subject or "").removeprefix(SUBJECT_PREFIX) for acl in await origin.all_rules()
        ]
        for user in names:
            await known_user([place], user)
        for user in names:
            await replace_rules(origin, place, user)
        return list(names)

    copied = run_between(source, target, work, nameserver)
    sentence = f"rules of {', '.join(copied) or 'no user'} copied from {source} to {target}"
    output(json).report(sentence, {"users": copied, "from": source, "to": target})
