"""Stamps of a client's requests, for signatures of form 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox.net.stamps import Stamps

if TYPE_CHECKING:
    from kerolox.client.options import ClientOptions
    from kerolox.protocol.signature_v2 import Stamp


def stamps_of(options: ClientOptions) -> Stamps | None:
    """Return the stamps of a client whose requests are signed in form 2."""
    return Stamps() if options.access_key and options.signature_v2 else None


def next_stamp(stamps: Stamps | None) -> Stamp | None:
    return None if stamps is None else stamps.next()
