"""Signing what a server asks others: a hook of its dialer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from kerolox.errors import OptionError
from kerolox.net.handlers import Hook
from kerolox.protocol.signature import sign

if TYPE_CHECKING:
    from kerolox.net.peer import Peer
    from kerolox.protocol.command import Command


class Credentials(msgspec.Struct, frozen=True):
    """A user's name and secret."""

    access_key: str
    secret_key: str

    def __repr__(self) -> str:  # never the secret
        return f"Credentials({self.access_key!r})"


class Signing(Hook):
    """Signs every request that leaves."""

    def __init__(self, credentials: Credentials) -> None:
        self._credentials = credentials

    def before_request(self, peer: Peer, request: Command) -> None:
        own = self._credentials
        request.fields.update(sign(request.fields, request.body, own.access_key, own.secret_key))


def parse_credentials(text: str | None, key: str, name: str, secret: str) -> Credentials | None:
    """Credentials as settings have them, as a JSON object. The error never shows what was found."""
    if not (text or "").strip():
        return None
    try:
        found = msgspec.json.decode(text or "", type=dict[str, str])
        return Credentials(found[name].strip() or found[""], found[secret].strip() or found[""])
    except (msgspec.DecodeError, KeyError):
        raise OptionError(
            key, "********", f'a JSON object with text: {{"{name}": "...", "{secret}": "..."}}'
        ) from None
