"""Source addresses of requests, as access rules use them."""

from __future__ import annotations

import ipaddress

from kerolox.access.policies import Address
from kerolox.front.caller import Caller


def address_of(caller: Caller) -> Address | None:
    """Return the caller's address without its port; None if it has none, as for callers in the same
    process."""
    found: Address | None = caller.data.get("source")
    if found is None:
        found = caller.data["source"] = _parsed(caller.address)
    return found


def is_of_this_host(caller: Caller) -> bool:
    """Return whether both ends of a connection have the same address. Only connections within this host do:
    an answer to that address would not leave the host."""
    source = address_of(caller)
    return source is not None and source == _parsed(getattr(caller, "local_address", ""))


def _parsed(text: str) -> Address | None:
    try:
        found = ipaddress.ip_address(text.rpartition(":")[0].strip("[]"))
    except ValueError:
        return None
    if isinstance(found, ipaddress.IPv6Address) and found.ipv4_mapped is not None:
        return found.ipv4_mapped
    return found
