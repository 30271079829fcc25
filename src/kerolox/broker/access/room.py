"""Access control of a broker: its users and policies, and the guard that enforces them."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable

from kerolox.access.plain.files import AclFiles
from kerolox.access.plain.guard import PlainGuard
from kerolox.access.plain.migration import left_over_white, migrate_into
from kerolox.access.plain.requests import AccountRequests
from kerolox.access.server_access import ServerAccess
from kerolox.broker.access.users import UserRequests
from kerolox.broker.base import Room
from kerolox.broker.options import BrokerOptions
from kerolox.broker.tables.room import Tables
from kerolox.clock import Clock
from kerolox.front.rows import Row, declared, rejected, rows_of

log = logging.getLogger(__name__)

FILE = os.path.join("config", "access.json")


class BrokerView:
    """Facts about the broker that policies depend on."""

    dead_letters_are_topics = False

    def __init__(self, cluster: str, tables: Callable[[], Tables]) -> None:
        self.cluster = cluster
        self._tables = tables

    def has_topic(self, name: str) -> bool:
        return self._tables().topics.find(name) is not None

    def has_group(self, name: str) -> bool:
        return name in self._tables().groups.groups


_NO_ACCOUNTS = (
    "this broker has no accounts of RocketMQ 4 (aclEnable). Manage users and policies with kerolox access, "
    "or with mqadmin createUser and createAcl of 5.3"
)
_NO_USERS = (
    "this broker has accounts of RocketMQ 4 (aclEnable), and no users. Change accounts with mqadmin "
    "updateAclConfig of 4.x, or in plain_acl.yml. For users, set migrateAuthFromV1Enabled"
)


class Access(ServerAccess, Room):
    """Users of a broker: a table of its store, unless the options name a file; or the accounts of RocketMQ
    4. ``tables`` returns the tables; the guard exists before them, because the ports need it."""

    def __init__(self, options: BrokerOptions, clock: Clock, tables: Callable[[], Tables]) -> None:
        view = BrokerView(options.cluster, tables)
        path = os.path.join(os.path.abspath(options.store_path), FILE)
        super().__init__(options, view, clock, path)
        self._broker_options = options
        self._accounts: AclFiles | None = None
        if options.acl or options.migrate_acl:
            self._accounts = AclFiles(*options.acl_places(options.config_path), clock)
            if options.acl:
                self.guard = PlainGuard(self._accounts, view, options, clock)

    async def start(self) -> None:
        await self.open()

    async def _bring(self) -> None:
        files = self._accounts
        if files is None:
            return
        await files.load()
        found = files.accounts
        if self._broker_options.acl:
            files.watch()
            log.info("acl_read files=%d accounts=%d", len(found.files), len(found.by_key))
            return
        made, left_over = await self.file.change(lambda book: migrate_into(book, found.by_key.values()))
        log.info("accounts_migrated users=%r path=%s", made, self.file.path)
        for line in [*left_over, *left_over_white(found.white if made else ())]:
            log.warning("account_not_migrated what=%r", line)

    async def close(self) -> None:
        if self._accounts is not None:
            await self._accounts.close()
        await super().close()

    def rows(self, address: str) -> list[Row]:
        """``address`` is reported in answers to queries for the versions of files."""
        if isinstance(self.guard, PlainGuard):
            options = self._broker_options
            accounts = AccountRequests(
                self.guard.files,
                self.guard,
                broker_name=options.broker_name,
                address=address,
                cluster=options.cluster,
            )
            own, absent, why = rows_of(accounts), declared(UserRequests), _NO_USERS
        else:
            own = rows_of(UserRequests(self.file, self.guard))
            absent, why = declared(AccountRequests), _NO_ACCOUNTS
        return [*own, *(rejected(row.code, row.rule, why) for row in absent)]
