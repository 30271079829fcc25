"""Audit log: one line per decision, as set by accessAudit. It never contains signatures or secrets."""

from __future__ import annotations

import logging
from typing import Any

from kerolox.access.options import AccessOptions, Audit
from kerolox.front.refusals import Refusal
from kerolox.front.requests import Request

log = logging.getLogger(__name__)

EVERY = {"every": True}  # exempts these records from rate limiting: the audit log must be complete
NAME_SHOWN_MAX = 64  # characters of an unverified name


class AuditLog:
    def __init__(self, options: AccessOptions) -> None:
        self._options = options  # the audit level may change at run time

    def not_known(self, asked: Request[Any], why: str) -> None:
        if self._options.audit is Audit.NONE:
            return
        name = asked.caller.proof(asked).user[:NAME_SHOWN_MAX]
        log.info(
            "not_known request=%s from=%s name=%r why=%r",
            asked.name, asked.caller.address, name, why,
        )  # fmt: skip

    def refused(self, asked: Request[Any], refusal: Refusal) -> None:
        if self._options.audit is Audit.NONE:
            return
        log.info(
            "refused request=%s from=%s user=%r reason=%s why=%r",
            asked.name, asked.caller.address, asked.identity, refusal.reason, refusal.text,
        )  # fmt: skip

    def allowed(self, asked: Request[Any], need: object, rule: object = None) -> None:
        if self._options.audit is not Audit.ALL:
            return
        log.info(
            "allowed request=%s from=%s user=%r need=%r rule=%r",
            asked.name, asked.caller.address, asked.identity, str(need), str(rule or ""),
            extra=EVERY,
        )  # fmt: skip

    def changed(self, asked: Request[Any], what: str) -> None:
        """Log a change of users or rules, at every audit level."""
        log.info(
            "access_changed by=%r from=%s what=%r", asked.identity, asked.caller.address, what, extra=EVERY
        )
