"""Where requests come from, as rules speak of it."""

from __future__ import annotations

import ipaddress

from kerolox.access.policies import Address
from kerolox.front.caller import Caller


def address_of(caller: Caller) -> Address | None:
    """The caller's address without its port; None when it has none, as callers of the same process."""
    found: Address | None = caller.data.get("source")
    if found is None:
        host = caller.address.rpartition(":")[0].strip("[]")
        try:
            found = ipaddress.ip_address(host)
        except ValueError:
            return None
        if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
            found = found.ipv4_mapped
        caller.data["source"] = found
    return found
