"""Addresses of name servers, as people write them."""

from __future__ import annotations

from kerolox.errors import OptionError


def split_addresses(text: str) -> list[str]:
    """``a:1;b:2`` or ``a:1,b:2`` → the addresses. A scheme, as some environments have it, is dropped."""
    parts = (part.strip() for part in text.replace(",", ";").split(";"))
    addresses = [part.removeprefix("http://").rstrip("/") for part in parts if part]
    if not addresses:
        raise OptionError("--nameserver", text, "at least one host:port")
    return addresses
