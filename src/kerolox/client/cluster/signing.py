"""Signing, as a hook: every request that leaves over a connection of a client is finished here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox.client.calls.outgoing import SendCommand
from kerolox.client.calls.signing import finish_request
from kerolox.net.handlers import Hook
from kerolox.net.signing import Stamps

if TYPE_CHECKING:
    from kerolox.client.options import ClientOptions
    from kerolox.net.peer import Peer
    from kerolox.protocol.command import Command
    from kerolox.protocol.signature_v2 import Stamp


def stamps_of(options: ClientOptions) -> Stamps | None:
    """Stamps for requests that are signed in form 2; None for others."""
    return Stamps() if options.access_key and options.signature_v2 else None


def next_stamp(stamps: Stamps | None) -> Stamp | None:
    return None if stamps is None else stamps.next()


class Signing(Hook):
    """Adds the namespace and the signature of a client to every request it sends."""

    def __init__(self, options: ClientOptions) -> None:
        self._options = options
        self._stamps = stamps_of(options)

    def before_request(self, peer: Peer, request: Command) -> None:
        if not isinstance(request, SendCommand):  # that is signed already
            finish_request(request, self._options, next_stamp(self._stamps))
