"""Parsing of name server addresses."""

from __future__ import annotations

from kerolox.errors import OptionError


def split_addresses(text: str) -> list[str]:
    """Split ``a:1;b:2`` or ``a:1,b:2`` into addresses. An ``http://`` prefix is removed."""
    parts = (part.strip() for part in text.replace(",", ";").split(";"))
    addresses = [part.removeprefix("http://").rstrip("/") for part in parts if part]
    if not addresses:
        raise OptionError("--nameserver", text, "at least one host:port")
    return addresses
