"""Needs of requests to a controller. RocketMQ's controller checks none."""

from __future__ import annotations

from kerolox.access.needs.kinds import CHANGES, CHANGES_OPTIONS, LOOKS
from kerolox.access.rules import Rules
from kerolox.protocol.codes import RequestCode

CONTROLLER: Rules = {
    **dict.fromkeys(
        (
            RequestCode.CONTROLLER_ALTER_SYNC_STATE_SET,
            RequestCode.CONTROLLER_ELECT_MASTER,
            RequestCode.CONTROLLER_REGISTER_BROKER,
            RequestCode.CONTROLLER_APPLY_BROKER_ID,
            RequestCode.CLEAN_BROKER_DATA,
            RequestCode.BROKER_HEARTBEAT,
        ),
        CHANGES,
    ),
    RequestCode.UPDATE_CONTROLLER_CONFIG: CHANGES_OPTIONS,
    **dict.fromkeys(
        (
            RequestCode.CONTROLLER_GET_REPLICA_INFO,
            RequestCode.CONTROLLER_GET_METADATA_INFO,
            RequestCode.CONTROLLER_GET_SYNC_STATE_DATA,
            RequestCode.CONTROLLER_GET_NEXT_BROKER_ID,
            RequestCode.GET_CONTROLLER_CONFIG,
        ),
        LOOKS,
    ),
}
