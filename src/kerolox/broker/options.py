"""The broker's options, with RocketMQ's keys and defaults. Those of the store come first, inherited.

Keys of a ``broker.conf`` that are not here tune thread pools and buffers this broker does not have; they are
read and reported as having no effect. Keys that ask for features it does not have are refused (absent.py).
"""

from __future__ import annotations

import enum
import os
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from kerolox.access.metrics_server import MetricsOptions
from kerolox.access.plain.options import PlainAclOptions
from kerolox.broker import absent
from kerolox.errors import OptionError
from kerolox.net.self_signed import NAME as SELF_SIGNED
from kerolox.options import Absent, option
from kerolox.protocol.limits import INT32_MAX, INT64_MAX
from kerolox.replication.dledger.settings import GroupSettings, GroupUnusable, parse_peers
from kerolox.replication.entrance import Network, parse_networks
from kerolox.store.options import DAY_MS, HOUR_MS, StoreOptions


class DefaultMode(enum.Enum):
    PULL = "PULL"
    POP = "POP"


class BrokerRole(enum.Enum):
    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


@dataclass
class BrokerOptions(MetricsOptions, StoreOptions, PlainAclOptions):
    """Options of ``kerolox broker``."""

    ROLE: ClassVar[str] = "broker"
    ABSENT: ClassVar[Mapping[str, Absent]] = absent.SETTINGS
    ALWAYS_BLACK_LISTED: ClassVar[frozenset[str]] = MetricsOptions.ALWAYS_BLACK_LISTED | {"brokerConfigPath"}

    # --- identity and network ------------------------------------------------------------------------
    broker_name: str = option(
        socket.gethostname(), "Name of the broker. Brokers with the same name replicate one log."
    )
    cluster: str = option("DefaultCluster", "Name of the cluster.", key="brokerClusterName")
    broker_id: int = option(
        0, "Id of this follower (brokerRole=SLAVE), 1 or more; leaders have 0. Not used with "
        "enableControllerMode, where configuration files have -1.", low=-1, high=INT64_MAX, changeable=True,
    )  # fmt: skip
    role: BrokerRole = option(
        BrokerRole.ASYNC_MASTER, "Role: leader or follower.", key="brokerRole", changeable=True
    )
    listen_port: int = option(10911, "Port to listen on. Port 0 picks a free port.", low=0, high=65535)
    vip_port: int = option(-1, "Second port, which serves no pulls; -1: listenPort - 2.", low=-1, high=65535)
    ha_port: int = option(
        -1, "Port for followers; -1: listenPort + 1.", key="haListenPort", low=-1, high=65535
    )
    grpc_listen: str = option(
        "", "Listen address of the gRPC port for RocketMQ 5's clients, HOST:PORT. Port 0 picks a free port; "
        "empty: no such port. It accepts TLS and plaintext as the other ports do.", key="grpcListen",
    )  # fmt: skip
    grpc_advertised: str = option(
        "", "Address advertised to gRPC clients, HOST:PORT; empty: the address that each client uses.",
        key="grpcAdvertised",
    )  # fmt: skip
    ha_master_address: str = option(
        "", "Address of the leader that a follower copies from; empty: as the name servers report.",
        key="haMasterAddress",
    )  # fmt: skip
    ha_heartbeat_ms: int = option(
        5000, "Longest time between two messages from leader to follower, or back, in ms.",
        key="haSendHeartbeatInterval", low=1, high=600_000, changeable=True,
    )  # fmt: skip
    ha_silence_ms: int = option(
        20_000, "Close a replication connection after this time without a message, in ms. More than "
        "haSendHeartbeatInterval.", key="haHousekeepingInterval", low=10, high=3_600_000, changeable=True,
    )  # fmt: skip
    ha_batch_bytes: int = option(
        32_768, "Largest number of log bytes sent to a follower behind one header.",
        key="haTransferBatchSize", low=1, high=1 << 20, changeable=True,
    )  # fmt: skip
    ha_limited: bool = option(
        False, "Limit the replication rate to maxHaTransferByteInSecond.",
        key="haFlowControlEnable", changeable=True,
    )  # fmt: skip
    ha_bytes_per_s: int = option(
        100 << 20, "Largest number of log bytes sent to each follower per second. Used with "
        "haFlowControlEnable.", key="maxHaTransferByteInSecond", low=1, high=1 << 40, changeable=True,
    )  # fmt: skip
    ha_trusted: str = option(
        "", "Addresses and networks, joined by commas, whose brokers may copy the log or join the DLedger "
        "group without authentication while authenticationEnabled is set. For brokers of RocketMQ, which "
        "cannot authenticate.", key="haTrustedAddresses",
    )  # fmt: skip
    advertised_host: str = option("", "Address advertised to clients; empty: detected.", key="brokerIP1")
    advertised_ha_host: str = option(
        "", "Address advertised to followers; empty: brokerIP1.", key="brokerIP2"
    )
    nameservers: str = option(
        "", "Addresses of the name servers, joined by semicolons.",
        key="namesrvAddr", environment="NAMESRV_ADDR",
    )  # fmt: skip
    permission: int = option(
        6, "Permission of the broker: 4 readable, 2 writable, 6 both.",
        key="brokerPermission", low=0, high=7, changeable=True,
    )  # fmt: skip
    register_interval_ms: int = option(
        30_000, "Interval of registrations at the name servers, in ms.",
        key="registerNameServerPeriod", low=10_000, high=60_000,
    )  # fmt: skip
    register_timeout_ms: int = option(
        24_000, "Timeout of one registration, in ms.", key="registerBrokerTimeoutMills", low=1, high=600_000
    )
    idle_s_max: int = option(
        120, "Close a connection after this time without traffic, in s.",
        key="serverChannelMaxIdleTimeSeconds", low=1, high=86_400,
    )  # fmt: skip
    connections_for_each_address: int = option(
        0, "Connections that one source address may open on a port; 0: three quarters of the port's limit.",
        key="connectionsPerAddressMax", low=0, high=1_000_000,
    )  # fmt: skip
    member_timeout_ms: int = option(
        120_000, "Close the connection of a client after this time without a heartbeat, in ms.",
        key="channelExpiredTimeout", low=1, high=DAY_MS,
    )  # fmt: skip

    # --- topics, groups, features ----------------------------------------------------------------------
    auto_create_topics: bool = option(
        True, "Create a topic when the first message is sent to it.",
        key="autoCreateTopicEnable", changeable=True,
    )  # fmt: skip
    auto_create_groups: bool = option(
        True, "Create a consumer group when a consumer first uses it.",
        key="autoCreateSubscriptionGroup", changeable=True,
    )  # fmt: skip
    default_topic_queues: int = option(
        8, "Queues of the template topic TBW102, which limits the queues of automatically created topics.",
        key="defaultTopicQueueNums", low=1, high=1024, changeable=True,
    )  # fmt: skip
    topics_max: int = option(
        100_000, "Largest number of topics, including retry and dead-letter topics; further topics are "
        "rejected.", key="maxTopics", low=100, high=1_000_000, changeable=True,
    )  # fmt: skip
    groups_max: int = option(
        50_000, "Largest number of consumer groups; further groups are rejected.",
        key="maxGroups", low=100, high=1_000_000, changeable=True,
    )  # fmt: skip
    cluster_topic: bool = option(
        True, "Allow clients to use the topic named as the cluster.", key="clusterTopicEnable"
    )
    broker_topic: bool = option(
        True, "Allow clients to use the topic named as the broker.", key="brokerTopicEnable"
    )
    trace_topic: bool = option(False, "Create the topic of message traces.", key="traceTopicEnable")
    trace_topic_name: str = option(
        "RMQ_SYS_TRACE_TOPIC", "Name of the topic of message traces.", key="msgTraceTopicName"
    )
    trace_on: bool = option(True, "Ask clients to send message traces.", changeable=True)
    region: str = option("DefaultRegion", "Region reported to clients.", key="regionId")
    property_filter: bool = option(False, "Allow SQL92 filters.", key="enablePropertyFilter", changeable=True)
    filter_retries: bool = option(
        False, "Apply the group's filters to messages that are retried, too.",
        key="filterSupportRetry", changeable=True,
    )  # fmt: skip
    filter_keep_ms: int = option(
        86_400_000, "Time that the filter of a group is kept after the group has left, in ms.",
        key="filterDataCleanTimeSpan", low=0, high=366 * DAY_MS, changeable=True,
    )  # fmt: skip
    filter_bits: bool = option(
        False, "Store with each message the filters that match it. Needs enableConsumeQueueExt.",
        key="enableCalcFilterBitMap", changeable=True,
    )  # fmt: skip
    filter_users: int = option(
        32, "Expected number of groups with filters. Determines the size of the stored filter bits.",
        key="expectConsumerNumUseFilter", low=1, high=10_000,
    )  # fmt: skip
    filter_error_percent: int = option(
        20, "Accepted share of false matches of the stored filter bits, in percent.",
        key="maxErrorRateOfBloomFilter", low=1, high=99,
    )  # fmt: skip
    reject_transactions: bool = option(
        False, "Reject transactional messages.", key="rejectTransactionMessage", changeable=True
    )
    store_replies: bool = option(
        True, "Store replies in the log, in addition to delivering them to the client that asked.",
        key="storeReplyMessageEnable", changeable=True,
    )  # fmt: skip
    lite_pull: bool = option(True, "Allow lite pull.", key="litePullMessageEnable", changeable=True)
    notify_members: bool = option(
        True, "Notify the members of a group when it changes.",
        key="notifyConsumerIdsChangedEnable", changeable=True,
    )  # fmt: skip
    server_side_reset: bool = option(
        True, "Reset consumer offsets at the broker instead of through the clients.",
        key="useServerSideResetOffset", changeable=True,
    )  # fmt: skip
    slave_read: bool = option(
        False, "A leader sends consumers that are far behind to a follower; a follower serves pulls, also "
        "while it has no leader. Set it on both.", key="slaveReadEnable", changeable=True,
    )  # fmt: skip
    acting: bool = option(
        False, "While no leader is alive, the follower with the lowest id acts for it: it serves consumers "
        "and their locks as the leader would, and accepts no messages. Set it on all brokers of a name, "
        "and supportActingMaster=true on the name servers.", key="enableSlaveActingMaster",
    )  # fmt: skip
    remote_escape: bool = option(
        False, "A follower that acts for its leader sends due messages and open transactions to a broker "
        "of another name; otherwise they wait for the leader. Needs enableSlaveActingMaster.",
        key="enableRemoteEscape",
    )  # fmt: skip
    total_replicas: int = option(
        1, "Number of brokers of this name, including the leader. From 2 on, and with "
        "enableSlaveActingMaster, a starting leader waits for its followers before it serves clients.",
        key="totalReplicas", low=1, high=64,
    )  # fmt: skip
    skip_pre_online: bool = option(
        False, "A starting leader takes over the progress of its followers, but does not wait until they "
        "copy from it.", key="skipPreOnline",
    )  # fmt: skip
    strict_locks: bool = option(
        False, "Lock a queue for a consumer only when more than half of totalReplicas brokers grant it.",
        key="lockInStrictMode", changeable=True,
    )  # fmt: skip
    alive_ms: int = option(
        1000, "Interval of heartbeats to name servers (with enableSlaveActingMaster) or controllers (with "
        "enableControllerMode), in ms.", key="brokerHeartbeatInterval", low=10, high=60_000, changeable=True,
    )  # fmt: skip
    alive_timeout_ms: int = option(
        1000, "Timeout of one of these heartbeats, in ms.",
        key="sendHeartbeatTimeoutMillis", low=10, high=60_000, changeable=True,
    )  # fmt: skip
    not_alive_ms: int = option(
        10_000, "With enableSlaveActingMaster: time without a heartbeat after which name servers treat "
        "this broker as dead, in ms.", key="brokerNotActiveTimeoutMillis", low=100, high=HOUR_MS,
    )  # fmt: skip
    members_ms: int = option(
        1000, "Interval at which name servers are asked for the live brokers of this name, in ms.",
        key="syncBrokerMemberGroupPeriod", low=10, high=60_000, changeable=True,
    )  # fmt: skip
    old_nameservers: bool = option(
        True, "Support name servers of RocketMQ 4: brokers of a name are found by a route, and request 322 "
        "is their heartbeat.", key="compatibleWithOldNameSrv", changeable=True,
    )  # fmt: skip
    correct_while_following: bool = option(
        False, "A follower moves consumer offsets that are outside of its queues into them; otherwise "
        "these consumers keep their offsets and ask the leader.", key="offsetCheckInSlave", changeable=True,
    )  # fmt: skip

    # --- brokers under a controller ----------------------------------------------------------------------
    controlled: bool = option(
        False, "Let a controller elect the leader: when the leader fails, an in-sync replica takes over. "
        "brokerRole and brokerId are not used then.", key="enableControllerMode",
    )  # fmt: skip
    controllers: str = option("", "Addresses of the controllers, joined by semicolons.", key="controllerAddr")
    controllers_by_name: bool = option(
        False, "Look up controllerAddr, one host name with a port: each of its addresses is a controller.",
        key="fetchControllerAddrByDnsLookup",
    )  # fmt: skip
    who_leads_ms: int = option(
        5000, "Interval at which the controller is asked for the leader, in ms. The controller also "
        "notifies brokers of an election.",
        key="syncBrokerMetadataPeriod", low=100, high=600_000, changeable=True,
    )  # fmt: skip
    in_sync_check_ms: int = option(
        5000, "Interval at which a leader looks for replicas that have fallen behind, in ms.",
        key="checkSyncStateSetPeriod", low=100, high=600_000, changeable=True,
    )  # fmt: skip
    controllers_check_ms: int = option(
        10_000, "Interval at which the controllers are asked for their leader, in ms; also asked at once "
        "when the connection to it is lost.",
        key="syncControllerMetadataPeriod", low=100, high=600_000, changeable=True,
    )  # fmt: skip
    controller_silence_ms: int = option(
        10_000, "The controller replaces a leader after this time without a heartbeat, in ms; a leader "
        "accepts no messages after this time without an answer of the controller.",
        key="controllerHeartBeatTimeoutMills", low=1000, high=600_000,
    )  # fmt: skip
    controller_lease: bool = option(
        True, "A leader accepts no messages while no controller answers. false: it continues, as "
        "RocketMQ's brokers do, even if another leader was elected that it does not know of.",
        key="controllerLeaseEnable", changeable=True,
    )  # fmt: skip
    election_priority: int = option(
        INT32_MAX, "Of the brokers with equally long logs, the one with the lowest number is elected.",
        key="brokerElectionPriority", low=0, high=INT32_MAX,
    )  # fmt: skip
    all_ack: bool = option(
        True, "Acknowledge a message when every replica of the in-sync set has it. false, as in RocketMQ: "
        "when inSyncReplicas replicas have it; the next leader may lack acknowledged messages.",
        key="allAckInSyncStateSet", changeable=True,
    )  # fmt: skip
    ha_catch_up_ms: int = option(
        15_000, "A replica that has been behind for longer leaves the in-sync set, in ms.",
        key="haMaxTimeSlaveNotCatchup", low=100, high=HOUR_MS, changeable=True,
    )  # fmt: skip
    learner: bool = option(
        False, "Copy the log without joining the in-sync set: no message waits for this broker, and it is "
        "never elected.", key="asyncLearner",
    )  # fmt: skip
    from_last_file: bool = option(
        False, "A replica with an empty store copies only the leader's last log file, not the whole log.",
        key="syncFromLastFile",
    )  # fmt: skip
    epoch_path: str | None = option(
        None, "File of the epochs (which leader wrote which part of the log); unset: in the store.",
        key="storePathEpochFile",
    )  # fmt: skip
    identity_path: str | None = option(
        None, "File of the id that the controller assigned; unset: in the store.",
        key="storePathBrokerIdentity",
    )  # fmt: skip

    # --- brokers of a DLedger group: enableDLegerCommitLog and dLegerSelfId are the store's --------
    ledger_group: str = option("", "DLedger group of this broker; empty: brokerName.", key="dLegerGroup")
    ledger_peers: str = option(
        "", "Members of the DLedger group, equal on all members and never changed: "
        "n0-host:port;n1-host:port;n2-host:port.", key="dLegerPeers",
    )  # fmt: skip
    ledger_preferred: str = option(
        "", "Member that should lead when it can; several are joined by semicolons.", key="preferredLeaderId"
    )
    ledger_batch_push: bool = option(
        False, "Replicate many messages in one request, which costs less.", key="enableBatchPush"
    )

    accept_sends_from_ms: int = option(
        0, "Reject messages before this wall-clock time, in ms since 1970.",
        key="startAcceptSendRequestTimeStamp", low=0, high=1 << 53,
    )  # fmt: skip

    # --- POP -------------------------------------------------------------------------------------------
    revive_queues: int = option(8, "Queues of the POP revive topic.", key="reviveQueueNum", low=1, high=1024)
    retry_v2: bool = option(
        False, "Name retry topics of POP %RETRY%group+topic instead of %RETRY%group_topic.",
        key="enableRetryTopicV2", changeable=True,
    )  # fmt: skip
    read_retry_v1: bool = option(
        True, "With enableRetryTopicV2, half of the pops read the retry topic of the other form.",
        key="retrieveMessageFromPopRetryTopicV1", changeable=True,
    )  # fmt: skip
    pop_retry_percent: int = option(
        20, "Percentage of pops that read the retry topic first.",
        key="popFromRetryProbability", low=0, high=100, changeable=True,
    )  # fmt: skip
    actual_retry_topic: bool = option(
        False, "Return retry messages under the name of their retry topic.",
        key="popResponseReturnActualRetryTopic", changeable=True,
    )  # fmt: skip
    pop_from_memory: bool = option(
        True, "A new group that begins at the end gets all messages of a queue whose first one is in memory.",
        key="initPopOffsetByCheckMsgInMem", changeable=True,
    )  # fmt: skip
    pop_threshold: bool = option(
        False, "Limit the popped messages of a queue that a group has not acknowledged.",
        key="enablePopMessageThreshold", changeable=True,
    )  # fmt: skip
    pop_threshold_messages: int = option(
        10_000, "That limit.", key="popInflightMessageThreshold", low=0, high=INT32_MAX, changeable=True
    )
    pops_held_max: int = option(
        100_000, "Pops held at once.", key="maxPopPollingSize", low=0, high=INT32_MAX, changeable=True
    )
    pops_held_of_queue_max: int = option(
        1024, "Pops of one group held at once for a queue, or for all queues of a topic.",
        key="popPollingSize", low=0, high=INT32_MAX, changeable=True,
    )  # fmt: skip
    pop_look_every: int = option(
        800, "A held pop reads after this many messages that its filter excludes; 0: only at its end.",
        key="popLongPollingForceNotifyInterval", low=0, high=INT32_MAX, changeable=True,
    )  # fmt: skip
    pop_stay_ms: int = option(
        10_000, "Time after which a pop without all acknowledgements is stored, in ms.",
        key="popCkStayBufferTime", low=0, high=HOUR_MS, changeable=True,
    )  # fmt: skip
    default_mode: DefaultMode = option(
        DefaultMode.PULL, "Mode of groups that have none of their own, if the broker assigns their queues.",
        key="defaultMessageRequestMode", changeable=True,
    )  # fmt: skip
    default_share: int = option(
        -1, "Members of such a group that also pop the queues of a member; 0 or less: all.",
        key="defaultPopShareQueueNum", low=-1, high=INT32_MAX, changeable=True,
    )  # fmt: skip
    server_balance: bool = option(
        True, "Divide the queues of a group that asks the broker for them; else each member gets all.",
        key="serverLoadBalancerEnable", changeable=True,
    )  # fmt: skip
    pop_checkpoints_max: int = option(
        200_000, "Pops in memory. Beyond it, stored ones are revived from the log.",
        key="popCkMaxBufferSize", low=1, high=INT32_MAX, changeable=True,
    )  # fmt: skip

    # --- delays to any time: precision and file size must not change on an existing store -------------
    timer_wheel: bool = option(True, "Accept messages with any-time delays.", key="timerWheelEnable")
    timer_precision_ms: int = option(
        1000, "Precision of the delivery times of timer messages, in ms.",
        key="timerPrecisionMs", low=1, high=60_000,
    )  # fmt: skip
    timer_delay_s_max: int = option(
        259_200, "Longest delay of a timer message, in s.",
        key="timerMaxDelaySec", low=1, high=315_360_000, changeable=True,
    )  # fmt: skip
    timer_roll_slots: int = option(
        172_800, "A message due more than this many timer slots ahead is stored again on its way.",
        key="timerRollWindowSlot", low=-1, high=INT32_MAX,
    )  # fmt: skip
    timer_flush_ms: int = option(
        1000, "Interval at which the timer's files are flushed, in ms.",
        key="timerFlushIntervalMs", low=1, high=600_000, changeable=True,
    )  # fmt: skip
    timer_slot_messages_max: int = option(
        2**31 - 1, "Messages that may be due at one moment. Beyond it some further ones are rejected, "
        "beyond twice the number all.", key="timerCongestNumEachSlot", low=1, high=INT32_MAX, changeable=True,
    )  # fmt: skip
    timer_stop_enqueue: bool = option(
        False, "Leave timer messages in their queue; do not enter them into the timer.",
        key="timerStopEnqueue", changeable=True,
    )  # fmt: skip
    timer_stop_dequeue: bool = option(
        False, "Do not deliver timer messages that are due.", key="timerStopDequeue", changeable=True
    )
    timer_quiet_ms: int = option(
        -1, "Time after the start in which the timer delivers nothing, in ms.",
        key="disappearTimeAfterStart", low=-1, high=DAY_MS,
    )  # fmt: skip
    recall: bool = option(
        False, "Allow producers to recall timer messages.", key="recallMessageEnable", changeable=True
    )
    recall_unwritable: bool = option(
        True, "Allow recalls while the broker is not writable, too.",
        key="allowRecallWhenBrokerNotWriteable", changeable=True,
    )  # fmt: skip

    # --- long polling, overload ------------------------------------------------------------------------
    long_polling: bool = option(
        True, "Hold pulls until messages arrive.", key="longPollingEnable", changeable=True
    )
    short_polling_ms: int = option(
        1000, "Time that pulls are held without long polling, in ms.",
        key="shortPollingTimeMills", low=0, high=60_000, changeable=True,
    )  # fmt: skip
    send_wait_ms: int = option(
        200, "Reject sends that waited longer than this to be handled, in ms.",
        key="waitTimeMillsInSendQueue", low=1, high=600_000, changeable=True,
    )  # fmt: skip
    pull_wait_ms: int = option(
        5000, "Reject pulls that waited longer than this to be handled, in ms.",
        key="waitTimeMillsInPullQueue", low=1, high=600_000, changeable=True,
    )  # fmt: skip
    heartbeat_wait_ms: int = option(
        31_000, "Reject heartbeats that waited longer than this to be handled, in ms.",
        key="waitTimeMillsInHeartbeatQueue", low=1, high=600_000, changeable=True,
    )  # fmt: skip
    admin_wait_ms: int = option(
        5000, "Reject administrative requests that waited longer than this to be handled, in ms.",
        key="waitTimeMillsInAdminBrokerQueue", low=1, high=600_000, changeable=True,
    )  # fmt: skip
    disable_slow_groups: bool = option(
        False, "Disable consumer groups that fall behind by more than consumerFallbehindThreshold.",
        key="disableConsumeIfConsumerReadSlowly", changeable=True,
    )  # fmt: skip
    slow_group_bytes: int = option(
        16 << 30, "Bytes of the log that a group may be behind.",
        key="consumerFallbehindThreshold", low=0, high=1 << 60, changeable=True,
    )  # fmt: skip
    light_stats: bool = option(
        False, "Keep statistics of each light queue; there may be many.", key="enableLmqStats"
    )
    queue_lock_ms: int = option(
        60_000, "Time after which the lock of an ordered queue expires unless it is renewed, in ms.",
        key="rocketmq.broker.rebalance.lockMaxLiveTime", low=1, high=DAY_MS,
    )  # fmt: skip
    graceful_stop: bool = option(
        False, "Before it stops, ask clients that support this to move to other brokers.",
        key="enableShutdownGracefully", changeable=True,
    )  # fmt: skip
    graceful_stop_s: int = option(
        30, "Longest wait for these clients to leave, in s.",
        key="shutdownWaitTimeSeconds", low=0, high=3600, changeable=True,
    )  # fmt: skip
    save_offsets_ms: int = option(
        5000, "Interval at which consumer offsets are saved, in ms.",
        key="flushConsumerOffsetInterval", low=1, high=HOUR_MS, changeable=True,
    )  # fmt: skip
    offsets_version_step: int = option(
        500, "Number of commits after which the offset table gets a new version.",
        key="consumerOffsetUpdateVersionStep", low=1, high=1_000_000,
    )  # fmt: skip
    save_delays_ms: int = option(
        10_000, "Interval at which the delivery progress of delayed messages is saved, in ms.",
        key="flushDelayOffsetInterval", low=1, high=HOUR_MS, changeable=True,
    )  # fmt: skip
    delays_version_step: int = option(
        200, "Number of deliveries after which the table of delays gets a new version.",
        key="delayOffsetUpdateVersionStep", low=1, high=1_000_000,
    )  # fmt: skip
    delay_stats: bool = option(
        True, "Count delayed messages in the statistics when they are delivered.",
        key="enableScheduleMessageStats", changeable=True,
    )  # fmt: skip

    # --- transactions ---------------------------------------------------------------------------------
    transaction_timeout_ms: int = option(
        6000, "Age after which the producer is asked about an open transaction, in ms.",
        key="transactionTimeOut", low=0, high=7 * DAY_MS, changeable=True,
    )  # fmt: skip
    transaction_checks_max: int = option(
        15, "Number of check-backs after which an open transaction is abandoned.",
        key="transactionCheckMax", low=1, high=10_000, changeable=True,
    )  # fmt: skip
    transaction_check_ms: int = option(
        30_000, "Interval at which open transactions are checked, in ms.",
        key="transactionCheckInterval", low=1, high=DAY_MS, changeable=True,
    )  # fmt: skip
    op_bytes_max: int = option(
        4096, "Largest record of ended transactions, in bytes.",
        key="transactionOpMsgMaxSize", low=32, high=4 << 20, changeable=True,
    )  # fmt: skip
    transaction_wait_ms: int = option(
        3000, "Reject commits and rollbacks that waited longer than this to be handled, in ms.",
        key="waitTimeMillsInTransactionQueue", low=1, high=600_000, changeable=True,
    )  # fmt: skip
    save_transaction_counts_ms: int = option(
        10_000, "Interval at which counts of half messages are saved, in ms.",
        key="transactionMetricFlushInterval", low=1, high=HOUR_MS, changeable=True,
    )  # fmt: skip

    # --- ours -----------------------------------------------------------------------------------------
    config_path: str = option("", "File that changed settings are written to.", key="brokerConfigPath")
    config_black_list: str = option(
        "configBlackList;brokerConfigPath", "Keys, joined by semicolons, that no request may change."
    )

    @property
    def private_files(self) -> bool:
        """Return whether store files must be unreadable to other users: access control protects what they
        contain."""
        return self.asks_who

    @property
    def trusted_networks(self) -> tuple[Network, ...]:
        """Raises OptionError."""
        try:
            return parse_networks(self.ha_trusted)
        except ValueError as error:
            raise OptionError(
                "haTrustedAddresses", self.ha_trusted, f"addresses and networks joined by commas ({error})"
            ) from None

    @property
    def ledger_settings(self) -> GroupSettings | None:
        """Settings of this broker's DLedger group; None without a group. Raises OptionError."""
        if not self.ledger:
            return None
        try:
            settings = GroupSettings(
                self.ledger_group or self.broker_name,
                self.ledger_self_id,
                parse_peers(self.ledger_peers),
                preferred=tuple(name.strip() for name in self.ledger_preferred.split(";") if name.strip()),
                batch_push=self.ledger_batch_push,
            )
            settings.follower_id  # noqa: B018 — its own id has to give one
        except GroupUnusable as error:
            raise OptionError(error.key, error.value, error.expected) from None
        return settings

    @property
    def self_signed_path(self) -> str:
        return os.path.join(self.store_path, "config", SELF_SIGNED)

    @property
    def writable(self) -> bool:
        return bool(self.permission & 2)

    @property
    def readable(self) -> bool:
        return bool(self.permission & 4)
