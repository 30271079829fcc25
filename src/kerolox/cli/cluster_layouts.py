"""Which clusters ``kerolox cluster up`` knows: those of RocketMQ's ``conf`` folder, file by file, and three
brokers under a controller.

A layout says what its files say. What they leave to the reader (ports, paths, name servers, and what a
synchronous cluster needs to be one) is added for one machine, and told apart in the files that are written.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kerolox.cli.up import EMBEDDED
from kerolox.errors import OptionError, nearest

# What all of RocketMQ's files of these clusters say.
COMMON = {
    "brokerClusterName": "DefaultCluster",
    "deleteWhen": "04",
    "fileReservedTime": "48",
    "flushDiskType": "ASYNC_FLUSH",
}


@dataclass(frozen=True)
class Planned:
    """One server of a layout. ``name`` is that of its file; ``server`` the command that runs it."""

    name: str
    server: str
    stock: Mapping[str, str] = field(default_factory=dict)  # RocketMQ's settings
    added: Mapping[str, str] = field(default_factory=dict)  # ours, beside ports, paths and name servers
    source: str = ""  # the file in RocketMQ's conf that says so

    @property
    def follows(self) -> bool:
        return self.stock.get("brokerRole") == "SLAVE"


NAMESERVER = Planned("nameserver", "nameserver")


def layout(name: str, controllers: int = 1, etcd_members: int = 0) -> tuple[Planned, ...]:
    """The servers of a cluster like this one, in the order they start in. Raises OptionError."""
    known = LAYOUTS.get(name)
    if known is None:
        raise OptionError("--like", name, f"one of {', '.join(LAYOUTS)}.{nearest(name, LAYOUTS)}")
    return controlled(controllers, etcd_members) if name == CONTROLLED else known


def controlled(controllers: int, etcd_members: int) -> tuple[Planned, ...]:
    """Three brokers of one name, and the controllers that elect their master; several share their state
    through members of etcd, which are here or elsewhere."""
    small = {key: str(value) for key, value in EMBEDDED.items()}
    stock = {
        **COMMON,
        "brokerName": "broker-a",
        "brokerId": "-1",
        "brokerRole": "SLAVE",
        "enableControllerMode": "true",
    }
    quick = "conf/controller/quick-start"
    return (
        NAMESERVER,
        *(Planned(f"etcd-{number}", "etcd-member") for number in range(etcd_members)),
        *(
            Planned(f"controller-{number}", "controller", source=f"{quick}/namesrv.conf")
            for number in range(controllers)
        ),
        *(
            Planned(f"broker-a-{number}", "broker", stock, small, f"{quick}/broker-n0.conf")
            for number in range(3)
        ),
    )


def _brokers(role: str, *, follower: bool, in_sync: int = 1) -> tuple[Planned, ...]:
    small = {key: str(value) for key, value in EMBEDDED.items()}
    found: list[Planned] = []
    for name in ("broker-a", "broker-b"):
        added = small if not follower else {**small, "slaveReadEnable": "true"}
        leads = {**COMMON, "brokerName": name, "brokerId": "0", "brokerRole": role}
        waits = {"inSyncReplicas": str(in_sync)} if in_sync > 1 else {}
        found.append(Planned(name, "broker", leads, {**waits, **added}))
        if follower:
            follows = {**COMMON, "brokerName": name, "brokerId": "1", "brokerRole": "SLAVE"}
            # As its leader's, for the day it leads.
            found.append(Planned(f"{name}-s", "broker", follows, {**waits, **added}))
    return tuple(sorted(found, key=lambda one: one.follows))


CONTROLLED = "controller-3"
LAYOUTS: Mapping[str, tuple[Planned, ...]] = {
    "2m-2s-sync": (NAMESERVER, *_brokers("SYNC_MASTER", follower=True, in_sync=2)),
    "2m-2s-async": (NAMESERVER, *_brokers("ASYNC_MASTER", follower=True)),
    "2m-noslave": (NAMESERVER, *_brokers("ASYNC_MASTER", follower=False)),
    CONTROLLED: controlled(1, 0),
}
