"""How a follower stands with its leader, in words: people ask when copies are missing."""

from __future__ import annotations

from enum import Enum

from kerolox.errors import KeroloxError, sentences


class LinkState(Enum):
    OFF = "this broker does not follow"
    NO_LEADER = "no leader is known"
    CONNECTING = "connecting to the leader"
    COMPARING = "comparing the end of the log with the leader's"
    COPYING = "copying what the leader writes"
    LOST = "no connection to the leader"
    DIVERGED = "the leader's log is another one"
    LEADER_BEHIND = "the leader has less than this follower"
    TOO_OLD = "the leader has deleted what this follower needs next"
    OTHER_FILE_SIZE = "the leader's log files have another size"
    NOT_WRITABLE = "the store of this follower takes nothing"
    NOT_A_LOG = "the leader sent what is no log"


COPY_ANEW = "to copy everything anew, stop this broker, move its store directory away and start it again"


class CannotFollow(KeroloxError):
    """Nothing is appended, for it would be wrong: what stands against it, with both sides' offsets and times,
    and what to do."""

    retriable = True  # the leader may be replaced

    def __init__(self, state: LinkState, what: str, *next_steps: str) -> None:
        self.state = state
        super().__init__(sentences(what, *next_steps))


class BeginAt(KeroloxError):
    """The leader's log begins there for a follower that has nothing: once more, from there."""

    retriable = True

    def __init__(self, offset: int) -> None:
        self.offset = offset
        super().__init__(f"the leader sends its log from {offset} on")
