"""Addresses of sockets, as we write them."""

from __future__ import annotations

from typing import Any


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
