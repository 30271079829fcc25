"""The name server's options, with RocketMQ's keys and defaults.

Keys of RocketMQ's ``namesrv.conf`` that are not here tune thread pools and buffers this server does not
have; they are read and reported as having no effect.
"""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from kerolox.access.options import AccessOptions
from kerolox.net.self_signed import NAME as SELF_SIGNED
from kerolox.net.tls import ClientAuth, ServerTls, TlsMode
from kerolox.options import Absent, option

_HOME = os.path.join(os.path.expanduser("~"), "namesrv")

# Never changed by a request, whatever configBlackList says.
ALWAYS_BLACK_LISTED = frozenset({"configBlackList", "configStorePath", "kvConfigPath", "rocketmqHome"})

_OFF = ("", "false")
_ACCESS = "plain_acl.yml is for brokers alone; this server has authenticationEnabled and authorizationEnabled"
# Settings that ask for what this name server does not have: refused, for an operator who sets them relies on
# them.
_ABSENT: Mapping[str, Absent] = {
    "aclEnable": Absent(_OFF, _ACCESS),
    "clusterTest": Absent(_OFF, "routes of another environment (productEnvName) are not looked up"),
    "tls.config.file": Absent(("",), "TLS settings are lines of this file: copy those of the other into it"),
}


@dataclass
class NamesrvOptions(AccessOptions):
    """Options of ``kerolox nameserver``."""

    ROLE: ClassVar[str] = "nameserver"
    ABSENT: ClassVar[Mapping[str, Absent]] = _ABSENT

    # --- where it listens
    bind_address: str = option("0.0.0.0", "address to listen on; a loopback address shuts others out")
    listen_port: int = option(9876, "port to listen on; 0 takes a free one", low=0, high=65535)
    server_channel_max_idle_time_seconds: int = option(
        120,
        "a connection without traffic for so long is closed, and its broker forgotten",
        low=1,
        high=86_400,
    )

    # --- what else runs in its process
    enable_controller_in_namesrv: bool = option(
        False, "run a controller beside it; the same file has the controller's settings"
    )

    # --- what it keeps on disk
    kv_config_path: str = option(
        os.path.join(_HOME, "kvConfig.json"), "file of the key-value configuration; written at each change"
    )
    config_store_path: str = option(
        os.path.join(_HOME, "namesrv.properties"),
        "file that options changed while running are written to; the file given with -c, if one is",
    )

    # --- routes
    order_message_enable: bool = option(
        False, "put the order configuration of a topic into its route", changeable=True
    )
    return_order_topic_config_to_broker: bool = option(
        True, "tell registering brokers which topics are ordered", changeable=True
    )
    support_acting_master: bool = option(
        False, "show the lowest slave as master of a group that has lost its own", changeable=True
    )
    delete_topic_with_broker_registration: bool = option(
        False,
        "a registration takes away the topics it does not name; needs brokers that register topics singly",
        changeable=True,
    )
    notify_min_broker_id_changed: bool = option(
        False, "tell the brokers of a group when its lowest id changes", changeable=True
    )
    scan_not_active_broker_interval: int = option(
        5000,
        "milliseconds between two looks for brokers that have gone quiet",
        low=10,
        high=3_600_000,
        changeable=True,
    )

    # --- what it answers
    need_wait_for_service: bool = option(
        False, "answer no route in the first seconds, until brokers have registered", changeable=True
    )
    wait_seconds_for_service: int = option(
        45, "how many seconds those are", low=0, high=3600, changeable=True
    )
    enable_all_topic_list: bool = option(True, "answer requests for the list of all topics", changeable=True)
    enable_topic_list: bool = option(
        True, "answer requests for the topics of a cluster or unit", changeable=True
    )
    config_black_list: str = option(
        "configBlackList;configStorePath;kvConfigPath",
        "keys, joined by semicolons, that no request may change",
    )

    # --- TLS
    tls_server_mode: TlsMode = option(
        TlsMode.PERMISSIVE,
        "disabled: plain only; permissive: both; enforcing: TLS only",
        key="tls.server.mode",
    )
    tls_test_mode_enable: bool = option(
        True,
        "without a certificate: make one when the first TLS client comes, kept beside kvConfigPath",
        key="tls.test.mode.enable",
    )
    tls_server_cert_path: str | None = option(
        None, "PEM file with the certificate chain", key="tls.server.certPath"
    )
    tls_server_key_path: str | None = option(None, "PEM file with the private key", key="tls.server.keyPath")
    tls_server_key_password: str | None = option(
        None, "password of the private key", key="tls.server.keyPassword", secret=True
    )
    tls_server_trust_cert_path: str | None = option(
        None, "PEM file with the authorities that sign client certificates", key="tls.server.trustCertPath"
    )
    tls_server_need_client_auth: ClientAuth = option(
        ClientAuth.NONE,
        "none; optional: who shows a certificate must show a good one; require: everybody must",
        key="tls.server.need.client.auth",
    )

    @property
    def tls(self) -> ServerTls:
        return ServerTls(
            mode=self.tls_server_mode,
            certificate=self.tls_server_cert_path,
            key=self.tls_server_key_path,
            key_password=self.tls_server_key_password,
            client_ca=self.tls_server_trust_cert_path,
            client_auth=self.tls_server_need_client_auth,
            self_signed=self._self_signed if self.tls_test_mode_enable else None,
        )

    @property
    def _self_signed(self) -> str:
        return os.path.join(os.path.dirname(self.kv_config_path), SELF_SIGNED)

    def black_listed(self, key: str) -> bool:
        return key in ALWAYS_BLACK_LISTED or key in self.config_black_list.split(";")
