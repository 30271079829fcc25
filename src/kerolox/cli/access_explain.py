"""``kerolox access explain``"""

from __future__ import annotations

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
)
from kerolox.cli.nameservers import DEFAULT_ADDRESS, NameServerOption
from kerolox.cli.output import JsonFlag, OutputTable, one_line_errors, output
from kerolox.errors import OptionError

if TYPE_CHECKING:
    from kerolox.access.explain import Explanation
    from kerolox.access.policies import Address
    from kerolox.front.needs import Need
    from kerolox.protocol.bodies.access import Acl, User

EXAMPLE = "Example: kerolox access explain alice Pub Topic:orders --from 10.0.0.9"
COLUMNS = ("policy", "resource", "actions", "from", "decision", "why")


@one_line_errors
def explain(
    user: Annotated[str, typer.Argument(help="Name of the user.")],
    action: Annotated[
        str,
        typer.Argument(
            help="Pub, Sub, Create, Update, Delete, Get or List. With several, joined by /, any one suffices."
        ),
    ],
    resource: Annotated[
        str, typer.Argument(help="Resource: Topic:orders, Group:shop or Cluster:DefaultCluster.")
    ],
    source: Annotated[
        str | None, typer.Option("--from", help="Source address of the request.", metavar="ADDRESS")
    ] = None,
    address: AddressOption = None,
    cluster: ClusterOption = None,
    file: FileOption = None,
    nameserver: NameServerOption = DEFAULT_ADDRESS,
    json: JsonFlag = False,
) -> None:
    """Show whether a request would be allowed, and which rule decides."""
    needs = parse_needs(action, resource)
    at = _address(source)

    async def work(places: list[Place]) -> dict[str, tuple[User, Acl | None]]:
        known = await known_user(places, user)
        rules = await read_all([one for one in places if one.name in known], lambda place: place.rules(user))
        return {name: (known[name], acl) for name, acl in rules.items()}

    found = Where(nameserver, address, cluster, file).run(work)
    out = output(json)
    where = "" if at is None else f" from {at}"
    document: list[dict[str, object]] = []
    for need in needs:
        answers: dict[str, tuple[Explanation, list[str]]] = {}
        for name, (known, acl) in found.items():  # brokers with the same decision are listed together
            one = _explained(known, acl, need, at)
            answers.setdefault(repr(one), (one, []))[1].append(name)
        for one, names in answers.values():
            out.note(
                f"{'ALLOWED' if one.allowed else 'DENIED'}: {user}, {need}{where}, at {', '.join(names)}"
            )
            out.note(f"because {one.why}")
            if one.steps:
                out.table(_table(one))
            document.append(_document(user, need, at, one, names))
    if json:
        out.show(document)


def parse_needs(action: str, resource: str) -> list[Need]:
    """Return the rights that such a request needs. Retry and dead-letter topics need those of their group."""
    from kerolox.access.needs import names
    from kerolox.access.resources import parse_action, parse_resource
    from kerolox.front.needs import Action, ClusterView, Kind, Need
    from kerolox.protocol.reserved import DEAD_LETTER_PREFIX, RETRY_PREFIX

    actions = frozenset(parse_action(text) for text in action.split("/"))
    if Action.ALL in actions:
        raise OptionError("action", action, "an action of a request; All is valid only in rules")
    found = parse_resource(resource)
    if found.kind is Kind.TOPIC and found.name.startswith((RETRY_PREFIX, DEAD_LETTER_PREFIX)):
        view = ClusterView("DefaultCluster")
        asked = (
            names.sending(found.name, view)
            if actions == names.PUB
            else names.topic(found.name, actions, view)
        )
        return list(asked)
    return [Need(found, actions)]


def _address(text: str | None) -> Address | None:
    import ipaddress

    if text is None:
        return None
    try:
        return ipaddress.ip_address(text)
    except ValueError:
        raise OptionError("--from", text, "one address, as in 10.0.0.9 or ::1") from None


def _explained(user: User, acl: Acl | None, need: Need, at: Address | None) -> Explanation:
    from kerolox.access.book import rules_of, users_of
    from kerolox.access.explain import explain
    from kerolox.access.policies import NONE

    name = user.username or ""
    rules = {} if acl is None else rules_of([acl])
    return explain(users_of([user])[name], rules.get(name, NONE), need, at)


def _table(one: Explanation) -> OutputTable:
    from kerolox.access.policies import entry_body

    rows = []
    for step in one.steps:
        body = entry_body(step.entry)
        sources = ", ".join(body.source_ips or ()) or "anywhere"
        rows.append(
            (
                step.type.value,
                body.resource,
                ", ".join(body.actions or ()),
                sources,
                body.decision,
                step.verdict,
            )
        )
    return OutputTable(COLUMNS, rows)


def _document(
    user: str, need: Need, at: Address | None, one: Explanation, names: list[str]
) -> dict[str, object]:
    import msgspec

    from kerolox.access.policies import entry_body

    return {
        "user": user,
        "resource": str(need.resource),
        "actions": sorted(action.value for action in need.actions),
        "from": None if at is None else str(at),
        "at": names,
        "allowed": one.allowed,
        "why": one.why,
        "rules": [
            {
                "policyType": step.type.value,
                **msgspec.to_builtins(entry_body(step.entry)),
                "decides": step.decides,
                "why": step.verdict,
            }
            for step in one.steps
        ],
    }
