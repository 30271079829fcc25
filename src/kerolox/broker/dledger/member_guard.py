"""Access control on the port of a DLedger member: every caller there can write the log."""

from __future__ import annotations

from typing import Any

from kerolox.access.guard import Guard, NotAllowed
from kerolox.access.sources import address_of
from kerolox.front.needs import Rule
from kerolox.front.refusals import Refusal
from kerolox.front.requests import Request
from kerolox.replication.entrance import Network


class MemberGuard:
    """Guard that admits requests signed by a super user, as kerolox members sign theirs. RocketMQ's members
    cannot sign, and are admitted by address (haTrustedAddresses)."""

    def __init__(self, guard: Guard, networks: tuple[Network, ...]) -> None:
        self._guard = guard
        self._networks = networks

    def admits(self, asked: Request[Any], /) -> bool:
        return self._trusts(asked) or self._guard.admits(asked)

    def allows(self, asked: Request[Any], rule: Rule | None, /) -> bool:
        if self._trusts(asked) or self._guard.book.secret_of_super(asked.identity or "") is not None:
            return True
        refused = NotAllowed(
            f"User:{asked.identity}",
            asked.name,
            address_of(asked.caller),
            "members sign as a Super user.",
        )
        self._guard.refuse(asked, Refusal.of(refused))
        return False

    def _trusts(self, asked: Request[Any]) -> bool:
        if not self._networks:
            return False
        source = address_of(asked.caller)
        return source is not None and any(source in network for network in self._networks)
