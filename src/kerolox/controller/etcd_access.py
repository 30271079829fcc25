"""Addresses of the members of an etcd cluster, and the credentials for it."""

from __future__ import annotations

from dataclasses import dataclass

from kerolox.errors import OptionError

EXPECTED = "etcd's members, separated by commas, as in http://10.0.0.1:2379,https://10.0.0.2:2379"


@dataclass(frozen=True)
class EtcdAccess:
    """The etcd options."""

    endpoints: tuple[tuple[str, bool], ...]  # host:port, and True for TLS
    ca: str | None = None  # PEM files
    certificate: str | None = None
    key: str | None = None
    user: str | None = None
    password: str | None = None

    @property
    def text(self) -> str:
        return ",".join(address for address, _ in self.endpoints)


def read_endpoints(text: str) -> tuple[tuple[str, bool], ...]:
    """Parse ``http://10.0.0.1:2379,https://...`` to addresses; True marks those that use TLS."""
    found = []
    for part in text.replace(";", ",").split(","):
        if not (part := part.strip().rstrip("/")):
            continue
        scheme, _, address = part.rpartition("://")
        host, _, port = address.rpartition(":")
        is_port = port.isascii() and port.isdigit() and 0 < int(port) < 65536
        if scheme not in ("", "http", "https") or not host or "/" in host or not is_port:
            raise OptionError("etcdEndpoints", text, EXPECTED)
        found.append((address, scheme == "https"))
    if not found:
        raise OptionError("etcdEndpoints", text, EXPECTED)
    return tuple(found)
