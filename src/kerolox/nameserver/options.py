"""Options of the name server, with RocketMQ's keys and defaults.

Keys of RocketMQ's ``namesrv.conf`` that are missing here tune thread pools and buffers that this server does
not have; they are accepted and reported as having no effect.
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
_ACCESS = "only brokers use plain_acl.yml; name servers have authenticationEnabled and authorizationEnabled"
# Settings for features that this name server lacks. They are rejected, because an operator who sets them
# relies on them.
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

    # --- listening
    listen_port: int = option(9876, "Listen port. Port 0 picks a free port.", low=0, high=65535)
    server_channel_max_idle_time_seconds: int = option(
        120,
        "Seconds without traffic after which a connection is closed and its broker is unregistered.",
        low=1,
        high=86_400,
    )

    # --- controller in the same process
    enable_controller_in_namesrv: bool = option(
        False, "Run a controller in the same process. Its settings are read from the same file."
    )

    # --- files
    kv_config_path: str = option(
        os.path.join(_HOME, "kvConfig.json"),
        "File of the key-value configuration, which is written at each change.",
    )
    config_store_path: str = option(
        os.path.join(_HOME, "namesrv.properties"),
        "File that receives options changed at run time. With -c it is the file given there.",
    )

    # --- routes
    order_message_enable: bool = option(
        False, "Include the order configuration of a topic in its route.", changeable=True
    )
    return_order_topic_config_to_broker: bool = option(
        True, "Send the list of ordered topics to registering brokers.", changeable=True
    )
    support_acting_master: bool = option(
        False, "Show the lowest slave as master of a group that has lost its master.", changeable=True
    )
    delete_topic_with_broker_registration: bool = option(
        False,
        "Remove topics that a registration does not name. Requires brokers that register topics singly.",
        changeable=True,
    )
    notify_min_broker_id_changed: bool = option(
        False, "Notify the brokers of a group when its lowest id changes.", changeable=True
    )
    scan_not_active_broker_interval: int = option(
        5000,
        "Interval of checks for brokers without heartbeats, milliseconds.",
        low=10,
        high=3_600_000,
        changeable=True,
    )

    # --- answers
    need_wait_for_service: bool = option(
        False, "Answer no routes after the start until brokers had time to register.", changeable=True
    )
    wait_seconds_for_service: int = option(
        45, "Seconds of needWaitForService.", low=0, high=3600, changeable=True
    )
    enable_all_topic_list: bool = option(True, "Answer requests for the list of all topics.", changeable=True)
    enable_topic_list: bool = option(
        True, "Answer requests for the topics of a cluster or unit.", changeable=True
    )
    config_black_list: str = option(
        "configBlackList;configStorePath;kvConfigPath",
        "Option keys, separated by semicolons, that no request may change.",
    )

    @property
    def self_signed_path(self) -> str:
        return os.path.join(os.path.dirname(self.kv_config_path), SELF_SIGNED)
