"""Signing as a hook: completes every request that is sent over a connection of a client."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox.client.calls.outgoing import SendCommand
from kerolox.client.calls.signing import finish_request
from kerolox.client.stamps import next_stamp, stamps_of
from kerolox.net.handlers import Hook

if TYPE_CHECKING:
    from kerolox.client.options import ClientOptions
    from kerolox.net.peer import Peer
    from kerolox.protocol.command import Command


class Signing(Hook):
    """Hook that adds the namespace and the signature of a client to its requests."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._stamps = stamps_of(options)

    def before_request(self, peer: Peer, request: Command) -> None:
        if not isinstance(request, SendCommand):  # that is signed already
            finish_request(request, self._options, next_stamp(self._stamps))
