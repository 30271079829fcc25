"""The accounts of RocketMQ 4: who they are, and what they may send and consume. Plain values."""

from __future__ import annotations

import enum
from collections.abc import Iterable

import msgspec

from kerolox.access.plain.addresses import Patterns
from kerolox.protocol.reserved import RETRY_PREFIX

KEY_LENGTH_MIN = 7  # RocketMQ: "longer than 6"
KEY_LENGTH_MAX = 255
SECRET_LENGTH_MAX = 1024
PERMS_MAX = 10_000  # of one account


class Perm(enum.Flag):
    """What one may do with a topic or group."""

    DENY = 0
    PUB = 1
    SUB = 2


_PERMS = {"PUB": Perm.PUB, "SUB": Perm.SUB, "PUB|SUB": Perm.PUB | Perm.SUB, "SUB|PUB": Perm.PUB | Perm.SUB}


class Account(msgspec.Struct, frozen=True, kw_only=True):
    """Somebody who may sign requests. From the addresses in ``white`` it need not."""

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
        """Whether all topics and groups are open to it: an administrator that the file names none for."""
        return self.admin and not self.topics and not self.groups

    def topic_perm(self, name: str) -> Perm:
        return self.topics.get(name, self.default_topic)

    def group_perm(self, name: str) -> Perm:
        return self.groups.get(name, self.default_group)


def parse_perm(text: str | None) -> Perm:
    """A permission as files have it. What is not known is none at all, as with RocketMQ."""
    return _PERMS.get((text or "").strip(), Perm.DENY)


def parse_perms(texts: Iterable[str], *, strict: bool = False) -> dict[str, Perm]:
    """``name=PUB|SUB`` and so on. Raises ValueError with the reason; ``strict``, also for words that are no
    permission."""
    found = {}
    for text in texts:
        name, equals, perm = text.partition("=")
        is_known = perm.strip() in _PERMS or perm.strip() == "DENY"
        if not equals or not name.strip() or (strict and not is_known):
            raise ValueError(f"{text!r} is no permission: write name=DENY, =PUB, =SUB or =PUB|SUB")
        found[name.strip()] = parse_perm(perm)
    if len(found) > PERMS_MAX:
        raise ValueError(f"{len(found)} permissions of one account, at most are {PERMS_MAX}")
    return found


def split_retry(topics: dict[str, Perm], groups: dict[str, Perm]) -> tuple[dict[str, Perm], dict[str, Perm]]:
    """Topics and groups, with permissions for ``%RETRY%group`` among the groups: RocketMQ knows groups by
    that name. What is said of the group itself counts first."""
    retry = {
        name.removeprefix(RETRY_PREFIX): perm
        for name, perm in topics.items()
        if name.startswith(RETRY_PREFIX)
    }
    rest = {name: perm for name, perm in topics.items() if not name.startswith(RETRY_PREFIX)}
    return rest, retry | groups


def check_key(text: str) -> str:
    """The access key, if it is one. Raises ValueError with the reason."""
    if not KEY_LENGTH_MIN <= len(text) <= KEY_LENGTH_MAX or not text.isprintable():
        raise ValueError(
            f"the accessKey {text[:40]!r} should be longer than {KEY_LENGTH_MIN - 1} characters that can be "
            f"printed, and not longer than {KEY_LENGTH_MAX}"
        )
    return text


def check_secret(text: str) -> str:
    """The same for the secret, which is not shown."""
    if not KEY_LENGTH_MIN <= len(text) <= SECRET_LENGTH_MAX:
        raise ValueError(
            f"the secretKey should be longer than {KEY_LENGTH_MIN - 1} characters, and not longer than "
            f"{SECRET_LENGTH_MAX}"
        )
    return text
