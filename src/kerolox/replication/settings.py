"""Settings of leader and followers: options of the broker."""

from __future__ import annotations

from typing import Protocol


class HaSettings(Protocol):
    """RocketMQ's options whose keys begin with ``ha``, by kerolox names. They may change at run time."""

    ha_heartbeat_ms: int  # maximum interval between two frames
    ha_silence_ms: int  # a peer that is silent for longer is disconnected
    ha_batch_bytes: int  # maximum size of a range
    ha_limited: bool  # whether ha_bytes_per_s applies
    ha_bytes_per_s: int  # per follower


class InSyncSettings(Protocol):
    """Options of a leader under a controller. They may change at run time."""

    # haMaxTimeSlaveNotCatchup: a replica that lags for longer is removed from the in-sync set
    ha_catch_up_ms: int
    all_ack: bool  # allAckInSyncStateSet: a message is acknowledged once the whole in-sync set has it
