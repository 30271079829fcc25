"""Signing of a server's requests to others: a hook of its dialer."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.errors import OptionError
from kerolox.net.handlers import Hook
from kerolox.net.stamps import Stamps
from kerolox.protocol.signature import ACCESS_KEY, sign
from kerolox.protocol.signature_v2 import SIGNATURE_V2, signature_v2

if TYPE_CHECKING:
    from kerolox.net.peer import Peer
    from kerolox.protocol.command import Command


class Credentials(msgspec.Struct, frozen=True):
    """A user's name and secret."""

    access_key: str
    secret_key: str
    form_2: bool = False  # true: requests also carry SignatureV2

    def __repr__(self) -> str:  # never the secret
        return f"Credentials({self.access_key!r})"


class Signing(Hook):
    """Signs every outgoing request."""

    def __init__(self, credentials: Credentials, clock: Clock = SYSTEM_CLOCK) -> None:
        self._credentials = credentials
        self._stamps = Stamps(clock) if credentials.form_2 else None

    def before_request(self, peer: Peer, request: Command) -> None:
        own = self._credentials
        fields = request.fields
        if self._stamps is not None:  # first: the other signature covers this one
            fields[ACCESS_KEY] = own.access_key
            fields[SIGNATURE_V2] = signature_v2(
                request.code, request.is_one_way, fields, request.body, own.secret_key, self._stamps.next()
            )
        fields.update(sign(fields, request.body, own.access_key, own.secret_key))


def parse_credentials(text: str | None, key: str, name: str, secret: str) -> Credentials | None:
    """Parse credentials in a setting, a JSON object. The error never shows the value."""
    if not (text or "").strip():
        return None
    try:
        found = msgspec.json.decode(text or "", type=dict[str, str])
        return Credentials(found[name].strip() or found[""], found[secret].strip() or found[""])
    except (msgspec.DecodeError, KeyError):
        raise OptionError(
            key, "********", f'a JSON object with text: {{"{name}": "...", "{secret}": "..."}}'
        ) from None
