"""Running of etcd members, if the program is installed: Debian's package is etcd-server."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class EtcdPlace:
    """Listen addresses of a member: for clients, and for the other members."""

    client: str  # host:port
    peer: str


def find_etcd() -> str | None:
    """Return the path of the program; None if it is not installed."""
    return shutil.which("etcd")


def member_command(
    program: str, name: str, directory: Path, places: Mapping[str, EtcdPlace], *, joins: bool = False
) -> list[str]:
    """Return the command that runs the member of this name, on one machine, with small files and fast
    elections. ``joins``: the cluster exists already."""
    own = places[name]
    cluster = ",".join(f"{each}=http://{place.peer}" for each, place in places.items())
    return [
        program,
        *("--name", name),
        *("--data-dir", str(directory)),
        *("--listen-client-urls", f"http://{own.client}"),
        *("--advertise-client-urls", f"http://{own.client}"),
        *("--listen-peer-urls", f"http://{own.peer}"),
        *("--initial-advertise-peer-urls", f"http://{own.peer}"),
        *("--initial-cluster", cluster),
        *("--initial-cluster-token", "kerolox"),
        *("--heartbeat-interval", "50"),
        *("--election-timeout", "500"),
        *("--auto-compaction-retention", "1"),
        *("--snapshot-count", "10000"),
        *(("--initial-cluster-state", "existing") if joins else ()),
    ]
