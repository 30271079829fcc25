"""Text forms of socket addresses, and the addresses of this machine."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

# reserved for documentation: nothing is sent, only the route to it is looked up
_SOMEWHERE = ("192.0.2.1", 9)


def address_text(name: Any) -> str:
    """Return a socket's name as ``ip:port``, with IPv6 in brackets."""
    if not isinstance(name, tuple) or len(name) < 2:
        return str(name or "")
    host, port = name[0], name[1]
    if ":" in host:
        if host.startswith("::ffff:") and "." in host:
            return f"{host[7:]}:{port}"  # an IPv4 client on a dual-stack listener
        return f"[{host}]:{port}"
    return f"{host}:{port}"


def source_of(address: str) -> str:
    """Return the part of a connection's address that belongs to one host: an IPv4 address, or the first half
    of an IPv6 address. Limits per source address use it."""
    host = address.rpartition(":")[0]
    if not host.startswith("["):
        return host
    try:
        whole = ipaddress.IPv6Address(host.strip("[]").partition("%")[0])
    except ValueError:
        return host
    return str(ipaddress.IPv6Network((int(whole) >> 64 << 64, 64)))


def is_loopback(host: str) -> bool:
    """Return whether only this machine can reach a listener at this host."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def reachable_host(bind_address: str) -> str:
    """Return the host to advertise to others: the bind address; if that is unspecified, the address of the
    outgoing interface, or the loopback address if there is none."""
    try:
        if not ipaddress.ip_address(bind_address).is_unspecified:
            return bind_address
    except ValueError:
        return bind_address
    try:
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect(_SOMEWHERE)
            return str(probe.getsockname()[0])
    except OSError:
        return "127.0.0.1"
