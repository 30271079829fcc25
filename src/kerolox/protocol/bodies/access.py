"""Users and access rules (5.3). Lists of them are arrays: see ``encode_list`` and ``decode_list``."""

from __future__ import annotations

from kerolox.protocol.bodies.body import Body


class User(Body, frozen=True, kw_only=True):
    """A user."""

    password: str | None = None
    user_status: str | None = None
    user_type: str | None = None
    username: str | None = None


class AclEntry(Body, frozen=True, kw_only=True):
    """Actions that a rule allows or denies on one resource, with source addresses."""

    actions: tuple[str, ...] | None = None
    decision: str | None = None
    resource: str | None = None
    source_ips: tuple[str, ...] | None = None


class AclPolicy(Body, frozen=True, kw_only=True):
    """Entries of one kind."""

    entries: tuple[AclEntry, ...] | None = None
    policy_type: str | None = None


class Acl(Body, frozen=True, kw_only=True):
    """The rules of one subject."""

    policies: tuple[AclPolicy, ...] | None = None
    subject: str | None = None
