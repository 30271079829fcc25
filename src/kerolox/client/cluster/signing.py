"""Signing: an access key, and proof of its secret, on every request of a client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox.front.requests import Hook
from kerolox.protocol.codes import VERSION_UNIQUE_KEY_UNSIGNED
from kerolox.protocol.signature import UNIQUE_KEY_QUERY, sign

if TYPE_CHECKING:
    from kerolox.net.peer import Peer
    from kerolox.protocol.command import Command


def is_incoming(request: Command) -> bool:
    """Whether it was read from a connection: hooks see those too."""
    return request._raw is not None or request._whole is not None


def sign_request(request: Command, access_key: str, secret_key: str, security_token: str = "") -> None:
    """Add the keys to a request that is about to be sent. Nothing may be added after it."""
    fields = request.fields
    # Brokers of 4.x never count this field in, those of 5.x do unless an old client asks: as an old client's
    # request, and without it, the signature is right for both.
    unsigned = fields.pop(UNIQUE_KEY_QUERY, None)
    fields.update(sign(fields, request.body, access_key, secret_key, security_token or None))
    if unsigned is not None:
        fields[UNIQUE_KEY_QUERY] = unsigned
        request.version = VERSION_UNIQUE_KEY_UNSIGNED


class Signing(Hook):
    """Signs every request that is sent."""

    def __init__(self, access_key: str, secret_key: str, security_token: str = "") -> None:
        self._access_key = access_key
        self._secret_key = secret_key
        self._security_token = security_token

    def before_request(self, peer: Peer, request: Command) -> None:
        if not is_incoming(request):
            sign_request(request, self._access_key, self._secret_key, self._security_token)
