"""From RocketMQ 4's accounts to users and rules of 5.3. Plain values in, plain values out."""

from __future__ import annotations

from collections.abc import Iterable

from kerolox.access.book import Book, User, check_new_user_name
from kerolox.access.plain.accounts import Account, Perm
from kerolox.access.plain.addresses import Patterns
from kerolox.access.policies import ENTRIES_MAX, Entry, Policies, PolicyType
from kerolox.access.resources import Action, Kind, Pattern
from kerolox.errors import InvalidRequest
from kerolox.protocol.reserved import DEAD_LETTER_PREFIX


def migrate(accounts: Iterable[Account]) -> tuple[dict[str, User], dict[str, Policies], list[str]]:
    """Users and rules by name, and a line for everything that has no counterpart there.

    As RocketMQ does: who is ``admin`` may do everything; permissions by name become Custom entries, those by
    default Default entries for all topics and all groups.
    """
    users: dict[str, User] = {}
    policies: dict[str, Policies] = {}
    left_over: list[str] = []
    for account in accounts:
        name = account.access_key
        try:
            check_new_user_name(name)
        except InvalidRequest as error:
            left_over.append(f"{name}: no user is made of it. {error}. Give it another accessKey")
            continue
        users[name] = User(name, account.secret_key, is_super=account.admin)
        custom = [
            *_entries(name, Kind.TOPIC, account.topics, left_over),
            *_entries(name, Kind.GROUP, account.groups, left_over),
        ]
        if len(custom) > ENTRIES_MAX:
            left_over.append(
                f"{name}: {len(custom) - ENTRIES_MAX} permissions, for a user has at most {ENTRIES_MAX}: use "
                "prefixes, as in Topic:orders*"
            )
            # What is denied by name must not be left to what is allowed by default.
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
                f"{name}: whiteRemoteAddress {addresses}: every request has to be signed; to let it in from "
                "there alone, give its rules these addresses"
            )
        if account.admin and (account.topics or account.groups):
            left_over.append(f"{name}: as an administrator it is not held to its topicPerms and groupPerms")
    return users, policies, left_over


def migrate_into(book: Book, accounts: Iterable[Account]) -> tuple[list[str], list[str]]:
    """Put those into a book that it does not have; nothing of those that it has is changed. Gives their
    names, and what was left over."""
    users, policies, left_over = migrate(one for one in accounts if one.access_key not in book.users)
    if users:
        book.replace(book.users | users, book.policies | policies)
    return list(users), left_over


def left_over_white(patterns: Patterns) -> list[str]:
    """The same for a list of addresses that needed no account."""
    return [
        f"globalWhiteRemoteAddresses {pattern.text}: every request has to be signed" for pattern in patterns
    ]


def _entries(name: str, kind: Kind, perms: dict[str, Perm], left_over: list[str]) -> list[Entry]:
    found = []
    for resource, perm in perms.items():
        if "*" in resource:
            # In an account that is a name like others, which nothing has; in a rule it would mean many.
            left_over.append(
                f"{name}: {kind.value.lower()} {resource!r}, which no {kind.value.lower()} can be called; "
                f"{kind.value}:{resource.rstrip('*')}* in a rule means all that begin so"
            )
            continue
        if kind is Kind.TOPIC and resource.startswith(DEAD_LETTER_PREFIX):
            owner = resource.removeprefix(DEAD_LETTER_PREFIX)
            left_over.append(
                f"{name}: topic {resource!r}: who reads dead letters needs a right to Group:{owner}"
            )
        found.append(_entry(Pattern(kind, resource, is_prefix=False), perm))
    return found


def _entry(pattern: Pattern, perm: Perm) -> Entry:
    if perm is Perm.DENY:
        return Entry(pattern, frozenset({Action.ALL}), allows=False)
    actions = [action for action in (Action.PUB, Action.SUB) if Perm[action.name] & perm]
    return Entry(pattern, frozenset(actions), allows=True)
