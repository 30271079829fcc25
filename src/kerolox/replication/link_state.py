"""States of a follower's replication, as texts for operators."""

from __future__ import annotations

import shlex
from enum import Enum

from kerolox.errors import KeroloxError, sentences
from kerolox.store.errors import StoreError
from kerolox.store.message_store import MessageStore


class LinkState(Enum):
    OFF = "this broker does not follow"
    NO_LEADER = "no leader is known"
    CONNECTING = "connecting to the leader"
    COMPARING = "comparing the end of the log with the leader's"
    COPYING = "copying what the leader writes"
    LOST = "no connection to the leader"
    NOT_LET_IN = "the leader rejects this follower"
    DIVERGED = "the leader's log differs"
    LEADER_BEHIND = "the leader's log is shorter than this follower's"
    TOO_OLD = "the leader has deleted the part that this follower needs next"
    OTHER_FILE_SIZE = "the leader's log files have another size"
    NOT_WRITABLE = "the store of this follower is not writable"
    NOT_A_LOG = "the leader sent invalid log data"


# Nothing is replicated in these states until an operator acts or the leader changes.
REFUSED = frozenset(
    {
        LinkState.NOT_LET_IN,
        LinkState.DIVERGED,
        LinkState.LEADER_BEHIND,
        LinkState.TOO_OLD,
        LinkState.OTHER_FILE_SIZE,
        LinkState.NOT_WRITABLE,
        LinkState.NOT_A_LOG,
    }
)


def resync_command(store: str, leader: str) -> str:
    """Return the shell command that repairs a follower, to be run on its host."""
    return f"kerolox store resync {shlex.quote(store)} --leader {leader or 'HOST:PORT'}"


class CannotFollow(KeroloxError):
    """Replication is impossible without corrupting the log. The message has the offsets and times of both
    sides, and the next steps. ``resync``: truncating the log to the common part would help."""

    retriable = True  # the leader may be replaced

    def __init__(self, state: LinkState, what: str, *next_steps: str, resync: bool = False) -> None:
        self.state = state
        self.resync = resync
        super().__init__(sentences(what, *next_steps))


class BeginAt(KeroloxError):
    """The leader's log begins at `offset` for an empty follower: reconnect and start there."""

    retriable = True

    def __init__(self, offset: int) -> None:
        self.offset = offset
        super().__init__(f"the leader sends its log from {offset} on")


def not_writable(store: MessageStore, error: StoreError) -> CannotFollow:
    """Return the error for a store that rejects writes, until it has room again or the broker restarts."""
    return CannotFollow(
        LinkState.NOT_WRITABLE,
        f"{str(error).rstrip('.')}; nothing is replicated behind {store.log.max_offset}",
        "restart this broker when its disk is repaired"
        if store.state.fenced
        else "replication continues automatically when the store accepts messages again",
    )
