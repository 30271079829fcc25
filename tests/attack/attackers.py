"""The ways to ask for what is not one's own. Each makes a request of a code, and signs it in its way."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from kerolox.net.signing import Credentials
from kerolox.protocol.command import Command
from kerolox.protocol.frame import BINARY, JSON
from kerolox.protocol.signature import sign
from kerolox.testing.access import ADMIN

from .requests import Names, body_of, fields_of
from .world import PASSWORD

# Gives the fields with their signature, and the body that is sent.
Sign = Callable[[dict[str, str], bytes, random.Random], "tuple[dict[str, str], bytes]"]


@dataclass(frozen=True)
class Attack:
    name: str
    sign: Sign
    is_known: bool = False  # a known user: some requests are for every one of those
    administers_only: bool = False  # only what administers is refused to it


def as_user(own: Credentials) -> Sign:
    def signed(fields: dict[str, str], body: bytes, chance: random.Random) -> tuple[dict[str, str], bytes]:
        return sign(fields, body, own.access_key, own.secret_key), body

    return signed


def _unsigned(fields: dict[str, str], body: bytes, chance: random.Random) -> tuple[dict[str, str], bytes]:
    return fields, body


def _without_signature(
    fields: dict[str, str], body: bytes, chance: random.Random
) -> tuple[dict[str, str], bytes]:
    return {**fields, "AccessKey": ADMIN.access_key}, body


def _another_body(fields: dict[str, str], body: bytes, chance: random.Random) -> tuple[dict[str, str], bytes]:
    """What the administrator has signed, with something else behind it."""
    recorded = sign(fields, chance.randbytes(12), ADMIN.access_key, ADMIN.secret_key)
    return recorded, body


def _another_field(
    fields: dict[str, str], body: bytes, chance: random.Random
) -> tuple[dict[str, str], bytes]:
    """What the administrator has signed, with another value in one of its fields."""
    if not fields:
        return _another_body(fields, body, chance)
    changed = chance.choice(sorted(fields))
    recorded = sign({**fields, changed: fields[changed] + "!"}, body, ADMIN.access_key, ADMIN.secret_key)
    return {**recorded, changed: fields[changed]}, body


def _more_fields(fields: dict[str, str], body: bytes, chance: random.Random) -> tuple[dict[str, str], bytes]:
    """What the administrator has signed, with a field more."""
    recorded = sign(fields, body, ADMIN.access_key, ADMIN.secret_key)
    return {**recorded, "zz": "more"}, body


ATTACKS = (
    Attack("unsigned", _unsigned),
    Attack("an access key without a signature", _without_signature),
    Attack("an unknown user", as_user(Credentials("stranger", "x"))),
    Attack("a wrong password", as_user(Credentials(ADMIN.access_key, "guessed"))),
    Attack("a disabled user", as_user(Credentials("disabled", PASSWORD))),
    Attack("replayed with another body", _another_body),
    Attack("replayed with another field", _another_field),
    Attack("replayed with a field more", _more_fields),
    Attack("a user without rights", as_user(Credentials("mallory", PASSWORD)), is_known=True),
    Attack("rights on another topic", as_user(Credentials("other", PASSWORD)), is_known=True),
    Attack("rights on the retry topic", as_user(Credentials("retries", PASSWORD)), is_known=True),
    Attack("denied by name", as_user(Credentials("denied", PASSWORD)), is_known=True),
    Attack("an address not allowed", as_user(Credentials("elsewhere", PASSWORD)), is_known=True),
    Attack("the administrator from afar", as_user(ADMIN), is_known=True, administers_only=True),
)


def make(attack: Attack, code: int, names: Names, opaque: int, chance: random.Random) -> Command:
    fields, body = attack.sign(fields_of(code, names), body_of(code, names), chance)
    binary = code <= 0x7FFF and chance.random() < 0.3
    return Command(code, opaque=opaque, fields=fields, body=body, encoding=BINARY if binary else JSON)
