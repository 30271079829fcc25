"""Prepared keys of users whose signed sends arrive in runs."""

from __future__ import annotations

from kerolox.access.guard import LAST_USER, Guard
from kerolox.front.caller import Caller
from kerolox.protocol.signature import Signer, signer


class Signers:
    """Signers by user name. Every change of the guard's book empties it."""

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._known: dict[str, Signer] = {}
        guard.book.on_change.append(self._known.clear)

    def of(self, caller: Caller) -> Signer | None:
        """Return the signer of the caller's last request. None before the first, and for users whose requests
        are verified separately.

        It is only a hint for the signature to try next: a connection may carry requests of many users, and
        every request is verified.
        """
        name = caller.data.get(LAST_USER)
        if name is None:
            return None
        user = self._guard.book.users.get(name)
        if user is None or not user.is_enabled or self._guard.needs_stamp(user):
            return None
        found = self._known.get(name)
        if found is None:
            found = self._known[name] = signer(user.name, user.password)
        return found
