"""What tools may ask for and this broker does not do: answered with the reason, and what to do instead."""

from __future__ import annotations

from kerolox.broker.topic_admin import Row
from kerolox.net.requests import Answer, Handler, Request
from kerolox.protocol.codes import RequestCode, ResponseCode

_COLD = (
    "this broker does not throttle groups that read cold messages; it can disable those that fall too far "
    "behind: disableConsumeIfConsumerReadSlowly=true"
)
_ROCKSDB = "queues and settings are files in this broker's store, not in RocksDB"
_CONTAINER = "this is one broker, not a container of several: start another with kerolox broker"

REASONS = {
    RequestCode.UPDATE_AND_CREATE_STATIC_TOPIC: (
        "static topics, whose queues move between brokers, are not supported. Create an ordinary topic: "
        "kerolox topic create, or mqadmin updateTopic"
    ),
    RequestCode.UPDATE_COLD_DATA_FLOW_CTR_CONFIG: _COLD,
    RequestCode.REMOVE_COLD_DATA_FLOW_CTR_CONFIG: _COLD,
    RequestCode.GET_COLD_DATA_FLOW_CTR_INFO: _COLD,
    RequestCode.SET_COMMITLOG_READ_MODE: "the operating system is not told how the log will be read",
    RequestCode.CHECK_ROCKSDB_CQ_WRITE_PROGRESS: _ROCKSDB,
    RequestCode.EXPORT_ROCKSDB_CONFIG_TO_JSON: _ROCKSDB,
    RequestCode.ADD_BROKER: _CONTAINER,
    RequestCode.REMOVE_BROKER: _CONTAINER,
}


def rows() -> list[Row]:
    return [(code, _refuse(code, why), None) for code, why in REASONS.items()]


def _refuse(code: RequestCode, why: str) -> Handler:
    answer = Answer(
        code=ResponseCode.REQUEST_CODE_NOT_SUPPORTED,
        remark=f" request type {code.value} ({code.name}) not supported: {why}",
    )

    def refuse(request: Request[None]) -> Answer:
        return answer

    return refuse
