"""The offset up to which the logs of a follower under a controller and of its leader agree.

The follower's log behind it was never confirmed and is truncated. Confirmed messages were acknowledged and
may have been read: a leader that lacks them was elected against the rules (an unclean election, a lost disk),
and they are not dropped without an operator's decision.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kerolox.protocol.ha_epochs import Epoch, Welcome
from kerolox.replication.epoch_history import common_end
from kerolox.replication.link_state import CannotFollow, LinkState
from kerolox.replication.overlap import when_stored
from kerolox.store.message_store import MessageStore

SHOWN = 5  # epochs shown of a list
ANEW = "give it an empty store directory; it then replicates the whole log"
ELECT = "make this broker the leader (`kerolox controller elect`) to keep those messages"


class Agreement(NamedTuple):
    """The offset up to which both logs agree, by their epochs."""

    end: int
    # this log has no epochs: take over the leader's once the bytes have been compared
    takes_epochs: bool = False


def agreement(store: MessageStore, own: Sequence[Epoch], leader: Welcome) -> Agreement:
    """Return the common part of both logs. Raises CannotFollow."""
    log = store.log
    low, end = log.min_offset, log.max_offset
    if low == end:
        return Agreement(end)
    if not own:
        # The log of a broker that had no controller before. (RocketMQ assumes without a check that it equals
        # the leader's.)
        found = Agreement(min(end, leader.end), takes_epochs=True)
    else:
        common = common_end(own, end, leader.epochs, leader.end)
        if common is None:
            raise CannotFollow(
                LinkState.DIVERGED,
                f"this log and the leader's have no epoch in common: {_shown(own)} here, "
                f"{_shown(leader.epochs)} there; this log ends at {end}, the leader's at {leader.end}",
                ANEW,
                f"if both brokers belong to one group, stop this broker, move {store.notes.epochs.path} away "
                "and start it: the logs are then compared by their bytes",
                resync=True,
            )
        found = Agreement(common)
    confirmed = store.progress.confirmed
    if found.end < confirmed:
        raise CannotFollow(
            LinkState.DIVERGED,
            f"the leader's log agrees with this one only up to {found.end}, but messages up to "
            f"{confirmed} are confirmed here, the last one stored {when_stored(log.last_store_timestamp)}: "
            f"the leader lost them, or was elected without them. Its log ends at {leader.end} in epoch "
            f"{leader.epochs[-1].number if leader.epochs else 'none'}",
            ELECT,
            resync=True,
        )
    if found.end < low:
        raise CannotFollow(
            LinkState.DIVERGED,
            f"the leader's log agrees with this one up to {found.end}, but this one begins at {low}: the "
            "common part was deleted here",
            ANEW,
            resync=True,
        )
    return found


def _shown(epochs: Sequence[Epoch]) -> str:
    words = [f"{epoch.number} from {epoch.start}" for epoch in epochs[-SHOWN:]]
    if len(epochs) > SHOWN:
        words.insert(0, f"{len(epochs) - SHOWN} older")
    return ", ".join(words) or "none"
