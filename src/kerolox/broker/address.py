"""Detection of the address at which clients can reach the broker.

The address goes to the name servers, into every record, and into message ids, so other hosts must be able to
connect to it: the classic outage is a broker that tells everybody 127.0.0.1.
"""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import socket
from collections.abc import Iterable

from kerolox.errors import OptionError

log = logging.getLogger(__name__)

LOOPBACK = "127.0.0.1"
_SOMEWHERE = ("192.0.2.1", 9)  # reserved for documentation: nothing is sent, only its route is looked up


async def advertised_host(wanted: str, bind_address: str, nameservers: Iterable[str] = ()) -> str:
    """Return the host advertised to clients: the configured one, else the bind address, else the address of
    the outgoing interface."""
    if wanted:
        return wanted
    if not ipaddress.ip_address(bind_address).is_unspecified:
        return bind_address
    loop = asyncio.get_running_loop()
    found = await loop.run_in_executor(None, _outgoing, list(nameservers))
    if found is None:
        log.warning(
            "address_unknown advertised=%s next='set brokerIP1; until then only clients on this machine "
            "reach it'",
            LOOPBACK,
        )
        return LOOPBACK
    return found


async def resolve(host: str, option: str) -> str:
    """Return the IP address of a host. A name is looked up in a thread."""
    try:
        return str(ipaddress.ip_address(host))
    except ValueError:
        pass
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except OSError as error:
        raise OptionError(option, host, f"an address or a name that can be looked up ({error})") from error
    return str(found[0][4][0])


def _outgoing(nameservers: list[str]) -> str | None:
    """Return the address of the interface that leads to a name server, or to the internet."""
    for target in [*map(_target, nameservers), _SOMEWHERE]:
        if target is None:
            continue
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
                probe.connect(target)
                address: str = probe.getsockname()[0]
        except OSError:
            continue
        if not ipaddress.ip_address(address).is_loopback:  # a local name server tells nothing
            return address
    return None


def _target(nameserver: str) -> tuple[str, int] | None:
    host, _, port = nameserver.rpartition(":")
    return (host, int(port)) if host and port.isdigit() else None
