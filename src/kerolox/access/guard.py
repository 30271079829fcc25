"""The guard of a server: it authenticates and authorizes every request before its handler runs.

Each request is checked separately: the protocol has no login. Every failed authentication returns the same
text; only the log gives the reason. After repeated failures an address receives its rejections late, so that
secrets cannot be guessed at network speed; other addresses are not delayed.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from kerolox.access.audit import AuditLog
from kerolox.access.book import Book, User
from kerolox.access.decisions import Decisions
from kerolox.access.failures import Failures
from kerolox.access.needs import names
from kerolox.access.options import AccessOptions, Audit, FormTwoUse
from kerolox.access.replays import Replays
from kerolox.access.sources import address_of, is_of_this_host
from kerolox.clock import Clock
from kerolox.errors import InvalidRequest, OptionError, ProtocolError, Refused
from kerolox.front.caller import Caller
from kerolox.front.needs import Need, Rule, View
from kerolox.front.refusals import NOT_AUTHENTICATED, NOT_AUTHORIZED, Refusal
from kerolox.front.requests import Request
from kerolox.protocol.codes import ResponseCode

log = logging.getLogger(__name__)

LAST_USER = "last_user"  # key in ``caller.data``: the user that sent the caller's last request

# One text for every authentication failure, so that it does not reveal which users exist.
NOT_KNOWN = (
    "access denied: requests must be signed by a known user. Check the access key and the secret "
    "key; the reason is in the server's log."
)


NOBODYS_SECRET = "nobody has this one, for nobody has signed with it"


class NotKnown(Refused):
    """A request that is not signed by a known user. ``why`` is written only to the log."""

    def __init__(self, why: str) -> None:
        super().__init__(ResponseCode.NO_PERMISSION, NOT_KNOWN, NOT_AUTHENTICATED)
        self.why = why


class NotAllowed(Refused):
    """A request that a known user has no right to."""

    def __init__(self, subject: str, need: object, source: object, why: str) -> None:
        super().__init__(
            ResponseCode.NO_PERMISSION,
            f"{subject} has no permission to access {need} from {source}, {why}",
            NOT_AUTHORIZED,
        )
        self.why = why


class NotFound(Refused):
    """A request for an object that does not exist or that the user may not access; the answer does not tell
    which."""

    def __init__(self, subject: str, request: str) -> None:
        super().__init__(
            ResponseCode.NO_PERMISSION,
            f"{subject} has no permission for this {request}: its object does not exist, or access to it is "
            "denied",
            NOT_AUTHORIZED,
        )


class Guard:
    """Decides about the requests of a server."""

    def __init__(self, book: Book, view: View, options: AccessOptions, clock: Clock) -> None:
        self.book = book
        self._view = view
        self._options = options
        self._unauthenticated = _codes(options.unauthenticated_codes, "authenticationWhitelist")
        self._unauthorized = _codes(options.unauthorized_codes, "authorizationWhitelist")
        self._admin_networks = options.admin_networks
        self.failures = Failures(clock)
        self._decisions = Decisions(book)
        own = options.own_credentials
        self._inner_name = "" if own is None else own.access_key
        self._replays = Replays(clock, options.form_2_window_s)
        self.audit = AuditLog(options)

    @property
    def wants_signatures(self) -> bool:
        return self._options.authentication

    # --- every request -------------------------------------------------------------------------------

    def admits(self, asked: Request[Any]) -> bool:
        """Authenticate a request before any of it is decoded. Return False after answering with a
        rejection."""
        if not self._options.authentication or asked.code in self._unauthenticated:
            return True
        try:
            asked.caller.data[LAST_USER] = asked.identity = self._who(asked)
        except NotKnown as refused:
            self.audit.not_known(asked, refused.why)
            self.failures.refuse(asked, Refusal.of(refused))
            return False
        return True

    def allows(self, asked: Request[Any], rule: Rule | None) -> bool:
        """Authorize a request by the rule of its code. Return False after answering with a rejection.

        Its header is already decoded if the server serves its code. If it does not (`rule` is None), only
        Super users may receive that answer.
        """
        who = asked.identity
        like_it = _like_it(asked, rule) if rule is not None and who is not None else None
        if (
            like_it is not None
            and who is not None
            and like_it in self._decisions.kept(who, asked.caller).allowed
            and self._options.audit is not Audit.ALL
        ):
            return True
        try:
            self._check_admin(asked, rule)
            if self._options.authorization and asked.code not in self._unauthorized:
                self.check(asked, self._needs(asked, rule))
                if like_it is not None and who is not None:
                    self._decisions.keep_allowed(who, asked.caller, like_it)
        except (Refused, InvalidRequest, ProtocolError) as refused:
            self.refuse(asked, Refusal.of(refused))
            return False
        return True

    def refuse(self, asked: Request[Any], refusal: Refusal) -> None:
        """Log a rejection and answer with it."""
        self.audit.refused(asked, refusal)
        asked.answer(refusal.answer())

    # --- rights that depend on the store -----------------------------------------------------------------

    def check(self, asked: Request[Any], needs: Iterable[Need]) -> None:
        """Raise unless the request's user has all these rights. Handlers call it when only the store shows
        the topic or group that a request concerns."""
        if not self._options.authorization:
            return
        user = self._user(asked.identity)
        if user.is_super:
            self.audit.allowed(asked, "Super")
            return
        for need in needs:
            decision = self._decisions.of(user.name, asked.caller, need)
            if not decision.allowed:
                why = "no matched policies." if decision.entry is None else "the decision is deny."
                raise NotAllowed(user.subject, need.resource, address_of(asked.caller), why)
            self.audit.allowed(asked, need, decision.entry)

    def check_reading(self, asked: Request[Any], topic: str | None, of_group: str | None = None) -> None:
        """Raise unless the request's user may read a message that was found by its position, with a group if
        the request names one. ``topic`` is the topic of the message; None: no message was found."""
        actions = names.SUB_OR_GET if of_group is None else names.SUB
        self._check_found(asked, None if topic is None else names.topic(topic, actions, self._view, of_group))

    def check_ending(self, asked: Request[Any], topic: str | None) -> None:
        """Raise unless the request's user may end the transaction of a message to `topic`; None: no message
        was found."""
        self._check_found(asked, None if topic is None else names.sending(topic, self._view))

    def may_look(self, asked: Request[Any]) -> bool:
        """Return whether the request's user may view the whole cluster, as following brokers may."""
        if not self._options.authorization or asked.code in self._unauthorized:
            return True
        user = self._user(asked.identity)
        need = names.cluster(self._view, names.GET)
        return user.is_super or self._decisions.of(user.name, asked.caller, need).allowed

    def _check_found(self, asked: Request[Any], needs: Iterable[Need] | None) -> None:
        """Check like :meth:`check`, without revealing to users who lack the right whether the object exists
        or which topic it belongs to."""
        if not self._options.authorization or asked.code in self._unauthorized:
            return
        user = self._user(asked.identity)
        if user.is_super:
            return
        try:
            if needs is None:
                raise NotAllowed(user.subject, "an unknown object", address_of(asked.caller), "")
            self.check(asked, needs)
        except NotAllowed as refused:
            self.audit.refused(asked, Refusal.of(refused))
            raise NotFound(user.subject, asked.name) from None

    # --- runs of plain sends -------------------------------------------------------------------------

    def may_send(self, identity: str | None, caller: Caller, name: str) -> bool:
        """Return whether plain messages of a user to a topic need no further check until the book or the
        options change. Messages that name light queues are not plain."""
        if self._options.authentication and self._options.audit is Audit.ALL:
            return False  # every decision must be logged
        return self.may_publish(identity, caller, name)

    def may_publish(self, identity: str | None, caller: Caller, name: str) -> bool:
        """Return whether a user may send to a topic. The result is not logged."""
        options = self._options
        if not options.authentication:
            return True
        user = self.book.users.get(identity or "")
        if user is None or not user.is_enabled:
            return False
        if user.is_super or not options.authorization:
            return True
        rules, source = self.book.rules_of(user.name), address_of(caller)
        return all(rules.decide(need, source).allowed for need in names.sending(name, self._view))

    # --- decisions -----------------------------------------------------------------------------------

    def _who(self, asked: Request[Any]) -> str:
        """Return the user of a request, by the proof that its caller offers."""
        proof = asked.caller.proof(asked)
        if not proof.user:
            raise NotKnown("no access key")
        user = self.book.users.get(proof.user)
        # Also verify for unknown users: the response time must not reveal whether a user exists.
        is_proved = proof.holds(NOBODYS_SECRET if user is None else user.password)
        if user is None:
            raise NotKnown("no such user")
        if not is_proved:
            raise NotKnown("wrong signature")
        if not user.is_enabled:
            raise NotKnown("the user is disabled")
        if self.needs_stamp(user):
            stamp = proof.stamp(user.password)
            if stamp is None:
                raise NotKnown("signatureV2 requires a signature of form 2; the request has no right one")
            why = self._replays.refusal(user.name, stamp)
            if why is not None:
                raise NotKnown(f"the signature of form 2 is rejected: {why}")
        return user.name

    def needs_stamp(self, user: User) -> bool:
        """Return whether each request of a user must have a stamp of its own (signatureV2)."""
        match self._options.form_2:
            case FormTwoUse.ALL:
                return True
            case FormTwoUse.SUPER:
                return user.is_super
            case FormTwoUse.INNER:
                return user.name == self._inner_name
        return False

    def _user(self, identity: str | None) -> User:
        user = self.book.users.get(identity or "")
        if user is None or not user.is_enabled:
            raise NotKnown("the request has no signature of a known user")
        return user

    def _needs(self, asked: Request[Any], rule: Rule | None) -> list[Need]:
        user = self._user(asked.identity)
        if rule is None:
            if user.is_super:
                return []
            raise NotAllowed(user.subject, asked.name, address_of(asked.caller), "no matched policies.")
        if rule.for_super and not user.is_super:
            raise NotAllowed(
                user.subject,
                asked.name,
                address_of(asked.caller),
                "only Super users administer users and rules.",
            )
        needs = list(rule.needs(asked, self._view))
        if not needs and not rule.for_everybody and not user.is_super:
            raise NotAllowed(user.subject, asked.name, address_of(asked.caller), "it names nothing.")
        return needs

    def _check_admin(self, asked: Request[Any], rule: Rule | None) -> None:
        networks = self._admin_networks
        if networks is None or rule is None or not rule.administers:
            return
        source = address_of(asked.caller)
        if source is not None and not any(source in network for network in networks):
            if not self._options.admin_from.strip() and is_of_this_host(asked.caller):
                return
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"{asked.name} is not accepted from {source}: administration requests must "
                "come from the addresses in adminFrom (default: this host and private networks)",
                NOT_AUTHORIZED,
            )


def _like_it(asked: Request[Any], rule: Rule) -> tuple[int, str | None, str | None] | None:
    """Return the key of requests that share one decision; None if each request is decided separately."""
    key = None if rule.key is None else rule.key(asked)
    return None if key is None else (asked.code, *key)


def _codes(text: str, key: str) -> frozenset[int]:
    try:
        return frozenset(int(one) for one in text.split(",") if one.strip())
    except ValueError:
        raise OptionError(key, text, "request codes separated by commas") from None
