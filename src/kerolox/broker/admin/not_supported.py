"""Requests of tools that this broker does not support. The answer has the reason and an alternative."""

from __future__ import annotations

from kerolox.broker import absent
from kerolox.front.requests import Row
from kerolox.protocol.codes import RequestCode

_COLD = (
    "this broker does not throttle groups that read cold messages; it can disable those that fall too far "
    "behind: disableConsumeIfConsumerReadSlowly=true"
)
_ROCKSDB = absent.ROCKSDB
_CONTAINER = "this is a single broker, not a broker container: start another one with kerolox broker"

REASONS = {
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: (
        "static topics, whose queues move between brokers, are not supported. Create an ordinary topic: "
        "kerolox topic create, or mqadmin updateTopic"
    ),
    RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: _COLD,
    RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: _COLD,
    RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: _COLD,
    RequestCode.SET_COMMITLOG_READ_MODE: "the operating system gets no advice on how the log is read",
    RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: _ROCKSDB,
    RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON: _ROCKSDB,
    RequestCode.SWITCH_TIMER_ENGINE: _ROCKSDB,
    RequestCode.ADD_BROKER: _CONTAINER,
    RequestCode.REMOVE_BROKER: _CONTAINER,
    RequestCode.GET_BROKER_EPOCH_CACHE: (
        "no controller elects the leaders of this broker's log, so it has no epochs (enableControllerMode)"
    ),
    **{code: absent.LITE for code in RequestCode if "LITE" in code.name and code.value > 200_000},
    **dict.fromkeys(
        (
            RequestCode.QUERY_ASSIGNMENT,
            RequestCode.POP_MESSAGE,
            RequestCode.ACK_MESSAGE,
            RequestCode.BATCH_ACK_MESSAGE,
            RequestCode.CHANGE_MESSAGE_INVISIBLETIME,
            RequestCode.PEEK_MESSAGE,
            RequestCode.NOTIFICATION,
            RequestCode.POLLING_INFO,
            RequestCode.POP_ROLLBACK,
        ),
        absent.POP,
    ),
    RequestCode.GET_PARENT_TOPIC_INFO: absent.LITE,
}


def rows() -> list[Row]:
    return [(code, absent.refusing(code, why), None) for code, why in REASONS.items()]
