"""Small servers for one machine: the settings that ``up``, ``cluster up`` and ``demo`` share."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kerolox.nameserver.server import NameServer

PORTS_APART = 10  # between brokers: each takes its own port, the one two below, and the next

# Small files: an embedded store uses megabytes of disk instead of gigabytes, and opens at once.
EMBEDDED: dict[str, int | str] = {
    "mappedFileSizeCommitLog": 64 << 20,
    "mappedFileSizeConsumeQueue": 30_000 * 20,
    "maxHashSlotNum": 50_000,  # also in store/options.py, which the offline tools use to read these files
    "maxIndexNum": 200_000,
    "diskSpaceFreeEnough": 256 << 20,  # laptop disks are often 90% full
    "enablePropertyFilter": "true",  # so that `sql=` works without further settings
}


def reachable(host: str) -> str:
    """Return the loopback address for a server that listens on all addresses; other hosts unchanged."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def bracketed(host: str) -> str:
    """Return a host as addresses show it: IPv6 in brackets."""
    return f"[{host}]" if ":" in host else host


def nameserver_in(
    data: Path,
    at: tuple[str, int],
    brokers_awaited: int = 1,
    access: Mapping[str, Any] = MappingProxyType({}),
) -> NameServer:
    """Return a name server with its files in ``data``.

    It answers clients only after ``brokers_awaited`` brokers have registered. Otherwise it would report an
    existing topic as unknown.
    """
    from kerolox.nameserver.options import NamesrvOptions
    from kerolox.nameserver.server import NameServer

    options = NamesrvOptions(
        bind_address=at[0],
        listen_port=at[1],
        kv_config_path=str(data / "nameserver" / "kvConfig.json"),
        config_store_path=str(data / "nameserver" / "namesrv.properties"),
        **access,
    )
    return NameServer(options, brokers_awaited=brokers_awaited)
