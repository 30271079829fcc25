"""Users of a book, with their rules in a line."""

from __future__ import annotations

from kerolox.access.book import Book, User
from kerolox.access.policies import NONE, Policies, PolicyType, parse_entry
from kerolox.net.signing import Credentials
from kerolox.protocol.bodies import access as bodies


def entry(resource: str, actions: str, decision: str = "Allow", *sources: str) -> bodies.AclEntry:
    return bodies.AclEntry(
        actions=tuple(actions.split(",")), decision=decision, resource=resource, source_ips=sources or None
    )


def policies(rules: dict[str, str], type: PolicyType = PolicyType.CUSTOM) -> Policies:
    """``{"Topic:T": "Pub,Sub", "Topic:X": "!All"}``: an exclamation mark denies."""
    entries = [
        parse_entry(entry(resource, actions.removeprefix("!"), "Deny" if actions[0] == "!" else "Allow"))
        for resource, actions in rules.items()
    ]
    return NONE.merged(type, entries)


def add_user(book: Book, name: str, rules: dict[str, str]) -> Credentials:
    """Let a user into a book that is in use."""
    user = User(name, f"the secret of {name}")
    book.replace({**book.users, name: user}, {**book.policies, name: policies(rules)})
    return Credentials(name, user.password)
