"""Features of RocketMQ that this broker does not support yet, and the settings that ask for them.

An operator who switches on access control, or a second copy of every message, relies on it. So a setting
without effect is rejected with the reason: at the start, by updateBrokerConfig, and in the request that
brings it. Keys that only tune (thread pools, buffers) are in no table: they are reported as having no effect.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from kerolox.errors import Refused
from kerolox.options import Absent
from kerolox.protocol.bodies.groups import WHY_DISABLED
from kerolox.protocol.bodies.topics import TopicConfig
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.flags import INNER_BATCH
from kerolox.store.log.cursors import AppendRefused

log = logging.getLogger(__name__)

OFF = ("", "false")

DUPLICATION = (
    "it switches RocketMQ's replication off, for brokers that are replicated by other means: to run without "
    "followers, start none, and set brokerRole=ASYNC_MASTER so that sends do not wait for any"
)
DLEDGER = "the setting for DLedger groups is spelled enableDLegerCommitLog"
ROCKSDB = "queues, offsets, timers and settings are files in this broker's store, not in RocksDB"
PRIORITY = "priorities and lite topics are not supported yet"
LITE = "lite topics are not supported yet"
TIERED = (
    "tiered storage and store plug-ins are not supported; fileReservedTime sets how long messages are kept"
)
NAMESERVERS = "name servers are not looked up: list their addresses in namesrvAddr"

SETTINGS: Mapping[str, Absent] = {
    "duplicationEnable": Absent(OFF, DUPLICATION),
    "enableDLedgerCommitLog": Absent(OFF, DLEDGER),
    "storeType": Absent(("", "default"), ROCKSDB),
    "configManagerVersion": Absent(("", "v1"), ROCKSDB),
    "rocksdbCQDoubleWriteEnable": Absent(OFF, ROCKSDB),
    "indexRocksDBEnable": Absent(OFF, ROCKSDB),
    "timerRocksDBEnable": Absent(OFF, ROCKSDB),
    "transRocksDBEnable": Absent(OFF, ROCKSDB),
    "popConsumerKVServiceEnable": Absent(OFF, ROCKSDB),
    "messageStorePlugIn": Absent(("",), TIERED),
    "coldDataFlowControlEnable": Absent(
        OFF,
        "groups that read cold messages are not throttled; those that fall too far behind can be disabled: "
        "disableConsumeIfConsumerReadSlowly=true",
    ),
    "rejectPullConsumerEnable": Absent(OFF, "the broker does not distinguish pull consumers from others"),
    "useStaticSubscription": Absent(OFF, "groups have no stored subscriptions: consumers send them"),
    "metricsExporterType": Absent(
        ("", "PROM", "DISABLE"), "metrics are scraped (PROM); the broker neither pushes nor logs them"
    ),
    "metricsInDelta": Absent(OFF, "Prometheus reads totals"),
    "enableMixedMessageType": Absent(OFF, "topics of message type MIXED are not supported"),
    "enableLmqQuota": Absent(OFF, "the number of light queues has no quota"),
    "fetchNamesrvAddrByAddressServer": Absent(OFF, NAMESERVERS),
    "fetchNameSrvAddrByDnsLookup": Absent(OFF, NAMESERVERS),
}  # fmt: skip

TOPIC_ATTRIBUTES: Mapping[str, Absent] = {
    "queue.type": Absent(("SimpleCQ",), "queues of batches (BatchCQ) are not supported yet"),
    "cleanup.policy": Absent(
        ("DELETE",),
        "compaction, which keeps the last message of each key, is not supported yet: messages expire",
    ),
    "message.type": Absent(
        ("UNSPECIFIED", "NORMAL", "FIFO", "DELAY", "TRANSACTION"),
        "topics of lite messages (LITE) and priorities (PRIORITY, for POP consumers) are not supported yet",
    ),
    "reserve.time": Absent(("-1",), TIERED),
    "lite.topic.expiration": Absent((), LITE),
}


def refuse_topic_attribute(name: str, value: str) -> None:
    absent = TOPIC_ATTRIBUTES.get(name)
    if absent is not None and absent.is_asked_for(value):
        raise _refused(f"attribute {name} = {value!r}", absent.why)


def refuse_group_attributes(group: str, attributes: Mapping[str, str]) -> None:
    """Reject attributes of groups: all that RocketMQ has are for priorities and lite topics
    (``priority.factor``, ``lite.*``)."""
    asked = sorted(name for name in attributes if name != WHY_DISABLED)
    if asked:
        raise _refused(f"group {group!r} with attributes {', '.join(asked)}", PRIORITY)


def refuse_inner_batch(sys_flag: int) -> None:
    """Reject inner batches: one record would take many offsets of a queue; here every record takes one."""
    if sys_flag & INNER_BATCH:
        raise AppendRefused(
            f"the message is a batch in one record (sysFlag {INNER_BATCH:#x}): "
            f"{TOPIC_ATTRIBUTES['queue.type'].why}. Send the messages singly, or in a batch request."
        )


def report_from_before(topics: Mapping[str, TopicConfig]) -> None:
    """Log the unsupported settings in the topics of a store that another broker wrote."""
    for topic, config in topics.items():
        for name, value in config.attributes.items():
            absent = TOPIC_ATTRIBUTES.get(name)
            if absent is not None and absent.is_asked_for(value):
                log.warning(
                    "attribute_without_effect topic=%r attribute=%r value=%r reason=%r",
                    topic, name, value, absent.why,
                )  # fmt: skip


def _refused(what: str, why: str) -> Refused:
    return Refused(ResponseCode.SYSTEM_ERROR, f"{what} is rejected: {why}.")
