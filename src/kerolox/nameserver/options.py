"""The name server's options, with RocketMQ's keys and defaults.

Keys of RocketMQ's ``namesrv.conf`` that are not here tune thread pools and buffers this server does not
have; they are read and reported as having no effect.
"""

from __future__ import annotations

import os.path
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from kerolox.access.server_options import ServerOptions
from kerolox.net.self_signed import NAME as SELF_SIGNED
from kerolox.options import Absent, option

_HOME = os.path.join(os.path.expanduser("~"), "namesrv")

_OFF = ("", "false")
_ACCESS = "plain_acl.yml is for brokers alone; this server has authenticationEnabled and authorizationEnabled"
# Settings that ask for what this name server does not have: refused, for an operator who sets them relies on
# them.
_ABSENT: Mapping[str, Absent] = {
    "aclEnable": Absent(_OFF, _ACCESS),
    "clusterTest": Absent(_OFF, "routes of another environment (productEnvName) are not looked up"),
}


@dataclass
class NamesrvOptions(ServerOptions):
    """Options of ``kerolox nameserver``."""

    ROLE: ClassVar[str] = "nameserver"
    ABSENT: ClassVar[Mapping[str, Absent]] = _ABSENT
    ALWAYS_BLACK_LISTED: ClassVar[frozenset[str]] = ServerOptions.ALWAYS_BLACK_LISTED | {
        "configStorePath",
        "kvConfigPath",
    }

    # --- where it listens
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

    @property
    def self_signed_path(self) -> str:
        return os.path.join(os.path.dirname(self.kv_config_path), SELF_SIGNED)
