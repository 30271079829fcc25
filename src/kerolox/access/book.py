"""Users and their rules in memory; every change is validated.

:mod:`kerolox.access.book_file` keeps the book on disk. Caches of its content register in ``on_change`` and
drop their entries when the book changes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import msgspec

from kerolox.access.policies import (
    NONE,
    Policies,
    parse_entries,
    parse_policy_type,
    policies_body,
)
from kerolox.access.resources import parse_pattern
from kerolox.errors import InvalidRequest, Refused
from kerolox.observers import Observers
from kerolox.protocol.bodies import access as bodies
from kerolox.protocol.codes import ResponseCode

USERS_MAX = 10_000
NAME_LENGTH_MAX = 255
SUBJECT_PREFIX = "User:"
_NOT_IN_NAMES = frozenset("*:/\\")


class User(msgspec.Struct, frozen=True):
    """A user who may sign requests."""

    name: str
    password: str
    is_super: bool = False  # not limited by rules
    is_enabled: bool = True

    @property
    def subject(self) -> str:
        return SUBJECT_PREFIX + self.name

    def __repr__(self) -> str:  # never the password
        return f"User({self.name!r}, is_super={self.is_super}, is_enabled={self.is_enabled})"


class Book:
    """Users and their rules by name."""

    def __init__(self) -> None:
        self.users: dict[str, User] = {}
        self.policies: dict[str, Policies] = {}  # by user
        self.version = 0
        self.on_change: Observers[[]] = Observers("users changed")

    def copy(self) -> Book:
        """Return a copy. A change is applied to the copy first and counts only once the copy is on disk."""
        book = Book()
        book.users, book.policies = dict(self.users), dict(self.policies)
        return book

    def replace(self, users: Mapping[str, User], policies: Mapping[str, Policies]) -> None:
        """Replace the content with users and rules that were read from disk or copied."""
        self.users = dict(users)
        self.policies = {name: found for name, found in policies.items() if name in self.users}
        self._changed()

    def rules_of(self, name: str) -> Policies:
        return self.policies.get(name, NONE)

    def secret_of_super(self, name: str) -> str | None:
        """Return the secret of an enabled Super user; None for any other name."""
        user = self.users.get(name)
        return user.password if user is not None and user.is_super and user.is_enabled else None

    # --- users ---------------------------------------------------------------------------------------

    def create_user(self, body: bodies.User) -> User:
        name = check_new_user_name(body.username)
        if name in self.users:
            raise Refused(ResponseCode.NO_PERMISSION, "The user is existed")
        if not (body.password or "").strip():
            raise Refused(ResponseCode.NO_PERMISSION, "The password can not be blank")
        if len(self.users) >= USERS_MAX:
            raise Refused(ResponseCode.NO_PERMISSION, f"the limit of {USERS_MAX} users is reached")
        user = User(name, body.password or "", _is_super(body.user_type), _is_enabled(body.user_status))
        self._put(user)
        return user

    def update_user(self, body: bodies.User) -> User:
        """Update a user. Fields that the body omits keep their values."""
        user = self.users.get(check_user_name(body.username))
        if user is None:
            raise Refused(ResponseCode.NO_PERMISSION, "The user is not exist")
        if body.password is not None and not body.password.strip():
            raise Refused(ResponseCode.NO_PERMISSION, "The password can not be blank")
        user = User(
            user.name,
            user.password if body.password is None else body.password,
            user.is_super if body.user_type is None else _is_super(body.user_type),
            user.is_enabled if body.user_status is None else _is_enabled(body.user_status),
        )
        self._put(user)
        return user

    def ensure_super(self, name: str, password: str) -> bool:
        """Create a Super user unless the name exists. Return whether it was created."""
        if name in self.users:
            return False
        check_new_user_name(name)
        self._put(User(name, password, is_super=True))
        return True

    def delete_user(self, name: str) -> bool:
        if self.users.pop(name, None) is None:
            return False
        self.policies.pop(name, None)
        self._changed()
        return True

    # --- rules ---------------------------------------------------------------------------------------

    def merge_rules(self, subject: str, body: bodies.Acl) -> None:
        """Add entries; an entry with the pattern of an existing one replaces it. All are added, or none."""
        name = self._known(subject)
        found = parse_entries(body)
        if not any(found.values()):
            raise InvalidRequest(f"the rules of {subject} have no entry")
        merged = self.rules_of(name)
        for type, entries in found.items():
            merged = merged.merged(type, entries)
        self.policies[name] = merged
        self._changed()

    def delete_rules(self, subject: str, policy_type: str | None, resource: str | None) -> None:
        """Delete the entry for `resource`; delete all entries if no resource is given."""
        name = self._known(subject)
        if name not in self.policies:
            raise Refused(ResponseCode.NO_PERMISSION, "The acl is not exist.")
        left = NONE
        if (resource or "").strip():
            type = parse_policy_type(policy_type)
            left = self.policies[name].without(type, parse_pattern(resource or ""))
        if left == NONE:
            del self.policies[name]
        else:
            self.policies[name] = left
        self._changed()

    def rules_body(self, subject: str) -> bodies.Acl | None:
        name = self._known(subject)
        found = self.policies.get(name)
        return None if found is None else bodies.Acl(policies=policies_body(found), subject=subject)

    def _known(self, subject: str) -> str:
        prefix, separator, name = subject.partition(":")
        if prefix.strip().lower() != "user" or not separator or name not in self.users:
            raise Refused(ResponseCode.NO_PERMISSION, f"The subject of {subject} is not exist.")
        return name

    # --- changes -------------------------------------------------------------------------------------

    def _put(self, user: User) -> None:
        self.users[user.name] = user
        self._changed()

    def _changed(self) -> None:
        self.version += 1
        self.on_change()


def user_body(user: User, *, with_password: bool) -> bodies.User:
    return bodies.User(
        password=user.password if with_password else None,
        user_status="enable" if user.is_enabled else "disable",
        user_type="Super" if user.is_super else "Normal",
        username=user.name,
    )


def users_of(found: Iterable[bodies.User]) -> dict[str, User]:
    """Return users, by name, as decoded from a file or from another server's answer."""
    users = {}
    for body in found:
        name = check_user_name(body.username)
        users[name] = User(
            name, body.password or "", _is_super(body.user_type), _is_enabled(body.user_status)
        )
    return users


