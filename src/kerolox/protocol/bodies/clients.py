"""Connected clients, and what they tell about themselves."""

from __future__ import annotations

from kerolox.protocol.bodies.body import Body, MessageQueue, WireEnum
from kerolox.protocol.bodies.heartbeat import ConsumeFromWhere, ConsumeType, MessageModel, SubscriptionData
from kerolox.protocol.header import wire


class Connection(Body, frozen=True, kw_only=True):
    """One connection of a group. The language is its name."""

    client_addr: str | None = None
    client_id: str | None = None
    language: str | None = None
    version: int = 0


class ConsumerConnection(Body, frozen=True, kw_only=True):
    """Answer to GET_CONSUMER_CONNECTION_LIST."""

    connection_set: tuple[Connection, ...] = ()
    consume_from_where: ConsumeFromWhere | None = None
    consume_type: ConsumeType | None = None
    message_model: MessageModel | None = None
    subscription_table: dict[str, SubscriptionData] = {}


class ProducerConnection(Body, frozen=True, kw_only=True):
    """Answer to GET_PRODUCER_CONNECTION_LIST."""

    connection_set: tuple[Connection, ...] = ()


class ProducerInfo(Body, frozen=True, kw_only=True, rename=wire(remote_ip="remoteIP")):
    """One connection of a producer group."""

    client_id: str | None = None
    language: str | None = None
    last_update_timestamp: int = 0
    remote_ip: str | None = None
    version: int = 0


class ProducerTable(Body, frozen=True, kw_only=True):
    """Answer to GET_ALL_PRODUCER_INFO: group → connections."""

    data: dict[str, tuple[ProducerInfo, ...]] = {}


class ProcessQueueInfo(
    Body,
    frozen=True,
    kw_only=True,
    rename=wire(cached_msg_size_in_mib="cachedMsgSizeInMiB", dropped="droped"),
):
    """A queue as the consumer that has it sees it."""

    cached_msg_count: int = 0
    cached_msg_max_offset: int = 0
    cached_msg_min_offset: int = 0
    cached_msg_size_in_mib: int = 0
    commit_offset: int = 0
    dropped: bool = False
    last_consume_timestamp: int = 0
    last_lock_timestamp: int = 0
    last_pull_timestamp: int = 0
    locked: bool = False
    transaction_msg_count: int = 0
    transaction_msg_max_offset: int = 0
    transaction_msg_min_offset: int = 0
    try_unlock_times: int = 0


class PopProcessQueueInfo(Body, frozen=True, kw_only=True, rename=wire(dropped="droped")):
    """A queue that is popped from, as the consumer that has it sees it."""

    dropped: bool = False
    last_pop_timestamp: int = 0
    wait_ack_count: int = 0


class ConsumeStatus(
    Body,
    frozen=True,
    kw_only=True,
    rename=wire(
        consume_failed_tps="consumeFailedTPS",
        consume_ok_tps="consumeOKTPS",
        consume_rt="consumeRT",
        pull_rt="pullRT",
        pull_tps="pullTPS",
    ),
):
    """A consumer's rates and times for one topic."""

    consume_failed_msgs: int = 0
    consume_failed_tps: float = 0.0
    consume_ok_tps: float = 0.0
    consume_rt: float = 0.0
    pull_rt: float = 0.0
    pull_tps: float = 0.0


class ConsumerRunningInfo(Body, frozen=True, kw_only=True):
    """Answer to GET_CONSUMER_RUNNING_INFO."""

    jstack: str | None = None
    mq_pop_table: dict[MessageQueue, PopProcessQueueInfo] = {}
    mq_table: dict[MessageQueue, ProcessQueueInfo] = {}
    properties: dict[str, str] = {}
    status_table: dict[str, ConsumeStatus] = {}
    subscription_set: tuple[SubscriptionData, ...] = ()
    user_consumer_info: dict[str, str] = {}


class ConsumeResult(WireEnum):
    """How consuming one message directly went."""

    CR_SUCCESS = "CR_SUCCESS"
    CR_LATER = "CR_LATER"
    CR_ROLLBACK = "CR_ROLLBACK"
    CR_COMMIT = "CR_COMMIT"
    CR_THROW_EXCEPTION = "CR_THROW_EXCEPTION"
    CR_RETURN_NULL = "CR_RETURN_NULL"


class ConsumeDirectlyResult(Body, frozen=True, kw_only=True):
    """Answer to CONSUME_MESSAGE_DIRECTLY."""

    auto_commit: bool = True
    consume_result: ConsumeResult | None = None
    order: bool = False
    remark: str | None = None
    spent_time_mills: int = 0
