"""How a follower stands with its leader, in words: people ask when copies are missing."""

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
    NOT_LET_IN = "the leader does not let this follower in"
    DIVERGED = "the leader's log is another one"
    LEADER_BEHIND = "the leader has less than this follower"
    TOO_OLD = "the leader has deleted what this follower needs next"
    OTHER_FILE_SIZE = "the leader's log files have another size"
    NOT_WRITABLE = "the store of this follower takes nothing"
    NOT_A_LOG = "the leader sent what is no log"


# It is not copied from the leader until somebody, or another leader, puts an end to it.
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
    """What to type at a follower's host so that it can go on, as it is typed."""
    return f"kerolox store resync {shlex.quote(store)} --leader {leader or 'HOST:PORT'}"


class CannotFollow(KeroloxError):
    """Nothing is appended, for it would be wrong: what stands against it, with both sides' offsets and times,
    and what to do. ``resync``: taking the log back to what both have would help."""

    retriable = True  # the leader may be replaced

    def __init__(self, state: LinkState, what: str, *next_steps: str, resync: bool = False) -> None:
        self.state = state
        self.resync = resync
        super().__init__(sentences(what, *next_steps))


class BeginAt(KeroloxError):
    """The leader's log begins there for a follower that has nothing: once more, from there."""

    retriable = True

    def __init__(self, offset: int) -> None:
        self.offset = offset
        super().__init__(f"the leader sends its log from {offset} on")


def not_writable(store: MessageStore, error: StoreError) -> CannotFollow:
    """The store takes nothing: until there is room again, or until the next start."""
    return CannotFollow(
        LinkState.NOT_WRITABLE,
        f"{str(error).rstrip('.')}; nothing is copied behind {store.log.max_offset}",
        "start this broker again when its disk is mended"
        if store.state.fenced
        else "it goes on by itself when the store takes messages again",
    )
