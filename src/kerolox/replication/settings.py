"""What both ends of the connection between a leader and its followers are set by: options of the broker."""

from __future__ import annotations

from typing import Protocol


class HaSettings(Protocol):
    """RocketMQ's options whose keys begin with ``ha``, by our names. They may change at any time."""

    ha_heartbeat_ms: int  # something is said at least this often
    ha_silence_ms: int  # who says nothing for longer is gone
    ha_batch_bytes: int  # of the log, behind one head
    ha_limited: bool  # whether the next one holds
    ha_bytes_per_s: int  # to one follower


class InSyncSettings(Protocol):
    """What a leader under a controller goes by. They may change at any time."""

    ha_catch_up_ms: int  # haMaxTimeSlaveNotCatchup: who has lacked something for longer is not in sync
    all_ack: bool  # allAckInSyncStateSet: a message is acknowledged when all of the in-sync set have it
