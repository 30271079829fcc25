"""Options of the controller, with RocketMQ's keys and defaults.

They may stand in a file of their own or in that of a name server that contains a controller. Keys of
RocketMQ's ``controller.conf`` that are missing here tune thread pools and logs that this controller does not
have; they are accepted and reported as having no effect.
"""

from __future__ import annotations

import enum
import os.path
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from kerolox.access.metrics_server import MetricsOptions
from kerolox.controller.etcd_access import EtcdAccess, read_endpoints
from kerolox.errors import OptionError
from kerolox.net.self_signed import NAME as SELF_SIGNED
from kerolox.options import Absent, option

_HOME = os.path.join(os.path.expanduser("~"), "controller")

_OFF = ("", "false")
_ACCESS = "only brokers use plain_acl.yml; controllers have authenticationEnabled and authorizationEnabled"
_ABSENT: Mapping[str, Absent] = {
    "aclEnable": Absent(_OFF, _ACCESS),
    "controllerType": Absent(
        ("", "DLedger"),
        "jRaft is not supported: one controller keeps its state in a file, several use etcd",
    ),
}


class CarrierKind(enum.Enum):
    """Storage of the controllers' state."""

    EMBEDDED = "embedded"
    ETCD = "etcd"


class ControllerPeer(NamedTuple):
    """One controller of a group of controllers."""

    id: str
    host: str
    port: int

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass
class ControllerOptions(MetricsOptions):
    """Options of ``kerolox controller``."""

    ROLE: ClassVar[str] = "controller"
    ABSENT: ClassVar[Mapping[str, Absent]] = _ABSENT
    ALWAYS_BLACK_LISTED: ClassVar[frozenset[str]] = MetricsOptions.ALWAYS_BLACK_LISTED | {"configStorePath"}

    # --- listening
    listen_port: int = option(
        9878,
        "Listen port, unless controllerDLegerPeers names one. Port 0 picks a free port.",
        key="controllerListenPort",
        low=0,
        high=65535,
    )
    group: str = option("group1", "Name of the group of controllers.", key="controllerDLegerGroup")
    peers: str = option(
        "",
        "This controller as id-host:port, as in n0-10.0.0.5:9878, with the address advertised to brokers. "
        "With etcd: all controllers, separated by semicolons.",
        key="controllerDLegerPeers",
    )
    self_id: str = option(
        "n0", "Id of this controller in controllerDLegerPeers.", key="controllerDLegerSelfId"
    )
    server_channel_max_idle_time_seconds: int = option(
        120,
        "Seconds without traffic after which a connection is closed and its broker counts as gone.",
        low=1,
        high=86_400,
    )

    # --- state
    carrier: CarrierKind = option(
        CarrierKind.EMBEDDED,
        "Storage of the state. embedded: a file, for one controller; etcd: shared by several controllers.",
        key="controllerCarrier",
    )
    etcd_endpoints: str = option(
        "", "etcd's members, separated by commas, as in http://10.0.0.1:2379,http://10.0.0.2:2379."
    )
    etcd_prefix: str = option(
        "/kerolox", "Prefix of the keys in etcd, before the name of the group of controllers."
    )
    etcd_lease_seconds: int = option(
        5,
        "Lease of the leading controller, seconds. Without renewal its leadership ends after this time.",
        low=2,
        high=60,
    )
    etcd_user: str | None = option(None, "User name at etcd.")
    etcd_password: str | None = option(None, "Password of etcdUser.", secret=True)
    etcd_trust_cert_path: str | None = option(
        None, "PEM file of the authorities that sign etcd's certificates. Default: the system's."
    )
    etcd_cert_path: str | None = option(None, "PEM file of the client certificate for etcd.")
    etcd_key_path: str | None = option(None, "PEM file of the private key of etcdCertPath.")
    store_path: str = option(
        _HOME, "Directory of the state, which is written at each change.", key="controllerStorePath"
    )
    config_store_path: str = option(
        os.path.join(_HOME, "controller.properties"),
        "File that receives options changed at run time. With -c it is the file given there.",
    )

    # --- elections
    enable_elect_unclean_master: bool = option(
        False,
        "Elect a broker that is not in sync if no other is left. Messages that only other brokers have are "
        "lost.",
        changeable=True,
    )
    scan_not_active_broker_interval: int = option(
        5000,
        "Interval of checks for brokers without heartbeats, milliseconds.",
        low=10,
        high=3_600_000,
        changeable=True,
    )
    scan_inactive_master_interval: int = option(
        5000,
        "Interval of checks for groups without a living master, milliseconds.",
        low=10,
        high=3_600_000,
        changeable=True,
    )
    notify_broker_role_changed: bool = option(
        True, "Notify brokers of an election at once. If false, they poll every few seconds.", changeable=True
    )
    config_black_list: str = option(
        "configBlackList;configStorePath", "Option keys, separated by semicolons, that no request may change."
    )

    @property
    def all_peers(self) -> tuple[ControllerPeer, ...]:
        """The controllers of ``controllerDLegerPeers``. Raises OptionError."""
        found: dict[str, ControllerPeer] = {}
        for entry in self.peers.split(";"):
            if not entry.strip():
                continue
            id, _, address = entry.strip().partition("-")
            host, _, port = address.rpartition(":")
            is_port = port.isascii() and port.isdigit() and 0 < int(port) < 65536
            if not id or id in found or not host or not is_port:
                raise OptionError(
                    "controllerDLegerPeers", self.peers, "id-host:port, each id once, separated by semicolons"
                )
            found[id] = ControllerPeer(id, host.strip("[]"), int(port))
        if len(found) > 1 and self.carrier is CarrierKind.EMBEDDED:
            raise OptionError(
                "controllerDLegerPeers",
                self.peers,
                "one controller. Several need a shared state in etcd (controllerCarrier=etcd, "
                "etcdEndpoints=...)",
            )
        return tuple(found.values())

    @property
    def own_peer(self) -> ControllerPeer | None:
        """The entry of this controller in ``controllerDLegerPeers``. Raises OptionError."""
        peers = self.all_peers
        own = next((peer for peer in peers if peer.id == self.self_id), None)
        if peers and own is None:
            raise OptionError(
                "controllerDLegerPeers",
                self.peers,
                f"{self.self_id}-host:port among them, because controllerDLegerSelfId names it",
            )
        return own

    @property
    def etcd(self) -> EtcdAccess:
        """The addresses and credentials of etcd. Raises OptionError."""
        if "/" in self.group or not self.group:
            raise OptionError(
                "controllerDLegerGroup",
                self.group,
                "a name without slashes, because it is part of etcd's keys",
            )
        if not self.etcd_prefix.startswith("/"):
            raise OptionError("etcdPrefix", self.etcd_prefix, "a text that begins with a slash")
        if (self.etcd_cert_path is None) != (self.etcd_key_path is None):
            raise OptionError("etcdCertPath", self.etcd_cert_path, "etcdCertPath and etcdKeyPath, or neither")
        return EtcdAccess(
            read_endpoints(self.etcd_endpoints),
            ca=self.etcd_trust_cert_path,
            certificate=self.etcd_cert_path,
            key=self.etcd_key_path,
            user=self.etcd_user or None,
            password=self.etcd_password,
        )

    @property
    def self_signed_path(self) -> str:
        return os.path.join(self.store_path, SELF_SIGNED)
