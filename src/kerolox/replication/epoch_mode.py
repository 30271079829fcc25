"""What leader and follower need beside the log in a group with a controller."""

from __future__ import annotations

from dataclasses import dataclass

from kerolox.replication.epoch_history import EpochHistory
from kerolox.replication.in_sync_set import InSyncSet


@dataclass
class EpochMode:
    """Given to both ends of one broker. Without it they speak as brokers without a controller do."""

    history: EpochHistory
    in_sync: InSyncSet
    own_id: int = 0  # of this broker in its group, for the controller's lifetime; set before it follows
    start: int | None = None  # the number of this process, which tells it from another one with its id
    is_learner: bool = False  # asyncLearner: it is never in the in-sync set
    from_last_file: bool = False  # syncFromLastFile: with nothing here, begin with the leader's last file
