"""Options of a store, with RocketMQ's keys and defaults; see also broker/options.py."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from kerolox.options import Form, Options, option
from kerolox.protocol.limits import MESSAGE_BODY_BYTES_MAX
from kerolox.store.delay_table import DEFAULT_LEVELS

GIB = 1 << 30
HOURS = Form(
    r"\s*([01]?\d|2[0-3])\s*(;\s*([01]?\d|2[0-3])\s*)*;?", "hours from 00 to 23, joined by semicolons"
)
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS
# Slots and entries of index files that tools recognise by their size: a broker's, and those of ``kerolox
# up``.
INDEX_SIZES = ((5_000_000, 20_000_000), (50_000, 200_000))


class FlushMode(enum.Enum):
    """Promise of an acknowledgement. See FORMAT.md, "Promises"."""

    ASYNC = "ASYNC_FLUSH"  # survives a killed process; power loss may take the last half second
    SYNC = "SYNC_FLUSH"  # survives power loss


@dataclass
class StoreOptions(Options):
    """Options for the location, layout, flushing, reading and cleaning of a store."""

    ROLE = "store"

    # --- places and sizes: never change a size on an existing directory --------------------------
    store_path: str = option("store", "Directory of the store.", key="storePathRootDir")
    commit_log_paths: str = option(
        "",
        "Directories of the commit log, joined by commas; <store>/commitlog if empty.",
        key="storePathCommitLog",
    )
    read_only_paths: str = option(
        "", "Commit-log directories that are read but never written, joined by commas.",
        key="readOnlyCommitLogStorePaths",
    )  # fmt: skip
    ledger: bool = option(
        False,
        "Keep the log of a DLedger group member. For existing groups; use a controller for new ones.",
        key="enableDLegerCommitLog",
    )
    ledger_self_id: str = option(
        "", "Name of this member in its DLedger group: a letter and a number, such as n0.",
        key="dLegerSelfId",
    )  # fmt: skip
    ledger_paths: str = option(
        "",
        "Directories of the log of a DLedger member, joined by commas; <store>/dledger-<id>/data if empty.",
        key="storePathDLedgerCommitLog",
    )
    commit_log_file_bytes: int = option(
        GIB, "Size of a commit-log file.", key="mappedFileSizeCommitLog", low=4096, high=2**31 - 1
    )
    queue_file_bytes: int = option(
        300_000 * 20, "Size of a consume-queue file; rounded up to whole entries.",
        key="mappedFileSizeConsumeQueue", low=20, high=2**31 - 1,
    )  # fmt: skip
    timer_log_file_bytes: int = option(
        100 << 20, "Size of a timer-log file.", key="mappedFileSizeTimerLog", low=128, high=2**31 - 1
    )
    queue_extension: bool = option(
        False,
        "Store more data beside each queue entry: the store time, and which filters the message passes.",
        key="enableConsumeQueueExt",
    )
    queue_extension_file_bytes: int = option(
        48 << 20,
        "Size of a consume-queue extension file.",
        key="mappedFileSizeConsumeQueueExt",
        low=64,
        high=2**31 - 1,
    )
    queue_extension_bits: int = option(
        64,
        "Bits of the filter bitmap of each message; a broker computes it from its filter options.",
        key="bitMapLengthConsumeQueueExt",
        low=0,
        high=65_536,
    )
    index_slots: int = option(
        5_000_000, "Hash slots of a key-index file.", key="maxHashSlotNum", low=1, high=100_000_000
    )
    index_entries: int = option(
        20_000_000, "Entries of a key-index file.", key="maxIndexNum", low=2, high=100_000_000
    )
    index_enabled: bool = option(True, "Index messages by key.", key="messageIndexEnable")

    # --- what may be stored ------------------------------------------------------------------------
    body_bytes_max: int = option(
        MESSAGE_BODY_BYTES_MAX,
        "Largest message body.",
        key="maxMessageSize",
        low=1,
        high=1 << 30,
        changeable=True,
    )
    record_crc: bool = option(
        False, "Append a CRC of the whole record to every record.", key="enabledAppendPropCRC"
    )
    light_queues: bool = option(
        False,
        "Support light queues (LMQ), which need no topic; see enableMultiDispatch.",
        key="enableLmq",
    )
    fill_light_queues: bool = option(
        False, "With enableLmq: also append messages to the light queues they name.",
        key="enableMultiDispatch",
    )  # fmt: skip

    light_queues_max: int = option(
        20_000, "Maximum number of light queues; messages that name new ones beyond it are rejected.",
        key="maxLmqConsumeQueueNum", low=1, high=1_000_000, changeable=True,
    )  # fmt: skip

    delay_levels: str = option(
        DEFAULT_LEVELS, "Delays of the delay levels, from level 1 on.", key="messageDelayLevel"
    )

    # --- flushing ----------------------------------------------------------------------------------
    flush_mode: FlushMode = option(
        FlushMode.ASYNC, "Flush mode; SYNC_FLUSH acknowledges a message after its flush.", key="flushDiskType"
    )
    flush_interval_ms: int = option(
        500,
        "Interval between flushes of the log.",
        key="flushIntervalCommitLog",
        low=1,
        high=HOUR_MS,
        changeable=True,
    )
    flush_pages_min: int = option(
        4, "Minimum number of unflushed 4 KiB pages for a flush.", key="flushCommitLogLeastPages",
        low=0, high=262_144,
        changeable=True,
    )  # fmt: skip
    flush_thorough_interval_ms: int = option(
        10_000, "Interval of flushes that ignore flushCommitLogLeastPages.",
        key="flushCommitLogThoroughInterval",
        low=1, high=HOUR_MS,
        changeable=True,
    )  # fmt: skip
    flush_timeout_ms: int = option(
        5000, "Time limit of a synchronous flush; after it a send is answered FLUSH_DISK_TIMEOUT.",
        key="syncFlushTimeout",
        low=1, high=HOUR_MS, changeable=True,
    )  # fmt: skip
    queue_flush_interval_ms: int = option(
        1000, "Interval between flushes of consume queues and key index.", key="flushIntervalConsumeQueue",
        low=1, high=HOUR_MS, changeable=True,
    )  # fmt: skip
    transient: bool = option(
        False,
        "Buffer appends in memory and write them later: fewer writes, but a killed process loses "
        "unwritten messages.",
        key="transientStorePoolEnable",
    )
    commit_interval_ms: int = option(
        200,
        "Interval between writes of the transient buffer.",
        key="commitIntervalCommitLog",
        low=1,
        high=60_000,
        changeable=True,
    )
    warm: bool = option(
        False,
        "Fill new log files with zeros in advance, for steadier flush times.",
        key="warmMapedFileEnable",
    )

    # --- replicas: all numbers include the leader, and apply where brokerRole is SYNC_MASTER ---------
    replicas_needed: int = option(
        2, "Replicas that have a message before it is acknowledged; 1: do not wait for followers.",
        key="inSyncReplicas", low=1, high=65, changeable=True,
    )  # fmt: skip
    replicas_min: int = option(
        1, "Minimum number of replicas in sync; with fewer, messages are rejected.", key="minInSyncReplicas",
        low=1, high=65, changeable=True,
    )  # fmt: skip
    replicas_degrade: bool = option(
        False, "With fewer than inSyncReplicas in sync, wait only for those, at least minInSyncReplicas.",
        key="enableAutoInSyncReplicas", changeable=True,
    )  # fmt: skip
    replica_timeout_ms: int = option(
        3000, "Time limit of replication; after it a send is answered FLUSH_SLAVE_TIMEOUT.",
        key="slaveTimeout", low=1, high=HOUR_MS, changeable=True,
    )  # fmt: skip
    replica_gap_bytes: int = option(
        256 << 20, "Lag in bytes above which a follower is not in sync, so no acknowledgement waits for it.",
        key="haMaxGapNotInSync", low=1, high=1 << 40, changeable=True,
    )  # fmt: skip

    # --- recovery ------------------------------------------------------------------------------------
    check_crc: bool = option(True, "Check body CRCs during recovery.", key="checkCRCOnRecover")

    # --- reading -------------------------------------------------------------------------------------
    batch_bytes_hot: int = option(
        262_144, "Maximum bytes of one pull from memory.", key="maxTransferBytesOnMessageInMemory",
        low=1, high=12 << 20, changeable=True,
    )  # fmt: skip
    batch_bytes_cold: int = option(
        65_536, "Maximum bytes of one pull from disk.", key="maxTransferBytesOnMessageInDisk",
        low=1, high=12 << 20,
        changeable=True,
    )  # fmt: skip
    batch_count_hot: int = option(
        32, "Maximum messages of one pull from memory.", key="maxTransferCountOnMessageInMemory",
        low=1, high=10_000, changeable=True,
    )  # fmt: skip
    batch_count_cold: int = option(
        8, "Maximum messages of one pull from disk.", key="maxTransferCountOnMessageInDisk",
        low=1, high=10_000,
        changeable=True,
    )  # fmt: skip
    scan_bytes_max: int = option(
        1 << 20, "Maximum bytes of one answer to a table scan, which asks for more than consumers do; 0: the "
        "limits of consumers apply.", key="maxTransferBytesOfScan", low=0, high=12 << 20, changeable=True,
    )  # fmt: skip
    memory_percent: int = option(
        40, "Share of the machine's memory that is assumed to hold the newest messages.",
        key="accessMessageInMemoryMaxRatio", low=0, high=100, changeable=True,
    )  # fmt: skip
    filter_bytes_max: int = option(
        16_000, "Maximum queue bytes that one filtered pull examines.", key="maxFilterMessageSize",
        low=20, high=20 * 16_384,
        changeable=True,
    )  # fmt: skip
    query_count_max: int = option(
        64, "Maximum messages of one query by key.", key="maxMsgsNumBatch", low=1, high=1000, changeable=True
    )

    # --- retention -----------------------------------------------------------------------------------
    delete_hours: str = option(
        "04", "Hours of the day at which expired files are deleted, joined by semicolons.", key="deleteWhen",
        changeable=True, form=HOURS,
    )  # fmt: skip
    keep_hours: int = option(
        72, "Retention time of messages.", key="fileReservedTime", low=0, high=1_000_000, changeable=True
    )
    disk_percent_max: int = option(
        75, "Disk usage above which expired files are deleted at any hour.", key="diskMaxUsedSpaceRatio",
        low=10, high=95, changeable=True,
    )  # fmt: skip
    disk_percent_force: int = option(
        85, "Disk usage above which files are deleted before they expire.", key="diskSpaceCleanForciblyRatio",
        low=30, high=85, changeable=True,
    )  # fmt: skip
    disk_percent_full: int = option(
        90, "Disk usage above which messages are rejected.", key="diskSpaceWarningLevelRatio", low=35,
        high=90, changeable=True,
    )  # fmt: skip
    disk_free_enough: int = option(
        0, "Free bytes with which a disk is neither filling nor full, whatever its usage; 0: only the usage "
        "counts.", key="diskSpaceFreeEnough", low=0, high=1 << 50, changeable=True,
    )  # fmt: skip
    force_clean: bool = option(
        True, "Delete files before they expire when the disk fills.",
        key="cleanFileForciblyEnable", changeable=True,
    )  # fmt: skip
    clean_interval_ms: int = option(
        10_000,
        "Interval between checks of disk usage and file age.",
        key="cleanResourceInterval",
        low=1,
        high=HOUR_MS,
        changeable=True,
    )
    delete_pause_ms: int = option(
        100,
        "Pause between the deletions of two files.",
        key="deleteCommitLogFilesInterval",
        low=0,
        high=60_000,
        changeable=True,
    )
    delete_batch_max: int = option(
        10,
        "Maximum files deleted in one round.",
        key="deleteFileBatchMax",
        low=1,
        high=10_000,
        changeable=True,
    )

    @property
    def multi_dispatch(self) -> bool:
        """Return True if messages are appended to the light queues they name."""
        return self.light_queues and self.fill_light_queues

    @property
    def private_files(self) -> bool:
        """Return True if only the owner of the store may read its files."""
        return False

    @property
    def queue_file_size(self) -> int:
        """Return the size of a consume-queue file, rounded up to whole entries."""
        return -(-self.queue_file_bytes // 20) * 20
