"""Requests about accounts (RocketMQ 4): create, update and delete accounts, the white list, file versions.

The guard admits only signed requests of administrators. A change is on disk before it is answered. Accounts
cannot be read: RocketMQ's request for that revealed all secrets.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kerolox.access.needs.kinds import CHANGES_ACCESS, LOOKS
from kerolox.access.plain.accounts import check_key, check_secret, parse_perms
from kerolox.access.plain.addresses import parse_addresses
from kerolox.access.plain.files import AclFiles
from kerolox.access.plain.guard import ACL_EXCEPTION, PlainGuard
from kerolox.access.plain.yaml_file import Tree, accounts_of, find_account
from kerolox.errors import KeroloxError, Refused
from kerolox.front.requests import Answer, Request
from kerolox.front.rows import serves
from kerolox.protocol.bodies.topics import DataVersion
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.headers import auth as headers
from kerolox.protocol.json_dialect import dumps

# RocketMQ 4's codes for these failures; 5.x uses them for other errors.
UPDATE_FAILED = 209
DELETE_FAILED = 210
WHITE_ADDRESSES_FAILED = 211

_NOT_TOLD = (
    " request type 54 (GET_BROKER_CLUSTER_ACL_CONFIG) not supported: it would reveal the secrets of "
    "accounts; RocketMQ removed it in 4.9.8 and 5.2 (CVE-2024-23321)"
)


class AccountRequests:
    """Handlers of account requests. ``broker_name``, ``address`` and ``cluster`` are sent with the file
    versions."""

    def __init__(
        self, files: AclFiles, guard: PlainGuard, *, broker_name: str, address: str, cluster: str
    ) -> None:
        self._files = files
        self._guard = guard
        self._broker_name = broker_name
        self._address = address
        self._cluster = cluster

    @serves(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, headers.UpdateAccountRequest, CHANGES_ACCESS)
    async def put(self, request: Request[headers.UpdateAccountRequest]) -> Answer:
        """Create or change an account of RocketMQ 4."""
        said = request.header
        key = said.access_key
        path = self._files.accounts.homes.get(key, self._files.path)

        def edit(tree: Tree) -> None:
            account = find_account(tree, check_key(key))
            if account is None:
                account = {"accessKey": key}
                accounts_of(tree).append(account)
            if not said.admin:
                self._check_last(key)
            account.update(changed(said))

        await self._change(request, path, edit, UPDATE_FAILED, f"account {key!r} was put")
        return Answer()

    @serves(RequestCode.DELETE_ACL_CONFIG, headers.DeleteAccountRequest, CHANGES_ACCESS)
    async def delete(self, request: Request[headers.DeleteAccountRequest]) -> Answer:
        """Delete an account of RocketMQ 4."""
        key = request.header.access_key

        def edit(tree: Tree) -> None:
            self._check_last(key)
            accounts = accounts_of(tree)
            accounts[:] = [one for one in accounts if str(one.get("accessKey")) != key]

        # In all files: another account of that name must not take its place. The account in effect is removed
        # last.
        paths = [path for path, file in self._files.accounts.files.items() if key in file.accounts]
        if not paths:
            raise Refused(DELETE_FAILED, f"{ACL_EXCEPTION}account {key[:40]!r} does not exist")
        for path in reversed(paths):
            await self._change(request, path, edit, DELETE_FAILED, f"account {key!r} was deleted")
        return Answer()

    @serves(RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, headers.UpdateWhiteAddressesRequest, CHANGES_ACCESS)
    async def white(self, request: Request[headers.UpdateWhiteAddressesRequest]) -> Answer:
        """Change the addresses that need no signature."""
        said = request.header
        path = self._files.path
        if (said.acl_file_full_path or "").strip():
            path = (said.acl_file_full_path or "").strip()
            # the path comes from a request: accept only known files
            if path not in self._files.accounts.files:
                raise Refused(
                    WHITE_ADDRESSES_FAILED,
                    f"{ACL_EXCEPTION}the path is not an account file of this broker",
                )
        texts = [text.strip() for text in said.global_white_addrs.split(",") if text.strip()]

        def edit(tree: Tree) -> None:
            for text in texts:
                parse_addresses(text)
            tree["globalWhiteRemoteAddresses"] = texts

        await self._change(
            request, path, edit, WHITE_ADDRESSES_FAILED, f"the addresses that need no account are {texts}"
        )
        return Answer()

    @serves(RequestCode.GET_BROKER_CLUSTER_ACL_INFO, None, LOOKS)
    def versions(self, request: Request[None]) -> Answer:
        """Return the versions of the account files."""
        files = self._files.accounts.files
        main = files.get(self._files.path)
        return Answer(
            header=headers.AccountFilesAnswer(
                version=(DataVersion() if main is None else main.version).encode().decode(),
                all_acl_file_version=dumps({path: file.version for path, file in files.items()}).decode(),
                broker_name=self._broker_name,
                broker_addr=self._address,
                cluster_name=self._cluster,
            )
        )

    @serves(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG, None, LOOKS)
    def refuse(self, request: Request[None]) -> Answer:
        """Reject the request, which would reveal the secrets of all accounts."""
        return Answer(code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=_NOT_TOLD)

    def _check_last(self, key: str) -> None:
        """Raise ValueError if the account is the last administrator."""
        known = self._files.accounts.by_key
        if key in known and [one.access_key for one in known.values() if one.admin] == [key]:
            raise ValueError(
                f"{key!r} is the last administrator; create another one first (mqadmin "
                "updateAclConfig -m true)"
            )

    async def _change(
        self, request: Request[Any], path: str, edit: Callable[[Tree], None], code: int, what: str
    ) -> None:
        try:
            await self._files.change(path, edit)
        except (ValueError, KeroloxError) as error:
            raise Refused(code, ACL_EXCEPTION + str(error)) from error
        self._guard.audit.changed(request, what)


def changed(said: headers.UpdateAccountRequest) -> Tree:
    """Return the changes of an account, as they stand in a file. Raises ValueError with the reason."""
    found: Tree = {}
    if said.secret_key:
        found["secretKey"] = check_secret(said.secret_key)
    if said.white_remote_address:
        parse_addresses(said.white_remote_address)
        found["whiteRemoteAddress"] = said.white_remote_address
    found["admin"] = said.admin
    for key, perm in (
        ("defaultTopicPerm", said.default_topic_perm),
        ("defaultGroupPerm", said.default_group_perm),
    ):
        if perm:
            parse_perms([f"default={perm}"], strict=True)
            found[key] = perm
    for key, perms in (("topicPerms", said.topic_perms), ("groupPerms", said.group_perms)):
        if perms:
            found[key] = [text.strip() for text in perms.split(",") if text.strip()]
            parse_perms(found[key], strict=True)
    return found
