"""The controller's options, with RocketMQ's keys and defaults.

They may stand in a file of their own, or in that of a name server that has a controller in it. Keys of
RocketMQ's ``controller.conf`` that are not here tune thread pools and logs this controller does not have;
they are read and reported as having no effect.
"""

from __future__ import annotations

import enum
import os.path
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from kerolox.access.server_options import ServerOptions
from kerolox.controller.etcd_access import EtcdAccess, read_endpoints
from kerolox.errors import OptionError
from kerolox.metric_text import MetricsExporter
from kerolox.net.self_signed import NAME as SELF_SIGNED
from kerolox.options import Absent, option

_HOME = os.path.join(os.path.expanduser("~"), "controller")

_OFF = ("", "false")
_ACCESS = "plain_acl.yml is for brokers alone; this server has authenticationEnabled and authorizationEnabled"
_ABSENT: Mapping[str, Absent] = {
    "aclEnable": Absent(_OFF, _ACCESS),
    "controllerType": Absent(
        ("", "DLedger"),
        "there is no raft log of jRaft's: one controller keeps its state in a file, several in etcd",
    ),
}


class CarrierKind(enum.Enum):
    """Where the state of controllers lives."""

    EMBEDDED = "embedded"
    ETCD = "etcd"


class ControllerPeer(NamedTuple):
    """One controller of a group."""

    id: str
    host: str
    port: int

    @property
    def address(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


@dataclass
class ControllerOptions(ServerOptions):
    """Options of ``kerolox controller``."""

    ROLE: ClassVar[str] = "controller"
    ABSENT: ClassVar[Mapping[str, Absent]] = _ABSENT
    ALWAYS_BLACK_LISTED: ClassVar[frozenset[str]] = ServerOptions.ALWAYS_BLACK_LISTED | {"configStorePath"}

    # --- where it listens
    listen_port: int = option(
        9878,
        "port to listen on, unless controllerDLegerPeers says one; 0 takes a free one",
        key="controllerListenPort",
        low=0,
        high=65535,
    )
    group: str = option("group1", "name of the controllers, for tools", key="controllerDLegerGroup")
    peers: str = option(
        "",
        "this controller as id-host:port, as in n0-10.0.0.5:9878: brokers are told that address; with etcd, "
        "all of them, joined by semicolons",
        key="controllerDLegerPeers",
    )
    self_id: str = option("n0", "which of the peers this one is", key="controllerDLegerSelfId")
    server_channel_max_idle_time_seconds: int = option(
        120, "a connection without traffic for so long is closed, and its broker gone", low=1, high=86_400
    )

    # --- where its state lives
    carrier: CarrierKind = option(
        CarrierKind.EMBEDDED,
        "embedded: one controller, a file of its own; etcd: several, which share it through an etcd cluster",
        key="controllerCarrier",
    )
    etcd_endpoints: str = option(
        "", "etcd's members, joined by commas, as in http://10.0.0.1:2379,http://10.0.0.2:2379"
    )
    etcd_prefix: str = option("/kerolox", "its keys in etcd begin so, then the name of the controllers")
    etcd_lease_seconds: int = option(
        5, "a controller that etcd has not heard for so long leads no more", low=2, high=60
    )
    etcd_user: str | None = option(None, "user of etcd")
    etcd_password: str | None = option(None, "its password", secret=True)
    etcd_trust_cert_path: str | None = option(
        None, "PEM file with the authorities of etcd's certificates; unset: the system's"
    )
    etcd_cert_path: str | None = option(None, "PEM file with the certificate shown to etcd")
    etcd_key_path: str | None = option(None, "PEM file with its private key")
    store_path: str = option(
        _HOME, "directory of its state; written at each change", key="controllerStorePath"
    )
    config_store_path: str = option(
        os.path.join(_HOME, "controller.properties"),
        "file that options changed while running are written to; the file given with -c, if one is",
    )

    # --- elections
    enable_elect_unclean_master: bool = option(
        False,
        "elect a broker that is not in sync when no other is left: what only others had is lost",
        changeable=True,
    )
    scan_not_active_broker_interval: int = option(
        5000,
        "milliseconds between two looks for brokers that have gone quiet",
        low=10,
        high=3_600_000,
        changeable=True,
    )
    scan_inactive_master_interval: int = option(
        5000,
        "milliseconds between two looks for groups whose master is gone",
        low=10,
        high=3_600_000,
        changeable=True,
    )
    notify_broker_role_changed: bool = option(
        True, "tell brokers at once who is elected; else they ask, every few seconds", changeable=True
    )
    config_black_list: str = option(
        "configBlackList;configStorePath", "keys, joined by semicolons, that no request may change"
    )

    # --- metrics
    metrics_exporter: MetricsExporter = option(
        MetricsExporter.DISABLE,
        "PROM: metrics for Prometheus at /metrics, and /healthz",
        key="metricsExporterType",
    )
    metrics_port: int = option(
        5557, "their port; 0 takes a free one", key="metricsPromExporterPort", low=0, high=65535
    )
    metrics_host: str = option(
        "", "where they are read; unset: 127.0.0.1; 0.0.0.0: every address", key="metricsPromExporterHost"
    )
    metrics_labels: str = option("", "labels of all of them, as in instance:a,zone:b", key="metricsLabel")

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
                    "controllerDLegerPeers", self.peers, "id-host:port, each id once, joined by semicolons"
                )
            found[id] = ControllerPeer(id, host.strip("[]"), int(port))
        if len(found) > 1 and self.carrier is CarrierKind.EMBEDDED:
            raise OptionError(
                "controllerDLegerPeers",
                self.peers,
                "one controller: several share their state through etcd (controllerCarrier=etcd, "
                "etcdEndpoints=...)",
            )
        return tuple(found.values())

    @property
    def own_peer(self) -> ControllerPeer | None:
        """This controller, as ``controllerDLegerPeers`` has it. Raises OptionError."""
        peers = self.all_peers
        own = next((peer for peer in peers if peer.id == self.self_id), None)
        if peers and own is None:
            raise OptionError(
                "controllerDLegerPeers",
                self.peers,
                f"{self.self_id}-host:port, as controllerDLegerSelfId says",
            )
        return own

    @property
    def etcd(self) -> EtcdAccess:
        """Raises OptionError."""
        if "/" in self.group or not self.group:
            raise OptionError("controllerDLegerGroup", self.group, "a name without slashes: keys have it")
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
