"""RocketMQ 4 accounts and their permissions to send and consume. Plain values."""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec

from kerolox.access.plain.addresses import Patterns
from kerolox.protocol.reserved import RETRY_PREFIX

KEY_LENGTH_MIN = 7  # RocketMQ: "longer than 6"
KEY_LENGTH_MAX = 255
SECRET_LENGTH_MAX = 1024
PERMS_MAX = 10_000  # per account


class Perm(enum.Flag):
    """Permissions on a topic or group."""

    DENY = 0
    PUB = 1
    SUB = 2


_PERMS = {"PUB": Perm.PUB, "SUB": Perm.SUB, "PUB|SUB": Perm.PUB | Perm.SUB, "SUB|PUB": Perm.PUB | Perm.SUB}


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """An account that may sign requests. Requests from the addresses in ``white`` need no signature."""

    access_key: str
    secret_key: str
    white: Patterns = ()
    admin: bool = False
    default_topic: Perm = Perm.DENY
    default_group: Perm = Perm.DENY
    topics: dict[str, Perm] = {}
    groups: dict[str, Perm] = {}

    def __repr__(self) -> str:  # never the secret
        return f"Account({self.access_key!r}, admin={self.admin})"

    @property
    def may_all(self) -> bool:
        """True if the account is an administrator without permissions by name, which may use all topics and
        groups."""
        return self.admin and not self.topics and not self.groups

    def topic_perm(self, name: str) -> Perm:
        return self.topics.get(name, self.default_topic)

    def group_perm(self, name: str) -> Perm:
        return self.groups.get(name, self.default_group)


def parse_perm(text: str | None) -> Perm:
    """Parse a permission in a file. Unknown words mean DENY, as with RocketMQ."""
    return _PERMS.get((text or "").strip(), Perm.DENY)


def parse_perms(texts: Iterable[str], *, strict: bool = False) -> dict[str, Perm]:
    """Parse permissions such as ``name=PUB|SUB``. Raises ValueError with the reason; with ``strict`` unknown
    words are an error too."""
    found = {}
    for text in texts:
        name, equals, perm = text.partition("=")
        is_known = perm.strip() in _PERMS or perm.strip() == "DENY"
        if not equals or not name.strip() or (strict and not is_known):
            raise ValueError(f"{text!r} is not a permission: write name=DENY, =PUB, =SUB or =PUB|SUB")
        found[name.strip()] = parse_perm(perm)
    if len(found) > PERMS_MAX:
        raise ValueError(f"{len(found)} permissions in one account, the limit is {PERMS_MAX}")
    return found


def split_retry(topics: dict[str, Perm], groups: dict[str, Perm]) -> tuple[dict[str, Perm], dict[str, Perm]]:
    """Return topics and groups with the permissions for ``%RETRY%group`` moved to the groups, because
    RocketMQ names groups that way. A permission for the group itself takes precedence."""
    retry = {
        name.removeprefix(RETRY_PREFIX): perm
        for name, perm in topics.items()
        if name.startswith(RETRY_PREFIX)
    }
    rest = {name: perm for name, perm in topics.items() if not name.startswith(RETRY_PREFIX)}
    return rest, retry | groups


def check_key(text: str) -> str:
    """Return a valid access key. Raises ValueError with the reason."""
    if not KEY_LENGTH_MIN <= len(text) <= KEY_LENGTH_MAX or not text.isprintable():
        raise ValueError(
            f"the accessKey {text[:40]!r} must have {KEY_LENGTH_MIN} to {KEY_LENGTH_MAX} printable characters"
        )
    return text


def check_secret(text: str) -> str:
    """Return a valid secret key. Raises ValueError with the reason, which does not contain the secret."""
    if not KEY_LENGTH_MIN <= len(text) <= SECRET_LENGTH_MAX:
        raise ValueError(f"the secretKey must have {KEY_LENGTH_MIN} to {SECRET_LENGTH_MAX} characters")
    return text
