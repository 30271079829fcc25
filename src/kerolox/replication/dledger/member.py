"""State of a member: its role, its term, its vote, and the leader it knows. No I/O, no clock.

The term and the vote here are those on disk: they are written before they are changed here. The role is not
stored and changes at once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from enum import Enum

from kerolox.replication.dledger.settings import GroupSettings
from kerolox.replication.dledger.term_file import Promise
from kerolox.replication.dledger.votes import Voter

log = logging.getLogger(__name__)


class Role(Enum):
    CANDIDATE = "candidate"
    FOLLOWER = "follower"
    LEADER = "leader"


class Member:
    """One member of a group. A candidate at first."""

    def __init__(self, settings: GroupSettings, promise: Promise) -> None:
        self.settings = settings
        self.self_id = settings.self_id
        self.role = Role.CANDIDATE
        self.term = promise.term
        self.voted_for = promise.voted_for
        self.leader: str | None = None  # of this term, if it is known
        self.known_term = promise.term  # the highest that was heard of
        self.must_raise = False  # a higher term was seen: to be taken before anything is asked
        # The last round was lost; or this one may have led in its term before it was started anew, and a term
        # has one leader, with one log: after a loss of power this one may have less of it than others.
        self.wants_next_term = promise.voted_for == settings.self_id
        self.taking_term: int | None = None  # in which this one was asked to lead
        self.on_role: list[Callable[[], None]] = []  # told at once, in order, before anything else happens

    @property
    def promise(self) -> Promise:
        return Promise(self.term, self.voted_for)

    @property
    def role_name(self) -> str:
        return self.role.value

    @property
    def is_leader(self) -> bool:
        return self.role is Role.LEADER

    @property
    def is_follower(self) -> bool:
        return self.role is Role.FOLLOWER

    @property
    def is_candidate(self) -> bool:
        return self.role is Role.CANDIDATE

    def voter(self, end_index: int, end_term: int) -> Voter:
        return Voter(
            self.self_id,
            self.settings.peers,
            self.term,
            self.voted_for,
            self.leader,
            end_index,
            end_term,
            # Others are not made to wait for one that nobody prefers.
            self.taking_term is not None and self.self_id in self.settings.preferred,
        )

    # --- changes ------------------------------------------------------------------------------

    def follow(self, leader: str) -> None:
        """This one leads the term: it said so."""
        self.leader = leader
        self.wants_next_term = False
        self.taking_term = None
        self._become(Role.FOLLOWER, "heard")

    def campaign(self, why: str, term: int | None = None) -> None:
        """Be a candidate; with a term that is higher than the own, of that one."""
        self.leader = None
        if term is not None and term > self.term:
            self.known_term = max(self.known_term, term)
            self.must_raise = True
        self._become(Role.CANDIDATE, why)

    def lead(self) -> None:
        """A majority voted for this one."""
        self.leader = self.self_id
        self.taking_term = None
        self._become(Role.LEADER, "elected")

    @property
    def next_term(self) -> int:
        return self.known_term if self.known_term > self.term else self.term + 1

    def promised(self, promise: Promise) -> None:
        """This is on the disk now."""
        if promise.term > self.term:
            self.must_raise = self.known_term > promise.term
            self.wants_next_term = False
            self.leader = None
        grew = promise.term > self.term
        self.term, self.voted_for = promise
        self.known_term = max(self.known_term, self.term)
        if grew:  # whoever was followed meanwhile leads a term that is over
            self._become(Role.CANDIDATE, "the term grew")

    def _become(self, role: Role, why: str) -> None:
        if role is self.role:
            return
        log.info(
            "ledger_role group=%r id=%r role=%s was=%s term=%d leader=%r why=%r",
            self.settings.group, self.self_id, role.value, self.role.value, self.term, self.leader, why,
        )  # fmt: skip
        self.role = role
        for observer in self.on_role:
            observer()

    def __repr__(self) -> str:
        return (
            f"<{self.self_id} {self.role.value} term {self.term} voted {self.voted_for} leader {self.leader}>"
        )
