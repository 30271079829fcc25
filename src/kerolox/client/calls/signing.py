"""What every request of a client carries beside what it asks: its namespace, and proof of who asks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox.protocol.codes import VERSION_UNIQUE_KEY_UNSIGNED
from kerolox.protocol.signature import UNIQUE_KEY_QUERY, sign

if TYPE_CHECKING:
    from kerolox.client.options import ClientOptions
    from kerolox.protocol.command import Command


def goes_plain(options: ClientOptions) -> bool:
    """Whether nothing is added to the requests of a client: they may be made from templates."""
    return not options.access_key and not options.namespace_v2


def finish_request(request: Command, options: ClientOptions) -> None:
    """Add the namespace of 5.x and the signature to a request that is about to be sent. Nothing may be added
    after it, for a signature is over all fields."""
    fields = request.fields
    if options.namespace_v2:
        fields.update(nsd="true", ns=options.namespace_v2)
    if not options.access_key:
        return
    # Brokers of 4.x never count this field in, those of 5.x do unless an old client asks: as an old client's
    # request, and without it, the signature is right for both.
    unsigned = fields.pop(UNIQUE_KEY_QUERY, None)
    token = options.security_token or None
    fields.update(sign(fields, request.body, options.access_key, options.secret_key, token))
    if unsigned is not None:
        fields[UNIQUE_KEY_QUERY] = unsigned
        request.version = VERSION_UNIQUE_KEY_UNSIGNED
