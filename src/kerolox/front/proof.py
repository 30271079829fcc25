"""Proof of identity: the user that a request claims, and the means of its transport to prove it.

Remoting signs each request, HTTP sends a password, and a caller in the same process may need no proof. The
guard knows the users and their secrets; it asks the caller for the proof, and decides about rights only.
"""

from __future__ import annotations

from typing import Protocol

from kerolox.protocol.signature_v2 import Stamp


class Proof(Protocol):
    @property
    def user(self) -> str:
        """Name of the user; an empty text if the request claims none."""

    def holds(self, secret: str, /, *, any_release: bool = False) -> bool:
        """Return whether this secret of the user confirms the claim, in a time that does not depend on where
        a wrong one differs. ``any_release``: accept what releases of RocketMQ 4 sign differently."""

    def stamp(self, secret: str, /) -> Stamp | None:
        """Return the stamp by which a repeated request can be recognized; None if the proof has none."""


class NoProof:
    """Proof of a request that claims no user."""

    user = ""

    def holds(self, secret: str, /, *, any_release: bool = False) -> bool:
        return False

    def stamp(self, secret: str, /) -> Stamp | None:
        return None
