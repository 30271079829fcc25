"""Fields that a client adds to every request: its namespace and its signature."""

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


def adds_no_fields(options: ClientOptions) -> bool:
    """Return True if the client adds no fields to its requests, so that templates can be used."""
    return not options.access_key and not options.namespace_v2


class FrameSigner:
    """Signer of requests built from templates. The constant part of the signed content is prepared once:
    building and sorting the fields for every message takes three times as long.

    The names of the signature's fields begin with capitals and sort before all others, so their values come
    first in the signed content.
    """

    SIGNATURE_BYTES = 28

    def __init__(self, options: ClientOptions) -> None:
        self._secret = options.secret_key.encode()
        own = {ACCESS_KEY: options.access_key}
        if options.security_token:
            own[SECURITY_TOKEN] = options.security_token
        self.text = "".join(own.values()).encode()
        # Placed after other fields; the signature and a quotation mark follow.
        self.fields = b"," + msgspec.json.encode(own)[1:-1] + b',"%b":"' % SIGNATURE.encode()

    def signature(self, *parts: bytes) -> bytes:
        """Sign the joined parts: the values of all fields in the order of their names, then the body."""
        return b64encode(hmac.digest(self._secret, b"".join(parts), "sha1"))


def frame_signer(options: ClientOptions) -> FrameSigner | None:
    """Return the signer for templates; None if requests are not signed or not built from templates."""
    made = options.access_key and not options.namespace_v2 and not options.signature_v2
    return FrameSigner(options) if made else None


def finish_request(request: Command, options: ClientOptions, stamp: Stamp | None = None) -> None:
    """Add the namespace of 5.x and the signature to a request.

    No field may be added afterwards: the signature covers all fields. With a stamp, add a form 2 signature,
    too.
    """
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
    # Brokers of 4.x never include this field in the signature; those of 5.x do, except for old clients. Sent
    # as an old client's request without it, the signature is valid for both.
    unsigned = fields.pop(UNIQUE_KEY_QUERY, None)
    fields.update(sign(fields, request.body, options.access_key, options.secret_key, token))
    if unsigned is not None:
        fields[UNIQUE_KEY_QUERY] = unsigned
        request.version = VERSION_UNIQUE_KEY_UNSIGNED
