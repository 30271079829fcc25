"""Layouts of ``kerolox cluster up``: those of RocketMQ's ``conf`` folder, file by file, and three brokers
under a controller.

A layout has the settings of RocketMQ's files. The settings that these files omit (ports, paths, name servers,
and the in-sync replicas of a synchronous cluster) are added for one machine, in a separate section of the
written files.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kerolox.errors import OptionError, nearest
from kerolox.supervise.embedded import EMBEDDED

# Settings that all of RocketMQ's files of these clusters share.
COMMON = {
    "brokerClusterName": "DefaultCluster",
    "deleteWhen": "04",
    "fileReservedTime": "48",
    "flushDiskType": "ASYNC_FLUSH",
}


@dataclass(frozen=True)
class Planned:
    """Server of a layout. ``name`` is the name of its file; ``server`` is the command that runs it."""

    name: str
    server: str
    stock: Mapping[str, str] = field(default_factory=dict)  # RocketMQ's settings
    added: Mapping[str, str] = field(default_factory=dict)  # kerolox's, besides ports, paths and name servers
    source: str = ""  # the file in RocketMQ's conf with the stock settings

    @property
    def follows(self) -> bool:
        return self.stock.get("brokerRole") == "SLAVE"


NAMESERVER = Planned("nameserver", "nameserver")


def layout(name: str, controllers: int = 1, etcd_members: int = 0) -> tuple[Planned, ...]:
    """Return the servers of a layout, in start order. Raises OptionError for an unknown name."""
    known = LAYOUTS.get(name)
    if known is None:
        raise OptionError("--like", name, f"one of {', '.join(LAYOUTS)}.{nearest(name, LAYOUTS)}")
    return controlled(controllers, etcd_members) if name == CONTROLLED else known


def controlled(controllers: int, etcd_members: int) -> tuple[Planned, ...]:
    """Return three brokers of one name and the controllers that elect their master.

    Several controllers share their state through etcd; ``etcd_members`` counts the members run by the
    cluster.
    """
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
            # The leader's settings, which apply when this follower is promoted.
            found.append(Planned(f"{name}-s", "broker", follows, {**waits, **added}))
    return tuple(sorted(found, key=lambda one: one.follows))


CONTROLLED = "controller-3"
LAYOUTS: Mapping[str, tuple[Planned, ...]] = {
    "2m-2s-sync": (NAMESERVER, *_brokers("SYNC_MASTER", follower=True, in_sync=2)),
    "2m-2s-async": (NAMESERVER, *_brokers("ASYNC_MASTER", follower=True)),
    "2m-noslave": (NAMESERVER, *_brokers("ASYNC_MASTER", follower=False)),
    CONTROLLED: controlled(1, 0),
}
