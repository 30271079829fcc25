"""Figures: of queues, groups, topics, brokers."""

from __future__ import annotations

from kerolox.protocol.bodies.body import Body, MessageQueue
from kerolox.protocol.bodies.heartbeat import SubscriptionData
from kerolox.protocol.bodies.topics import DataVersion
from kerolox.protocol.header import Int64, wire


class ConsumeOffsets(Body, frozen=True, kw_only=True):
    """How far a group is in one queue."""

    broker_offset: int = 0
    consumer_offset: int = 0
    last_timestamp: int = 0
    pull_offset: int = 0


class ConsumeStats(Body, frozen=True, kw_only=True):
    """How far a group is."""

    consume_tps: float = 0.0
    offset_table: dict[MessageQueue, ConsumeOffsets] = {}


class ConsumeStatsList(Body, frozen=True, kw_only=True):
    """How far all groups of a broker are: one single-entry map per group."""

    broker_addr: str | None = None
    consume_stats_list: tuple[dict[str, tuple[ConsumeStats, ...]], ...] = ()
    total_diff: int = 0
    total_inflight_diff: int = 0


class QueueBounds(Body, frozen=True, kw_only=True):
    """From where to where a queue reaches."""

    last_update_timestamp: int = 0
    max_offset: int = 0
    min_offset: int = 0


class TopicStats(Body, frozen=True, kw_only=True):
    """The bounds of every queue of a topic."""

    offset_table: dict[MessageQueue, QueueBounds] = {}
    topic_put_tps: float = 0.0


class StatsItem(Body, frozen=True, kw_only=True):
    """A sum over a time, its rate, and the average of one."""

    avgpt: float = 0.0
    sum: int = 0
    tps: float = 0.0


class BrokerStats(Body, frozen=True, kw_only=True):
    """One figure over the last minute, hour and day."""

    stats_day: StatsItem | None = None
    stats_hour: StatsItem | None = None
    stats_minute: StatsItem | None = None


class QueueTimeSpan(Body, frozen=True, kw_only=True):
    """From when to when the messages of a queue were stored, and where the group is."""

    consume_time_stamp: int = 0
    delay_time: int = 0
    max_time_stamp: int = 0
    message_queue: MessageQueue | None = None
    min_time_stamp: int = 0


class ConsumeTimeSpans(Body, frozen=True, kw_only=True):
    """Answer to QUERY_CONSUME_TIME_SPAN."""

    consume_time_span_set: tuple[QueueTimeSpan, ...] = ()


class ConsumeQueueEntry(Body, frozen=True, kw_only=True):
    """One entry of a consume queue, and whether the group's filter takes it."""

    bit_map: str | None = None
    eval: bool = False
    extend_data_json: str | None = None
    msg: str | None = None
    physic_offset: int = 0
    physic_size: int = 0
    tags_code: int = 0


class ConsumeQueueView(Body, frozen=True, kw_only=True):
    """Answer to QUERY_CONSUME_QUEUE."""

    filter_data: str | None = None
    max_queue_index: int = 0
    min_queue_index: int = 0
    queue_data: tuple[ConsumeQueueEntry, ...] | None = None
    subscription_data: SubscriptionData | None = None


class HaConnection(Body, frozen=True, kw_only=True):
    """A slave as its master sees it. RocketMQ does not say how long it is behind, nor which one it is."""

    addr: str | None = None
    behind_ms: int | None = None
    broker_id: Int64 | None = None  # under a controller
    diff: int = 0
    in_sync: bool = False
    slave_ack_offset: int = 0
    transfer_from_where: int = 0
    transferred_byte_in_second: int = 0


class HaClient(Body, frozen=True, kw_only=True):
    """A slave as it sees itself. What begins with ``leader`` or ``link`` RocketMQ does not say."""

    last_read_timestamp: int = 0
    last_write_timestamp: int = 0
    leader_address: str | None = None  # of the broker; masterAddr is where its log is copied from
    leader_end: int | None = None  # where its log ended when it was heard of last
    leader_end_timestamp: int | None = None
    link_address: str | None = None  # as the master sees this slave
    link_state: str | None = None  # one word, and all that is known
    link_text: str | None = None
    master_addr: str | None = None
    master_flush_offset: int = 0
    max_offset: int = 0
    transferred_byte_in_second: int = 0


class TurnedAway(Body, frozen=True, kw_only=True):
    """A slave whose connections the master closed lately: the last of them, and how many."""

    addr: str = ""
    count: int = 0
    text: str = ""
    timestamp: int = 0
    why: str = ""


class ControlledStatus(Body, frozen=True, kw_only=True):
    """How a broker stands with its controller. RocketMQ does not say."""

    broker_id: Int64 = 0  # that the controller gave it
    confirmed_offset: int = 0
    controller: str = ""  # the one that leads
    in_sync_set: tuple[Int64, ...] | None = None  # of a master
    lease_ms: int | None = None  # of a master: so long it takes messages without another answer
    master_broker_id: Int64 = 0
    master_epoch: int = 0
    waits_for: str | None = None  # to have a role


class HaStatus(Body, frozen=True, kw_only=True):
    """Answer to GET_BROKER_HA_STATUS."""

    controlled: ControlledStatus | None = None  # RocketMQ does not say
    ha_client_runtime_info: HaClient = HaClient()
    ha_connection_info: tuple[HaConnection, ...] = ()
    in_sync_slave_nums: int = 0
    leads_since: int | None = None  # RocketMQ does not say
    master: bool = False
    master_commit_log_max_offset: int = 0
    turned_away: tuple[TurnedAway, ...] | None = None  # RocketMQ does not say


class TimerMetric(Body, frozen=True, kw_only=True, rename=wire(timestamp="timeStamp")):
    """How many timer messages of a topic wait."""

    count: int = 0
    timestamp: int = 0


class TimerMetrics(Body, frozen=True, kw_only=True):
    """Answer to GET_TIMER_METRICS: topic → waiting."""

    data_version: DataVersion = DataVersion()
    timing_count: dict[str, TimerMetric] = {}
