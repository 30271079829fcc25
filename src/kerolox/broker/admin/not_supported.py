"""Requests of tools that this broker does not support. The answer has the reason and an alternative."""

from __future__ import annotations

from kerolox.access.needs.administration import CREATE_TOPIC
from kerolox.access.needs.kinds import CHANGES, LOOKS
from kerolox.broker import absent
from kerolox.front.rows import rejected
from kerolox.protocol.codes import RequestCode

_COLD = (
    "this broker does not throttle groups that read cold messages; it can disable those that fall too far "
    "behind: disableConsumeIfConsumerReadSlowly=true"
)
_CONTAINER = "this is a single broker, not a broker container: start another one with kerolox broker"

# Rejected by brokers that do not serve these codes.
ROWS = [
    rejected(
        RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC,
        CREATE_TOPIC,
        "static topics, whose queues move between brokers, are not supported. Create an ordinary topic: "
        "kerolox topic create, or mqadmin updateTopic",
    ),
    rejected(RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG, CHANGES, _COLD),
    rejected(RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG, CHANGES, _COLD),
    rejected(RequestCode.GET_COLD_DATA_FLOW_CTR_INFO, LOOKS, _COLD),
    rejected(
        RequestCode.SET_COMMITLOG_READ_MODE,
        CHANGES,
        "the operating system gets no advice on how the log is read",
    ),
    rejected(RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS, LOOKS, absent.ROCKSDB),
    rejected(RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON, LOOKS, absent.ROCKSDB),
    rejected(RequestCode.SWITCH_TIMER_ENGINE, CHANGES, absent.ROCKSDB),
    rejected(RequestCode.ADD_BROKER, CHANGES, _CONTAINER),
    rejected(RequestCode.REMOVE_BROKER, CHANGES, _CONTAINER),
    rejected(
        RequestCode.GET_BROKER_EPOCH_CACHE,
        LOOKS,
        "no controller elects the leaders of this broker's log, so it has no epochs (enableControllerMode)",
    ),
    # Only users with rights to the cluster receive the answer about lite topics.
    rejected(RequestCode.POP_LITE_MESSAGE, LOOKS, absent.LITE),
    rejected(RequestCode.LITE_SUBSCRIPTION_CTL, LOOKS, absent.LITE),
    rejected(RequestCode.ACK_LITE_MESSAGE, LOOKS, absent.LITE),
    rejected(RequestCode.NOTIFY_UNSUBSCRIBE_LITE, LOOKS, absent.LITE),
    rejected(RequestCode.GET_BROKER_LITE_INFO, LOOKS, absent.LITE),
    rejected(RequestCode.GET_PARENT_TOPIC_INFO, LOOKS, absent.LITE),
    rejected(RequestCode.GET_LITE_TOPIC_INFO, LOOKS, absent.LITE),
    rejected(RequestCode.GET_LITE_CLIENT_INFO, LOOKS, absent.LITE),
    rejected(RequestCode.GET_LITE_GROUP_INFO, LOOKS, absent.LITE),
    rejected(RequestCode.TRIGGER_LITE_DISPATCH, CHANGES, absent.LITE),
    rejected(RequestCode.POP_ROLLBACK, CHANGES, absent.ROCKSDB),
]
