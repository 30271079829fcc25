"""The options of a store. Keys and defaults are RocketMQ's; see also broker/options.py."""

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
# Slots and entries of index files that tools know by their size: those of a broker, and of ``kerolox up``.
INDEX_SIZES = ((5_000_000, 20_000_000), (50_000, 200_000))


class FlushMode(enum.Enum):
    """What an acknowledgement promises. See FORMAT.md, "Promises"."""

    ASYNC = "ASYNC_FLUSH"  # survives a killed process; power loss may take the last half second
    SYNC = "SYNC_FLUSH"  # survives power loss


@dataclass
class StoreOptions(Options):
    """Where the store lives, how it is laid out, flushed, read and cleaned."""

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
        "Keep the log of a member of a DLedger group, for groups that exist; new ones have a controller.",
        key="enableDLegerCommitLog",
    )
    ledger_self_id: str = option(
        "", "Which member of its DLedger group this is: a letter and a number, such as n0.",
        key="dLegerSelfId",
    )  # fmt: skip
    ledger_paths: str = option(
        "",
        "Directories of the log of such a member, joined by commas; <store>/dledger-<id>/data if empty.",
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
        "Keep more of each message beside its queue entry: its store time, and which filters take it.",
        key="enableConsumeQueueExt",
    )
    queue_extension_file_bytes: int = option(
        48 << 20, "Size of a file of that.", key="mappedFileSizeConsumeQueueExt", low=64, high=2**31 - 1
    )
    queue_extension_bits: int = option(
        64,
        "Bits of filters with each message; a broker works it out.",
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
    index_enabled: bool = option(True, "Whether messages can be found by key.", key="messageIndexEnable")

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
        False, "Close every record with a CRC over all of it.", key="enabledAppendPropCRC"
    )
    light_queues: bool = option(
        False,
        "Know light queues (LMQ): those no topic is needed for, see enableMultiDispatch.",
        key="enableLmq",
    )
    fill_light_queues: bool = option(
        False, "With enableLmq: put messages into the light queues they name as well.",
        key="enableMultiDispatch",
    )  # fmt: skip

    light_queues_max: int = option(
        20_000, "Most light queues; a message that names new ones beyond is refused.",
        key="maxLmqConsumeQueueNum", low=1, high=1_000_000, changeable=True,
    )  # fmt: skip

    delay_levels: str = option(DEFAULT_LEVELS, "The delay levels, from 1 on.", key="messageDelayLevel")

    # --- flushing ----------------------------------------------------------------------------------
    flush_mode: FlushMode = option(
        FlushMode.ASYNC, "When a message counts as safe: SYNC_FLUSH waits for the disk.", key="flushDiskType"
    )
    flush_interval_ms: int = option(
        500,
        "How often the log is flushed.",
        key="flushIntervalCommitLog",
        low=1,
        high=HOUR_MS,
        changeable=True,
    )
    flush_pages_min: int = option(
        4, "Flush only with this many 4 KiB pages unflushed...", key="flushCommitLogLeastPages",
        low=0, high=262_144,
        changeable=True,
    )  # fmt: skip
    flush_thorough_interval_ms: int = option(
        10_000, "...but whatever there is after this long.", key="flushCommitLogThoroughInterval",
        low=1, high=HOUR_MS,
        changeable=True,
    )  # fmt: skip
    flush_timeout_ms: int = option(
        5000, "A synchronous flush that takes longer is answered FLUSH_DISK_TIMEOUT.", key="syncFlushTimeout",
        low=1, high=HOUR_MS, changeable=True,
    )  # fmt: skip
    queue_flush_interval_ms: int = option(
        1000, "How often consume queues and the key index are written.", key="flushIntervalConsumeQueue",
        low=1, high=HOUR_MS, changeable=True,
    )  # fmt: skip
    transient: bool = option(
        False,
        "Collect appends in memory and write them a little later: fewer writes, but a killed process "
        "loses what was not yet written.",
        key="transientStorePoolEnable",
    )
    commit_interval_ms: int = option(
        200,
        "How often the transient buffer is written.",
        key="commitIntervalCommitLog",
        low=1,
        high=60_000,
        changeable=True,
    )
    warm: bool = option(
        False, "Write the zeros of a new log file ahead: steadier flushes.", key="warmMapedFileEnable"
    )

    # --- replicas: all numbers count the leader, and matter where brokerRole is SYNC_MASTER ----------
    replicas_needed: int = option(
        2, "On how many replicas a message is when it is acknowledged; with 1 nobody waits for followers.",
        key="inSyncReplicas", low=1, high=65, changeable=True,
    )  # fmt: skip
    replicas_min: int = option(
        1, "With fewer replicas in sync messages are refused.", key="minInSyncReplicas",
        low=1, high=65, changeable=True,
    )  # fmt: skip
    replicas_degrade: bool = option(
        False, "While fewer than inSyncReplicas are in sync: wait for those, minInSyncReplicas at least.",
        key="enableAutoInSyncReplicas", changeable=True,
    )  # fmt: skip
    replica_timeout_ms: int = option(
        3000, "A message that takes longer to its replicas is answered FLUSH_SLAVE_TIMEOUT.",
        key="slaveTimeout", low=1, high=HOUR_MS, changeable=True,
    )  # fmt: skip
    replica_gap_bytes: int = option(
        256 << 20, "A follower that lacks so much of the log is not in sync, and nobody waits for it.",
        key="haMaxGapNotInSync", low=1, high=1 << 40, changeable=True,
    )  # fmt: skip

    # --- recovery ------------------------------------------------------------------------------------
    check_crc: bool = option(True, "Check body CRCs of what recovery reads.", key="checkCRCOnRecover")

    # --- reading -------------------------------------------------------------------------------------
    batch_bytes_hot: int = option(
        262_144, "Most bytes of one pull when they are in memory.", key="maxTransferBytesOnMessageInMemory",
        low=1, high=12 << 20, changeable=True,
    )  # fmt: skip
    batch_bytes_cold: int = option(
        65_536, "Most bytes of one pull when they are on disk.", key="maxTransferBytesOnMessageInDisk",
        low=1, high=12 << 20,
        changeable=True,
    )  # fmt: skip
    batch_count_hot: int = option(
        32, "Most messages of one pull when they are in memory.", key="maxTransferCountOnMessageInMemory",
        low=1, high=10_000, changeable=True,
    )  # fmt: skip
    batch_count_cold: int = option(
        8, "Most messages of one pull when they are on disk.", key="maxTransferCountOnMessageInDisk",
        low=1, high=10_000,
        changeable=True,
    )  # fmt: skip
    scan_bytes_max: int = option(
        1 << 20, "Most bytes of one answer to a reader that asks for more than consumers get (a table scan); "
        "0: it gets what they get.", key="maxTransferBytesOfScan", low=0, high=12 << 20, changeable=True,
    )  # fmt: skip
    memory_percent: int = option(
        40, "How much of the machine's memory counts as holding the newest messages.",
        key="accessMessageInMemoryMaxRatio", low=0, high=100, changeable=True,
    )  # fmt: skip
    filter_bytes_max: int = option(
        16_000, "Most queue bytes looked at by one pull while filtering.", key="maxFilterMessageSize",
        low=20, high=20 * 16_384,
        changeable=True,
    )  # fmt: skip
    query_count_max: int = option(
        64, "Most messages of one query by key.", key="maxMsgsNumBatch", low=1, high=1000, changeable=True
    )

    # --- retention -----------------------------------------------------------------------------------
    delete_hours: str = option(
        "04", "Hours of the day at which old files are deleted, joined by semicolons.", key="deleteWhen",
        changeable=True, form=HOURS,
    )  # fmt: skip
    keep_hours: int = option(
        72, "How long messages are kept.", key="fileReservedTime", low=0, high=1_000_000, changeable=True
    )
    disk_percent_max: int = option(
        75, "Above this disk usage old files are deleted at any hour.", key="diskMaxUsedSpaceRatio", low=10,
        high=95, changeable=True,
    )  # fmt: skip
    disk_percent_force: int = option(
        85, "Above this, files are deleted before their time.", key="diskSpaceCleanForciblyRatio", low=30,
        high=85, changeable=True,
    )  # fmt: skip
    disk_percent_full: int = option(
        90, "Above this, messages are refused.", key="diskSpaceWarningLevelRatio", low=35, high=90,
        changeable=True,
    )  # fmt: skip
    disk_free_enough: int = option(
        0, "With this many bytes free a disk is neither filling nor full, whatever its share; 0: the share "
        "alone counts.", key="diskSpaceFreeEnough", low=0, high=1 << 50, changeable=True,
    )  # fmt: skip
    force_clean: bool = option(
        True, "Whether files may be deleted before their time when the disk fills.",
        key="cleanFileForciblyEnable", changeable=True,
    )  # fmt: skip
    clean_interval_ms: int = option(
        10_000,
        "How often disk and age are looked at.",
        key="cleanResourceInterval",
        low=1,
        high=HOUR_MS,
        changeable=True,
    )
    delete_pause_ms: int = option(
        100,
        "Pause between two deleted files.",
        key="deleteCommitLogFilesInterval",
        low=0,
        high=60_000,
        changeable=True,
    )
    delete_batch_max: int = option(
        10, "Most files deleted in one round.", key="deleteFileBatchMax", low=1, high=10_000, changeable=True
    )

    @property
    def multi_dispatch(self) -> bool:
        """Whether messages go into the light queues they name."""
        return self.light_queues and self.fill_light_queues

    @property
    def private_files(self) -> bool:
        """Whether only the owner of the store may read its files."""
        return False

    @property
    def queue_file_size(self) -> int:
        """A consume-queue file holds whole entries."""
        return -(-self.queue_file_bytes // 20) * 20
