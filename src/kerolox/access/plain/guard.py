"""The guard of a broker with RocketMQ 4's accounts (``aclEnable``).

It decides as RocketMQ 4 does for documented uses, and closes its gaps:

- every administration request needs an account with ``admin: true``; RocketMQ 4 requires it for five;
- requests that need nothing in RocketMQ 4 need what the rules of 5.3 require, as far as accounts express it;
- a white list replaces a signature, as documented, but never the right to change accounts, and an account's
  own list never replaces a missing ``admin: true``;
- every failed authentication returns the same text, after a delay if failures repeat; secrets are compared
  in constant time.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kerolox.access.book import Book, User
from kerolox.access.guard import LAST_USER, NOBODYS_SECRET, NOT_KNOWN, Guard
from kerolox.access.needs import names
from kerolox.access.options import AccessOptions, Audit
from kerolox.access.plain.accounts import Account
from kerolox.access.plain.addresses import matches_any
from kerolox.access.plain.files import AclFiles
from kerolox.access.plain.needs import PlainView, is_for_any_account, permits
from kerolox.access.sources import address_of
from kerolox.clock import Clock
from kerolox.errors import InvalidRequest, ProtocolError, Refused
from kerolox.front.caller import Caller
from kerolox.front.needs import Need, Rule, View
from kerolox.front.refusals import NOT_AUTHENTICATED, NOT_AUTHORIZED, Refusal
from kerolox.front.requests import Request
from kerolox.protocol.codes import RequestCode, ResponseCode

# Prefix of RocketMQ 4's rejections, with SYSTEM_ERROR; its clients and tools recognize them by it.
ACL_EXCEPTION = "org.apache.rocketmq.acl.common.AclException: "

# Requests that change accounts or reveal them: a white address is not enough for them (CVE-2024-23321).
ABOUT_ACCOUNTS = frozenset({
    RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, RequestCode.DELETE_ACL_CONFIG,
    RequestCode.GET_BROKER_CLUSTER_ACL_INFO, RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG,
    RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG,
})  # fmt: skip

# key in ``caller.data``: the accounts that were checked, and whether the address is in the white list
_WHITE = "acl_white"


class Stranger(Refused):
    """A request without a signature of a known account. ``why`` is written only to the log."""

    def __init__(self, why: str) -> None:
        super().__init__(ResponseCode.SYSTEM_ERROR, ACL_EXCEPTION + NOT_KNOWN, NOT_AUTHENTICATED)
        self.why = why


class NoPermission(Refused):
    """A request that the account has no permission for."""

    def __init__(self, why: str) -> None:
        super().__init__(ResponseCode.SYSTEM_ERROR, ACL_EXCEPTION + why, NOT_AUTHORIZED)


class PlainGuard(Guard):
    """Decides about the requests of a broker by its account files."""

    def __init__(self, files: AclFiles, view: View, options: AccessOptions, clock: Clock) -> None:
        # The base class needs a book; prepared keys of users are derived from it.
        super().__init__(Book(), PlainView(view), options, clock)
        self.files = files
        own = options.own_credentials
        self._own = None if own is None else Account(
            access_key=own.access_key, secret_key=own.secret_key, admin=True
        )  # fmt: skip
        files.on_change.append(self._accounts_changed)
        self._accounts_changed()

    @property
    def wants_signatures(self) -> bool:
        return True

    def account(self, key: str | None) -> Account | None:
        """Return an account by its key. The servers' own account is known even if no file defines it."""
        found = self.files.accounts.by_key.get(key or "")
        if found is None and self._own is not None and key == self._own.access_key:
            return self._own
        return found

    # --- every request -------------------------------------------------------------------------------

    def admits(self, asked: Request[Any]) -> bool:
        if asked.code not in ABOUT_ACCOUNTS and self._is_white(asked.caller):
            return True
        try:
            asked.caller.data[LAST_USER] = asked.identity = self._who(asked)
        except Stranger as refused:
            self.audit.not_known(asked, refused.why)
            self.failures.refuse(asked, Refusal.of(refused))
            return False
        return True

    def allows(self, asked: Request[Any], rule: Rule | None) -> bool:
        try:
            self._check_admin(asked, rule)
            self._check_request(asked, rule)
        except (Refused, InvalidRequest, ProtocolError) as refused:
            self.refuse(asked, Refusal.of(refused))
            return False
        return True

    def check(self, asked: Request[Any], needs: Iterable[Need]) -> None:
        if asked.identity is None and self._is_white(asked.caller):
            self.audit.allowed(asked, "white address")
            return
        account = self._known(asked.identity)
        if matches_any(account.white, address_of(asked.caller)):
            self.audit.allowed(asked, "white address of the account")
            return
        for need in needs:
            if not permits(account, need):
                raise NoPermission(f"No permission for {need.resource}: accessKey={account.access_key}")
            self.audit.allowed(asked, need)

    def _check_found(self, asked: Request[Any], needs: Iterable[Need] | None) -> None:
        if needs is not None:
            try:
                self.check(asked, needs)
            except NoPermission as refused:
                self.audit.refused(asked, Refusal.of(refused))
            else:
                return
        elif self._is_white(asked.caller) or self._known(asked.identity).admin:
            return  # the handler reports that the object does not exist
        raise NoPermission(
            f"No permission for this {asked.name}: its object does not exist, or access to it is denied"
        )

    # --- runs of plain sends -------------------------------------------------------------------------

    def may_send(self, identity: str | None, caller: Caller, name: str) -> bool:
        """Return whether plain messages need no further check. White addresses do not count here: unsigned
        requests from them are checked one by one."""
        return self._options.audit is not Audit.ALL and self._may_publish(self.account(identity), name)

    def may_publish(self, identity: str | None, caller: Caller, name: str) -> bool:
        account = self.account(identity)
        if self._is_white(caller) or (account and matches_any(account.white, address_of(caller))):
            return True
        return self._may_publish(account, name)

    def _may_publish(self, account: Account | None, name: str) -> bool:
        return account is not None and all(permits(account, need) for need in names.sending(name, self._view))

    # --- decisions -----------------------------------------------------------------------------------

    def _who(self, asked: Request[Any]) -> str:
        proof = asked.caller.proof(asked)
        if not proof.user:
            raise Stranger("no access key")
        account = self.account(proof.user)
        if account is None:
            # The response time must not reveal which accounts exist.
            proof.holds(NOBODYS_SECRET, any_release=True)
            raise Stranger("no such account")
        by_address = matches_any(account.white, address_of(asked.caller))
        if by_address and asked.code not in ABOUT_ACCOUNTS:
            return account.access_key
        if not proof.holds(account.secret_key, any_release=True):
            raise Stranger("wrong signature")
        return account.access_key

    def _check_request(self, asked: Request[Any], rule: Rule | None) -> None:
        white = asked.identity is None and self._is_white(asked.caller)
        if white and asked.code not in ABOUT_ACCOUNTS:
            self.audit.allowed(asked, "white address")
            return
        account = self._known(asked.identity)
        if rule is None or rule.administers or asked.code in ABOUT_ACCOUNTS:
            if not account.admin:
                raise NoPermission(
                    f"Need admin permission for request code={asked.code}, but accessKey="
                    f"{account.access_key} is not"
                )
            self.audit.allowed(asked, "admin")
            return
        if is_for_any_account(rule):
            self.audit.allowed(asked, "any account")
            return
        needs = list(rule.needs(asked, self._view))
        if not needs and not rule.for_everybody and not account.admin:
            raise NoPermission(
                f"No permission for {asked.name}, which names no resource: accessKey={account.access_key}"
            )
        self.check(asked, needs)

    def _known(self, identity: str | None) -> Account:
        account = self.account(identity)
        if account is None:
            # its account has just been deleted
            raise Stranger("the request has no signature of a known account")
        return account

    def _is_white(self, caller: Caller) -> bool:
        accounts = self.files.accounts
        asked = caller.data.get(_WHITE)
        if asked is None or asked[0] is not accounts:
            asked = caller.data[_WHITE] = accounts, matches_any(accounts.white, address_of(caller))
        return bool(asked[1])

    def _accounts_changed(self) -> None:
        found = dict(self.files.accounts.by_key)
        if self._own is not None:
            found.setdefault(self._own.access_key, self._own)
        self.book.replace(
            {key: User(key, account.secret_key, is_super=account.admin) for key, account in found.items()}, {}
        )
