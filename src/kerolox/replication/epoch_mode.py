"""State of leader and follower in a group with a controller, in addition to the log."""

from __future__ import annotations

from dataclasses import dataclass

from kerolox.replication.epoch_history import EpochHistory
from kerolox.replication.in_sync_set import InSyncSet


@dataclass
class EpochMode:
    """Shared by both roles of one broker. Without it they use the protocol of brokers without a
    controller."""

    history: EpochHistory
    in_sync: InSyncSet
    own_id: int = 0  # id of this broker in its group, permanent; set before it follows
    start: int | None = None  # number of this process; distinguishes processes with the same id
    is_learner: bool = False  # asyncLearner: this broker never joins the in-sync set
    from_last_file: bool = False  # syncFromLastFile: an empty log begins with the leader's last file

    def known_as(self, id: int) -> None:
        """Note the id that the controller gave this broker."""
        self.own_id = id
