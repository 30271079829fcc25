"""The header of the answer to each request; None: it has none."""

from __future__ import annotations

from typing import Final

from kerolox.protocol.codes import RequestCode
from kerolox.protocol.header import Header
from kerolox.protocol.headers import (
    admin,
    auth,
    controller,
    group,
    heartbeat,
    kv,
    offset,
    pop,
    pull,
    query,
    registration,
    replication,
    send,
    topic,
)

_C = RequestCode

ANSWER_HEADERS: Final[dict[int, type[Header] | None]] = dict.fromkeys(map(int, RequestCode)) | {
    _C.GET_KV_CONFIG: kv.GetKvAnswer,
    _C.REGISTER_BROKER: registration.RegisterBrokerAnswer,
    _C.QUERY_DATA_VERSION: registration.DataVersionAnswer,
    _C.WIPE_WRITE_PERM_OF_BROKER: registration.WipeWritePermAnswer,
    _C.ADD_WRITE_PERM_OF_BROKER: registration.AddWritePermAnswer,
    _C.SEND_MESSAGE: send.SendAnswer,
    _C.SEND_MESSAGE_V2: send.SendAnswer,
    _C.SEND_BATCH_MESSAGE: send.SendAnswer,
    _C.SEND_REPLY_MESSAGE: send.SendAnswer,
    _C.SEND_REPLY_MESSAGE_V2: send.SendAnswer,
    _C.RECALL_MESSAGE: send.RecallAnswer,
    _C.PULL_MESSAGE: pull.PullAnswer,
    _C.LITE_PULL_MESSAGE: pull.PullAnswer,
    _C.QUERY_MESSAGE: query.QueryMessageAnswer,
    _C.POP_MESSAGE: pop.PopAnswer,
    _C.PEEK_MESSAGE: pop.PopAnswer,
    _C.CHANGE_MESSAGE_INVISIBLETIME: pop.ChangeInvisibleTimeAnswer,
    _C.NOTIFICATION: pop.NotificationAnswer,
    _C.POLLING_INFO: pop.PollingInfoAnswer,
    _C.QUERY_CONSUMER_OFFSET: offset.OffsetAnswer,
    _C.SEARCH_OFFSET_BY_TIMESTAMP: offset.OffsetAnswer,
    _C.GET_MAX_OFFSET: offset.OffsetAnswer,
    _C.GET_MIN_OFFSET: offset.OffsetAnswer,
    _C.GET_EARLIEST_MSG_STORETIME: offset.EarliestStoreTimeAnswer,
    _C.HEART_BEAT: heartbeat.HeartbeatAnswer,
    _C.GET_ALL_TOPIC_CONFIG: topic.AllTopicConfigAnswer,
    _C.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: group.AllGroupConfigAnswer,
    _C.GET_BROKER_CONFIG: admin.BrokerConfigAnswer,
    _C.GET_BROKER_CLUSTER_ACL_INFO: auth.AccountFilesAnswer,
    _C.EXCHANGE_BROKER_HA_INFO: replication.HaInfo,
    _C.CONTROLLER_ALTER_SYNC_STATE_SET: controller.AlterSyncStateSetAnswer,
    _C.CONTROLLER_ELECT_MASTER: controller.ElectMasterAnswer,
    _C.CONTROLLER_REGISTER_BROKER: controller.RegisterToControllerAnswer,
    _C.CONTROLLER_GET_REPLICA_INFO: controller.ReplicaInfoAnswer,
    _C.CONTROLLER_GET_METADATA_INFO: controller.ControllerMetadataAnswer,
    _C.CONTROLLER_GET_NEXT_BROKER_ID: controller.NextBrokerIdAnswer,
    _C.CONTROLLER_APPLY_BROKER_ID: controller.ApplyBrokerIdAnswer,
}
