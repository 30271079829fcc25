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

from kerolox.access.plain.options import PlainAclOptions
from kerolox.access.server_options import ServerOptions
from kerolox.broker import absent
from kerolox.errors import OptionError
from kerolox.metric_text import MetricsExporter
from kerolox.net.self_signed import NAME as SELF_SIGNED
from kerolox.options import Absent, option
from kerolox.protocol.limits import INT32_MAX, INT64_MAX
from kerolox.replication.dledger.settings import GroupSettings, GroupUnusable, parse_peers
from kerolox.replication.entrance import Network, parse_networks
from kerolox.store.options import DAY_MS, HOUR_MS, StoreOptions


class BrokerRole(enum.Enum):
    ASYNC_MASTER = "ASYNC_MASTER"
    SYNC_MASTER = "SYNC_MASTER"
    SLAVE = "SLAVE"


@dataclass
class BrokerOptions(ServerOptions, StoreOptions, PlainAclOptions):
    """Options of ``kerolox broker``."""

    ROLE: ClassVar[str] = "broker"
    ABSENT: ClassVar[Mapping[str, Absent]] = absent.SETTINGS
    ALWAYS_BLACK_LISTED: ClassVar[frozenset[str]] = ServerOptions.ALWAYS_BLACK_LISTED | {"brokerConfigPath"}

    # --- identity and network ------------------------------------------------------------------------
    broker_name: str = option(
        socket.gethostname(), "Name of the broker; brokers of one name share their log."
    )
    cluster: str = option("DefaultCluster", "Name of the cluster.", key="brokerClusterName")
    broker_id: int = option(
        0, "Which of its followers a broker with brokerRole=SLAVE is, from 1 on; leaders are 0. Not used "
        "with enableControllerMode, where files have -1.",
        low=-1, high=INT64_MAX, changeable=True,
    )  # fmt: skip
    role: BrokerRole = option(
        BrokerRole.ASYNC_MASTER, "What the broker does with its log.", key="brokerRole", changeable=True
    )
    listen_port: int = option(10911, "Port to listen on; 0 takes a free one.", low=0, high=65535)
    vip_port: int = option(-1, "Second port, without pulls; -1: listenPort - 2.", low=-1, high=65535)
    ha_port: int = option(
        -1, "Port for followers; -1: listenPort + 1.", key="haListenPort", low=-1, high=65535
    )
    ha_master_address: str = option(
        "", "Where a follower copies from; empty: what the name servers say.", key="haMasterAddress"
    )
    ha_heartbeat_ms: int = option(
        5000, "Leader and follower say something at least this often.", key="haSendHeartbeatInterval",
        low=1, high=600_000, changeable=True,
    )  # fmt: skip
    ha_silence_ms: int = option(
        20_000, "Who of them says nothing for longer is gone: more than haSendHeartbeatInterval.",
        key="haHousekeepingInterval", low=10, high=3_600_000, changeable=True,
    )  # fmt: skip
    ha_batch_bytes: int = option(
        32_768, "Most bytes of the log a follower is sent behind one head.", key="haTransferBatchSize",
        low=1, high=1 << 20, changeable=True,
    )  # fmt: skip
    ha_limited: bool = option(
        False, "Whether maxHaTransferByteInSecond holds.", key="haFlowControlEnable", changeable=True
    )
    ha_bytes_per_s: int = option(
        100 << 20, "Most bytes of the log each follower is sent in a second.",
        key="maxHaTransferByteInSecond", low=1, high=1 << 40, changeable=True,
    )  # fmt: skip
    ha_trusted: str = option(
        "", "Addresses and networks, joined by commas, whose brokers may copy the log, or belong to the "
        "DLedger group, without proving who they are, while authenticationEnabled: for RocketMQ's, which "
        "cannot.",
        key="haTrustedAddresses",
    )  # fmt: skip
    advertised_host: str = option("", "Address clients are told; found out if empty.", key="brokerIP1")
    advertised_ha_host: str = option("", "Address followers are told; brokerIP1 if empty.", key="brokerIP2")
    nameservers: str = option(
        "", "Name servers, joined by semicolons.", key="namesrvAddr", environment="NAMESRV_ADDR"
    )
    permission: int = option(
        6, "4 readable, 2 writable.", key="brokerPermission", low=0, high=7, changeable=True
    )
    register_interval_ms: int = option(
        30_000, "How often the broker registers.", key="registerNameServerPeriod", low=10_000, high=60_000
    )
    register_timeout_ms: int = option(
        24_000, "For one registration.", key="registerBrokerTimeoutMills", low=1, high=600_000
    )
    idle_s_max: int = option(
        120,
        "A connection without traffic is closed after this.",
        key="serverChannelMaxIdleTimeSeconds",
        low=1,
        high=86_400,
    )
    connections_for_each_address: int = option(
        0,
        "Connections that one source address may have on a port; 0: three quarters of those the port takes.",
        key="connectionsPerAddressMax",
        low=0,
        high=1_000_000,
    )
    member_timeout_ms: int = option(
        120_000,
        "A client without heartbeat is forgotten after this.",
        key="channelExpiredTimeout",
        low=1,
        high=DAY_MS,
    )

    # --- topics, groups, features ----------------------------------------------------------------------
    auto_create_topics: bool = option(
        True, "Create topics when a message comes for them.", key="autoCreateTopicEnable", changeable=True
    )
    auto_create_groups: bool = option(
        True, "Create groups when a consumer comes.", key="autoCreateSubscriptionGroup", changeable=True
    )
    default_topic_queues: int = option(
        8, "Queues of the template topic.", key="defaultTopicQueueNums", low=1, high=1024, changeable=True
    )
    topics_max: int = option(
        100_000, "Most topics, those of retries and dead letters too; more are not made.", key="maxTopics",
        low=100, high=1_000_000, changeable=True,
    )  # fmt: skip
    groups_max: int = option(
        50_000, "Most consumer groups; more are not made.", key="maxGroups", low=100, high=1_000_000,
        changeable=True,
    )  # fmt: skip
    cluster_topic: bool = option(
        True, "Whether the topic named as the cluster is used.", key="clusterTopicEnable"
    )
    broker_topic: bool = option(
        True, "Whether the topic named as the broker is used.", key="brokerTopicEnable"
    )
    trace_topic: bool = option(False, "Create the topic of message traces.", key="traceTopicEnable")
    trace_topic_name: str = option("RMQ_SYS_TRACE_TOPIC", "Topic of traces.", key="msgTraceTopicName")
    trace_on: bool = option(True, "Tell clients to trace.", changeable=True)
    region: str = option("DefaultRegion", "Region told to clients.", key="regionId")
    property_filter: bool = option(False, "Allow SQL92 filters.", key="enablePropertyFilter", changeable=True)
    filter_retries: bool = option(
        False, "Filter messages that failed like those they were.", key="filterSupportRetry", changeable=True
    )
    filter_keep_ms: int = option(
        86_400_000, "How long the filter of a group that left is kept.", key="filterDataCleanTimeSpan",
        low=0, high=366 * DAY_MS,
        changeable=True,
    )  # fmt: skip
    filter_bits: bool = option(
        False, "Keep with each message which filters take it: needs enableConsumeQueueExt.",
        key="enableCalcFilterBitMap", changeable=True,
    )  # fmt: skip
    filter_users: int = option(
        32,
        "How many groups with filters those bits are made for.",
        key="expectConsumerNumUseFilter",
        low=1,
        high=10_000,
    )
    filter_error_percent: int = option(
        20, "How often they may take a message too many.", key="maxErrorRateOfBloomFilter", low=1, high=99
    )
    reject_transactions: bool = option(
        False, "Refuse transactional messages.", key="rejectTransactionMessage", changeable=True
    )
    store_replies: bool = option(
        True, "Store replies too, not only bring them to who asked.", key="storeReplyMessageEnable",
        changeable=True,
    )  # fmt: skip
    lite_pull: bool = option(True, "Allow lite pull.", key="litePullMessageEnable", changeable=True)
    notify_members: bool = option(
        True, "Tell members when their group changes.", key="notifyConsumerIdsChangedEnable", changeable=True
    )
    server_side_reset: bool = option(
        True,
        "Reset offsets at the broker, not through clients.",
        key="useServerSideResetOffset",
        changeable=True,
    )
    slave_read: bool = option(
        False, "A leader sends consumers that are far behind to a follower; a follower lets itself be read, "
        "also while the leader is gone. Set it on both.",
        key="slaveReadEnable", changeable=True,
    )  # fmt: skip
    acting: bool = option(
        False, "While no leader lives, the follower with the lowest id does what it can of a leader's work: "
        "it serves consumers and their locks as the leader would, and takes no messages. Set it on all "
        "brokers of a name, and supportActingMaster=true on the name servers.",
        key="enableSlaveActingMaster",
    )  # fmt: skip
    remote_escape: bool = option(
        False, "A follower that acts sends messages that are due, and open transactions, to a broker of "
        "another name; otherwise they wait for the leader. Needs enableSlaveActingMaster.",
        key="enableRemoteEscape",
    )  # fmt: skip
    total_replicas: int = option(
        1, "How many brokers of this name there are, with the leader. From 2 on, and with "
        "enableSlaveActingMaster, a leader that starts waits for its followers before it serves anybody.",
        key="totalReplicas", low=1, high=64,
    )  # fmt: skip
    skip_pre_online: bool = option(
        False, "A leader that starts takes back what its followers did, but does not wait until they copy "
        "from it.",
        key="skipPreOnline",
    )  # fmt: skip
    strict_locks: bool = option(
        False, "A queue is locked for a consumer when more than half of totalReplicas brokers grant it.",
        key="lockInStrictMode", changeable=True,
    )  # fmt: skip
    alive_ms: int = option(
        1000, "So often name servers (with enableSlaveActingMaster) or controllers (with "
        "enableControllerMode) hear that this broker lives.",
        key="brokerHeartbeatInterval", low=10, high=60_000, changeable=True,
    )  # fmt: skip
    alive_timeout_ms: int = option(
        1000, "How long that may take.", key="sendHeartbeatTimeoutMillis", low=10, high=60_000,
        changeable=True,
    )  # fmt: skip
    not_alive_ms: int = option(
        10_000, "With enableSlaveActingMaster: a broker of which name servers hear nothing longer is gone.",
        key="brokerNotActiveTimeoutMillis", low=100, high=HOUR_MS,
    )  # fmt: skip
    members_ms: int = option(
        1000, "So often name servers are asked which brokers of this name live.",
        key="syncBrokerMemberGroupPeriod", low=10, high=60_000, changeable=True,
    )  # fmt: skip
    old_nameservers: bool = option(
        True, "Name servers may be of RocketMQ 4: brokers of a name are found by a route, and 322 is their "
        "sign of life.",
        key="compatibleWithOldNameSrv", changeable=True,
    )  # fmt: skip
    correct_while_following: bool = option(
        False, "A follower moves consumers that are outside of its queues into them; otherwise they stay "
        "where they are and ask the leader.",
        key="offsetCheckInSlave", changeable=True,
    )  # fmt: skip

    # --- brokers under a controller ----------------------------------------------------------------------
    controlled: bool = option(
        False, "A controller says who leads: another broker that has everything takes over when the leader "
        "goes. brokerRole and brokerId are not used then.",
        key="enableControllerMode",
    )  # fmt: skip
    controllers: str = option("", "The controllers, joined by semicolons.", key="controllerAddr")
    controllers_by_name: bool = option(
        False, "controllerAddr is one name with a port: every address of it is a controller.",
        key="fetchControllerAddrByDnsLookup",
    )  # fmt: skip
    who_leads_ms: int = option(
        5000, "So often the controller is asked who leads; it also tells by itself.",
        key="syncBrokerMetadataPeriod", low=100, high=600_000, changeable=True,
    )  # fmt: skip
    in_sync_check_ms: int = option(
        5000, "So often a leader looks for replicas that have fallen behind.",
        key="checkSyncStateSetPeriod", low=100, high=600_000, changeable=True,
    )  # fmt: skip
    controllers_check_ms: int = option(
        10_000, "So often the controllers are asked which of them leads; at once when that one is lost.",
        key="syncControllerMetadataPeriod", low=100, high=600_000, changeable=True,
    )  # fmt: skip
    controller_silence_ms: int = option(
        10_000, "A broker that the controller hears nothing of for so long is replaced, and one that leads "
        "takes no messages when the controller has not answered for so long.",
        key="controllerHeartBeatTimeoutMills", low=1000, high=600_000,
    )  # fmt: skip
    controller_lease: bool = option(
        True, "Whether a leader takes no messages while no controller answers. false: it goes on, as "
        "RocketMQ's do, also when another one was elected meanwhile that it has not heard of.",
        key="controllerLeaseEnable", changeable=True,
    )  # fmt: skip
    election_priority: int = option(
        INT32_MAX, "Of brokers that have equally much, the one with the lowest number is elected.",
        key="brokerElectionPriority", low=0, high=INT32_MAX,
    )  # fmt: skip
    all_ack: bool = option(
        True, "A message is acknowledged when every replica of the in-sync set has it. false, as RocketMQ "
        "has it: inSyncReplicas counts, and the next leader may lack what was acknowledged.",
        key="allAckInSyncStateSet", changeable=True,
    )  # fmt: skip
    ha_catch_up_ms: int = option(
        15_000, "A replica that has lacked something for longer is not in sync any more.",
        key="haMaxTimeSlaveNotCatchup", low=100, high=HOUR_MS, changeable=True,
    )  # fmt: skip
    learner: bool = option(
        False, "This broker copies, and is never in sync: it is not waited for, nor elected.",
        key="asyncLearner",
    )  # fmt: skip
    from_last_file: bool = option(
        False, "A replica with an empty store copies the leader's last file alone, not its whole log.",
        key="syncFromLastFile",
    )  # fmt: skip
    epoch_path: str | None = option(
        None, "The file that says which leader wrote which part of the log; in the store if unset.",
        key="storePathEpochFile",
    )  # fmt: skip
    identity_path: str | None = option(
        None, "The file with the id that the controller gave; in the store if unset.",
        key="storePathBrokerIdentity",
    )  # fmt: skip

    # --- brokers of a DLedger group: enableDLegerCommitLog and dLegerSelfId are the store's --------
    ledger_group: str = option(
        "", "The DLedger group of this broker; brokerName if empty.", key="dLegerGroup"
    )
    ledger_peers: str = option(
        "", "Its members, the same everywhere and for good: n0-host:port;n1-host:port;n2-host:port.",
        key="dLegerPeers",
    )  # fmt: skip
    ledger_preferred: str = option(
        "", "The member that should lead when it can, or several, joined by semicolons.",
        key="preferredLeaderId",
    )  # fmt: skip
    ledger_batch_push: bool = option(
        False, "A leader sends many messages in one request, which costs less.", key="enableBatchPush"
    )

    accept_sends_from_ms: int = option(
        0,
        "Refuse messages before this wall time.",
        key="startAcceptSendRequestTimeStamp",
        low=0,
        high=1 << 53,
    )
    revive_queues: int = option(8, "Queues of the POP revive topic.", key="reviveQueueNum", low=1, high=1024)

    # --- delays to any time: precision and file size must not change on an existing store -------------
    timer_wheel: bool = option(True, "Whether any-time delays are taken.", key="timerWheelEnable")
    timer_precision_ms: int = option(
        1000, "How exactly messages come when they are due.", key="timerPrecisionMs", low=1, high=60_000
    )
    timer_delay_s_max: int = option(
        259_200, "The longest delay.", key="timerMaxDelaySec", low=1, high=315_360_000, changeable=True
    )
    timer_roll_slots: int = option(
        172_800, "A message further ahead than this is stored again on its way.", key="timerRollWindowSlot",
        low=-1, high=INT32_MAX,
    )  # fmt: skip
    timer_flush_ms: int = option(
        1000,
        "How often the timer's files are flushed.",
        key="timerFlushIntervalMs",
        low=1,
        high=600_000,
        changeable=True,
    )
    timer_slot_messages_max: int = option(
        2**31 - 1, "More messages due at one moment are refused, by and by.", key="timerCongestNumEachSlot",
        low=1, high=INT32_MAX, changeable=True,
    )  # fmt: skip
    timer_stop_enqueue: bool = option(
        False, "Leave timer messages in their queue.", key="timerStopEnqueue", changeable=True
    )
    timer_stop_dequeue: bool = option(
        False, "Keep messages that are due.", key="timerStopDequeue", changeable=True
    )
    timer_quiet_ms: int = option(
        -1, "How long after the start nothing is delivered.", key="disappearTimeAfterStart",
        low=-1, high=DAY_MS,
    )  # fmt: skip
    recall: bool = option(
        False, "Whether timer messages can be taken back.", key="recallMessageEnable", changeable=True
    )
    recall_unwritable: bool = option(
        True, "Also when the broker is not writable.", key="allowRecallWhenBrokerNotWriteable",
        changeable=True,
    )  # fmt: skip

    # --- long polling, overload ------------------------------------------------------------------------
    long_polling: bool = option(
        True, "Hold pulls until messages come.", key="longPollingEnable", changeable=True
    )
    short_polling_ms: int = option(
        1000,
        "How long pulls are held without long polling.",
        key="shortPollingTimeMills",
        low=0,
        high=60_000,
        changeable=True,
    )
    send_wait_ms: int = option(
        200,
        "A send that waited longer is refused.",
        key="waitTimeMillsInSendQueue",
        low=1,
        high=600_000,
        changeable=True,
    )
    pull_wait_ms: int = option(
        5000, "A pull that waited longer to be looked at is refused.", key="waitTimeMillsInPullQueue",
        low=1, high=600_000,
        changeable=True,
    )  # fmt: skip
    heartbeat_wait_ms: int = option(
        31_000,
        "Likewise for heartbeats.",
        key="waitTimeMillsInHeartbeatQueue",
        low=1,
        high=600_000,
        changeable=True,
    )
    admin_wait_ms: int = option(
        5000,
        "Likewise for administration.",
        key="waitTimeMillsInAdminBrokerQueue",
        low=1,
        high=600_000,
        changeable=True,
    )
    disable_slow_groups: bool = option(
        False, "Disable groups that fall too far behind.", key="disableConsumeIfConsumerReadSlowly",
        changeable=True,
    )  # fmt: skip
    slow_group_bytes: int = option(
        16 << 30,
        "How far is too far.",
        key="consumerFallbehindThreshold",
        low=0,
        high=1 << 60,
        changeable=True,
    )
    light_stats: bool = option(
        False, "Count light queues one by one; there may be many.", key="enableLmqStats"
    )
    queue_lock_ms: int = option(
        60_000, "How long the lock of an ordered queue is held unless it is asked for again.",
        key="rocketmq.broker.rebalance.lockMaxLiveTime", low=1, high=DAY_MS,
    )  # fmt: skip
    graceful_stop: bool = option(
        False, "At stop, tell clients that understand it to go elsewhere, before they are cut off.",
        key="enableShutdownGracefully", changeable=True,
    )  # fmt: skip
    graceful_stop_s: int = option(
        30, "How long they have for that, unless all are gone before.", key="shutdownWaitTimeSeconds",
        low=0, high=3600,
        changeable=True,
    )  # fmt: skip
    save_offsets_ms: int = option(
        5000,
        "How often consumer offsets are saved.",
        key="flushConsumerOffsetInterval",
        low=1,
        high=HOUR_MS,
        changeable=True,
    )
    offsets_version_step: int = option(
        500, "Commits that make a new version.", key="consumerOffsetUpdateVersionStep", low=1, high=1_000_000
    )
    save_delays_ms: int = option(
        10_000, "How often it is saved how far delayed messages were delivered.",
        key="flushDelayOffsetInterval", low=1, high=HOUR_MS, changeable=True,
    )  # fmt: skip
    delays_version_step: int = option(
        200, "Deliveries that make a new version.", key="delayOffsetUpdateVersionStep", low=1, high=1_000_000
    )
    delay_stats: bool = option(
        True, "Count delayed messages when they are delivered.", key="enableScheduleMessageStats",
        changeable=True,
    )  # fmt: skip

    # --- transactions ---------------------------------------------------------------------------------
    transaction_timeout_ms: int = option(
        6000, "A transaction is asked about when it is older than this.", key="transactionTimeOut",
        low=0, high=7 * DAY_MS,
        changeable=True,
    )  # fmt: skip
    transaction_checks_max: int = option(
        15, "After so many questions a transaction is given up.", key="transactionCheckMax",
        low=1, high=10_000,
        changeable=True,
    )  # fmt: skip
    transaction_check_ms: int = option(
        30_000, "How often open transactions are gone through.", key="transactionCheckInterval",
        low=1, high=DAY_MS,
        changeable=True,
    )  # fmt: skip
    op_bytes_max: int = option(
        4096, "Most bytes of one note of ended transactions.", key="transactionOpMsgMaxSize",
        low=32, high=4 << 20,
        changeable=True,
    )  # fmt: skip
    transaction_wait_ms: int = option(
        3000, "An end of a transaction that waited longer is refused.", key="waitTimeMillsInTransactionQueue",
        low=1, high=600_000, changeable=True,
    )  # fmt: skip
    save_transaction_counts_ms: int = option(
        10_000, "How often counts of half messages are saved.", key="transactionMetricFlushInterval",
        low=1, high=HOUR_MS,
        changeable=True,
    )  # fmt: skip

    # --- metrics ----------------------------------------------------------------------------------------
    metrics_exporter: MetricsExporter = option(
        MetricsExporter.DISABLE, "PROM: metrics for Prometheus at /metrics, and /healthz.",
        key="metricsExporterType",
    )  # fmt: skip
    metrics_port: int = option(
        5557, "Their port; 0 takes a free one.", key="metricsPromExporterPort", low=0, high=65535
    )
    metrics_host: str = option(
        "127.0.0.1", "Where they are read; 0.0.0.0: every address.", key="metricsPromExporterHost"
    )
    metrics_labels: str = option("", "Labels of all of them, as in instance:a,zone:b.", key="metricsLabel")

    # --- ours -----------------------------------------------------------------------------------------
    config_path: str = option("", "The file changed settings are written to.", key="brokerConfigPath")
    config_black_list: str = option(
        "configBlackList;brokerConfigPath", "Keys, joined by semicolons, that no request may change."
    )

    @property
    def private_files(self) -> bool:
        """Whoever could read the files would have what access control keeps from them."""
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
        """The DLedger group of this broker; None without one. Raises OptionError."""
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
