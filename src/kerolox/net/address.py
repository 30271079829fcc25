"""Addresses of sockets, as we write them."""

from __future__ import annotations

import ipaddress
import socket
from typing import Any

_SOMEWHERE = ("192.0.2.1", 9)  # reserved for documentation: nothing is sent, only the way there looked up


def address_text(name: Any) -> str:
    """A socket's name as ``ip:port``; IPv6 in brackets."""
    if not isinstance(name, tuple) or len(name) < 2:
        return str(name or "")
    host, port = name[0], name[1]
    if ":" in host:
        if host.startswith("::ffff:") and "." in host:
            return f"{host[7:]}:{port}"  # an IPv4 client on a dual-stack listener
        return f"[{host}]:{port}"
    return f"{host}:{port}"


def source_of(address: str) -> str:
    """The part of a connection's address that one host has for itself: an IPv4 address, the first half of an
    IPv6 address. Bounds for each address are held by it."""
    host = address.rpartition(":")[0]
    if not host.startswith("["):
        return host
    try:
        whole = ipaddress.IPv6Address(host.strip("[]").partition("%")[0])
    except ValueError:
        return host
    return str(ipaddress.IPv6Network((int(whole) >> 64 << 64, 64)))


def is_loopback(host: str) -> bool:
    """Whether nobody but this machine reaches what listens there."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def reachable_host(bind_address: str) -> str:
    """The host that others can be told: the address that is listened on, or, when that is any, the one of the
    interface we go out with; the loopback when there is none."""
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
