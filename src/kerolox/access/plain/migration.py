"""Conversion of RocketMQ 4's accounts to users and rules of 5.3. Plain values in, plain values out."""

from __future__ import annotations

from collections.abc import Iterable

from kerolox.access.book import Book, User, check_new_user_name
from kerolox.access.plain.accounts import Account, Perm
from kerolox.access.plain.addresses import Patterns
from kerolox.access.policies import ENTRIES_MAX, Entry, Policies, PolicyType
from kerolox.access.resources import Pattern
from kerolox.errors import InvalidRequest
from kerolox.front.needs import Action, Kind
from kerolox.protocol.reserved import DEAD_LETTER_PREFIX


def migrate(accounts: Iterable[Account]) -> tuple[dict[str, User], dict[str, Policies], list[str]]:
    """Return users and rules by name, and a line for everything that has no counterpart there.

    As in RocketMQ, ``admin`` becomes a Super user; permissions by name become Custom entries, and the default
    permissions become Default entries for all topics and all groups.
    """
    users: dict[str, User] = {}
    policies: dict[str, Policies] = {}
    left_over: list[str] = []
    for account in accounts:
        name = account.access_key
        try:
            check_new_user_name(name)
        except InvalidRequest as error:
            left_over.append(f"{name}: skipped. {error}. Give it another accessKey")
            continue
        users[name] = User(name, account.secret_key, is_super=account.admin)
        custom = [
            *_entries(name, Kind.TOPIC, account.topics, left_over),
            *_entries(name, Kind.GROUP, account.groups, left_over),
        ]
        if len(custom) > ENTRIES_MAX:
            left_over.append(
                f"{name}: {len(custom) - ENTRIES_MAX} permissions skipped, the limit per user is "
                f"{ENTRIES_MAX}: use prefixes, as in Topic:orders*"
            )
            # Keep the denials: a name that is denied must not fall through to a default that allows it.
            custom.sort(key=lambda entry: entry.allows)
        default = [
            _entry(Pattern(Kind.TOPIC, "", is_prefix=True), account.default_topic),
            _entry(Pattern(Kind.GROUP, "", is_prefix=True), account.default_group),
        ]
        policies[name] = (
            Policies().merged(PolicyType.CUSTOM, custom[:ENTRIES_MAX]).merged(PolicyType.DEFAULT, default)
        )
        if account.white:
            addresses = ",".join(pattern.text for pattern in account.white)
            left_over.append(
                f"{name}: whiteRemoteAddress {addresses}: every request must be signed; to accept the user "
                "only from there, add these addresses to its rules"
            )
        if account.admin and (account.topics or account.groups):
            left_over.append(f"{name}: topicPerms and groupPerms do not apply to an administrator")
    return users, policies, left_over


def migrate_into(book: Book, accounts: Iterable[Account]) -> tuple[list[str], list[str]]:
    """Add the accounts that the book lacks; existing users stay unchanged. Return their names and the lines
    about everything that was not converted."""
    users, policies, left_over = migrate(one for one in accounts if one.access_key not in book.users)
    if users:
        book.replace(book.users | users, book.policies | policies)
    return list(users), left_over


def left_over_white(patterns: Patterns) -> list[str]:
    """Return a line for each address that needed no account; users and rules have no counterpart."""
    return [
        f"globalWhiteRemoteAddresses {pattern.text}: every request must be signed" for pattern in patterns
    ]


def _entries(name: str, kind: Kind, perms: dict[str, Perm], left_over: list[str]) -> list[Entry]:
    found = []
    for resource, perm in perms.items():
        if "*" in resource:
            # In an account this is a literal name that matches nothing; in a rule it would be a pattern.
            left_over.append(
                f"{name}: {kind.value.lower()} {resource!r} skipped: it is not a valid name; "
                f"{kind.value}:{resource.rstrip('*')}* in a rule matches all names with that prefix"
            )
            continue
        if kind is Kind.TOPIC and resource.startswith(DEAD_LETTER_PREFIX):
            owner = resource.removeprefix(DEAD_LETTER_PREFIX)
            left_over.append(
                f"{name}: topic {resource!r}: reading dead letters requires a right to Group:{owner}"
            )
        found.append(_entry(Pattern(kind, resource, is_prefix=False), perm))
    return found


def _entry(pattern: Pattern, perm: Perm) -> Entry:
    if perm is Perm.DENY:
        return Entry(pattern, frozenset({Action.ALL}), allows=False)
    actions = [action for action in (Action.PUB, Action.SUB) if Perm[action.name] & perm]
    return Entry(pattern, frozenset(actions), allows=True)