def rules_of(found: Iterable[bodies.Acl]) -> dict[str, Policies]:
    """Return rules, by user, as decoded from a file or from another server's answer."""
    rules = {}
    for body in found:
        policies = NONE
        for type, entries in parse_entries(body).items():
            policies = policies.merged(type, entries)
        rules[(body.subject or "").removeprefix(SUBJECT_PREFIX)] = policies
    return rules


def check_user_name(name: str | None) -> str:
    """Check a user name. Names appear in log lines, files and tables of tools."""
    name = name or ""
    if not name.strip() or len(name) > NAME_LENGTH_MAX or not name.isprintable():
        raise InvalidRequest(
            f"{name[:40]!r} is not a user name: use 1 to {NAME_LENGTH_MAX} printable characters"
        )
    return name


def check_new_user_name(name: str | None) -> str:
    """Check the name of a new user: reject names with a special meaning in rules, paths or tables of tools.

    Existing users with names like these can still be read, updated and deleted.
    """
    name = check_user_name(name)
    if name != name.strip() or name in (".", "..") or not _NOT_IN_NAMES.isdisjoint(name):
        raise InvalidRequest(
            f"{name[:40]!r} is not allowed as the name of a new user: it must not contain "
            f"{' '.join(sorted(_NOT_IN_NAMES))} , begin or end with a space, or be . or .."
        )
    return name


def _is_super(text: str | None) -> bool:
    return _choice(text, "user type", {"super": True, "normal": False}, otherwise=False)


def _is_enabled(text: str | None) -> bool:
    return _choice(text, "user status", {"enable": True, "disable": False}, otherwise=True)


def _choice(text: str | None, what: str, choices: dict[str, bool], *, otherwise: bool) -> bool:
    if text is None:
        return otherwise
    found = choices.get(text.strip().lower())
    if found is None:
        raise InvalidRequest(f"{text!r} is not a {what}: use one of {', '.join(choices)}")
    return found
