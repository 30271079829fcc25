"""What every request of a client carries beside what it asks: its namespace, and proof of who asks."""

from __future__ import annotations

import hmac
from base64 import b64encode
from typing import TYPE_CHECKING

import msgspec

from kerolox.protocol.codes import VERSION_UNIQUE_KEY_UNSIGNED
from kerolox.protocol.signature import ACCESS_KEY, SECURITY_TOKEN, SIGNATURE, UNIQUE_KEY_QUERY, sign
from kerolox.protocol.signature_v2 import SIGNATURE_V2, Stamp, signature_v2

if TYPE_CHECKING:
    from kerolox.client.options import ClientOptions
    from kerolox.protocol.command import Command


def goes_plain(options: ClientOptions) -> bool:
    """Whether nothing is added to the requests of a client: they may be made from templates."""
    return not options.access_key and not options.namespace_v2


class FrameSigner:
    """Signs requests that are made from templates: most of what is signed is the same every time, so it is
    put together once. A producer that builds and sorts the fields of every message anew takes three times as
    long for it.

    The names of its own fields begin with capitals, which stand before the names of all others: what they
    say comes first in what is signed.
    """

    SIGNATURE_BYTES = 28

    def __init__(self, options: ClientOptions) -> None:
        self._secret = options.secret_key.encode()
        own = {ACCESS_KEY: options.access_key}
        if options.security_token:
            own[SECURITY_TOKEN] = options.security_token
        self.text = "".join(own.values()).encode()
        # Behind other fields; the signature and a quotation mark follow.
        self.fields = b"," + msgspec.json.encode(own)[1:-1] + b',"%b":"' % SIGNATURE.encode()

    def signature(self, *parts: bytes) -> bytes:
        """Of these parts, joined: the values of all fields in the order of their names, and the body."""
        return b64encode(hmac.digest(self._secret, b"".join(parts), "sha1"))


def frame_signer(options: ClientOptions) -> FrameSigner | None:
    """What signs requests from templates; None if they are not signed, or not made from templates."""
    made = options.access_key and not options.namespace_v2 and not options.signature_v2
    return FrameSigner(options) if made else None


def finish_request(request: Command, options: ClientOptions, stamp: Stamp | None = None) -> None:
    """Add the namespace of 5.x and the signature to a request that is about to be sent. Nothing may be added
    after it, for a signature is over all fields. With a stamp it is signed in form 2, too."""
    fields = request.fields
    if options.namespace_v2:
        fields.update(nsd="true", ns=options.namespace_v2)
    if not options.access_key:
        return
    token = options.security_token or None
    if stamp is not None:
        fields[ACCESS_KEY] = options.access_key
        if token is not None:
            fields[SECURITY_TOKEN] = token
        fields[SIGNATURE_V2] = signature_v2(
            request.code, request.is_one_way, fields, request.body, options.secret_key, stamp
        )
    # Brokers of 4.x never count this field in, those of 5.x do unless an old client asks: as an old client's
    # request, and without it, the signature is right for both.
    unsigned = fields.pop(UNIQUE_KEY_QUERY, None)
    fields.update(sign(fields, request.body, options.access_key, options.secret_key, token))
    if unsigned is not None:
        fields[UNIQUE_KEY_QUERY] = unsigned
        request.version = VERSION_UNIQUE_KEY_UNSIGNED
