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


# --- accounts of RocketMQ 4 ------------------------------------------------------------------------------


class UpdateAccountRequest(Header, frozen=True, kw_only=True):
    """Create an account, or change what is named of it; ``admin`` always is."""

    access_key: str
    secret_key: str | None = None
    white_remote_address: str | None = None
    admin: bool = False
    default_topic_perm: str | None = None
    default_group_perm: str | None = None
    topic_perms: str | None = None  # joined by commas
    group_perms: str | None = None


class DeleteAccountRequest(Header, frozen=True, kw_only=True):
    access_key: str


class UpdateWhiteAddressesRequest(Header, frozen=True, kw_only=True):
    """The addresses that need no account, in one of the files; without a path in the main one."""

    global_white_addrs: str  # joined by commas
    acl_file_full_path: str | None = None


class AccountFilesAnswer(Header, frozen=True, kw_only=True):
    """The versions of the files of accounts."""

    version: str  # of the main file, as JSON
    all_acl_file_version: str | None = None  # by path, as JSON
    broker_name: str
    broker_addr: str
    cluster_name: str
