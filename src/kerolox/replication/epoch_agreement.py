"""Where the log of a follower under a controller goes on: what it has in common with its leader's.

What lies behind that place was never confirmed, and goes. Confirmed messages were acknowledged, and read: a
leader that lacks them was chosen against the rules (an unclean election, a lost disk), and they are not given
up without somebody saying so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kerolox.protocol.ha_epochs import Epoch, Welcome
from kerolox.replication.epoch_history import common_end
from kerolox.replication.link_state import CannotFollow, LinkState
from kerolox.replication.overlap import when_stored
from kerolox.store.message_store import MessageStore

SHOWN = 5  # epochs of a list in a text
ANEW = "give it an empty store directory: it copies all the leader has"
ELECT = "let this broker lead (`kerolox controller elect`) if those messages are to stay"


class Agreement(NamedTuple):
    """Both logs are the same up to ``end``, by their epochs."""

    end: int
    takes_epochs: bool = False  # there are none here: the leader's are taken when the bytes were found equal


def agreement(store: MessageStore, own: Sequence[Epoch], leader: Welcome) -> Agreement:
    """What the two have in common. Raises CannotFollow."""
    log = store.log
    low, end = log.min_offset, log.max_offset
    if low == end:
        return Agreement(end)
    if not own:
        # The log of a broker that had no controller until now. (RocketMQ takes it for the leader's, unseen.)
        found = Agreement(min(end, leader.end), takes_epochs=True)
    else:
        common = common_end(own, end, leader.epochs, leader.end)
        if common is None:
            raise CannotFollow(
                LinkState.DIVERGED,
                f"this log and the leader's have no epoch in common: {_shown(own)} here, "
                f"{_shown(leader.epochs)} there; this log ends at {end}, the leader's at {leader.end}",
                ANEW,
                f"if the two are of one group, stop this broker, move {store.epochs.path} away and start it: "
                "then their bytes are compared",
                resync=True,
            )
        found = Agreement(common)
    confirmed = store.progress.confirmed
    if found.end < confirmed:
        raise CannotFollow(
            LinkState.DIVERGED,
            f"the leader's log is the same as this one up to {found.end} only, and here messages up to "
            f"{confirmed} were confirmed, the last one stored {when_stored(log.last_store_timestamp)}: the "
            f"leader has lost them, or was elected without them. Its log ends at {leader.end} in epoch "
            f"{leader.epochs[-1].number if leader.epochs else 'none'}",
            ELECT,
            resync=True,
        )
    if found.end < low:
        raise CannotFollow(
            LinkState.DIVERGED,
            f"the leader's log is the same as this one up to {found.end}, and this one begins at {low}: what "
            "both had was deleted here",
            ANEW,
            resync=True,
        )
    return found


def _shown(epochs: Sequence[Epoch]) -> str:
    words = [f"{epoch.number} from {epoch.start}" for epoch in epochs[-SHOWN:]]
    if len(epochs) > SHOWN:
        words.insert(0, f"{len(epochs) - SHOWN} older")
    return ", ".join(words) or "none"
