"""How one member of etcd is run, for those who have the program: Debian's package is etcd-server."""

from __future__ import annotations

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class EtcdPlace:
    """Where one member listens: for clients, and for the other members."""

    client: str  # host:port
    peer: str


def find_etcd() -> str | None:
    """The program, if it is there."""
    return shutil.which("etcd")


def member_command(
    program: str, name: str, directory: Path, places: Mapping[str, EtcdPlace], *, joins: bool = False
) -> list[str]:
    """The command that runs the member of this name, on one machine: small, and quick to elect. ``joins``: a
    cluster that is there already."""
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
