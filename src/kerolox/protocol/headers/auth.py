"""Users and access rules (5.3)."""

from __future__ import annotations

from kerolox.protocol.header import Header


class UserRequest(Header, frozen=True, kw_only=True):
    """Create, update, delete or get this user."""

    username: str | None = None


class ListUsersRequest(Header, frozen=True, kw_only=True):
    """Users whose name contains this."""

    filter: str | None = None


class AclRequest(Header, frozen=True, kw_only=True):
    """Create, update or get the rules of this subject."""

    subject: str | None = None


class DeleteAclRequest(Header, frozen=True, kw_only=True):
    """Delete all rules of this subject, or those for one resource."""

    subject: str | None = None
    policy_type: str | None = None
    resource: str | None = None


class ListAclsRequest(Header, frozen=True, kw_only=True):
    """Rules whose subject and resource contain these."""

    subject_filter: str | None = None
    resource_filter: str | None = None
