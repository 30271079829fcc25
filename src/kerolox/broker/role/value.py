"""The role of a broker as one frozen value, kept and replaced by :mod:`kerolox.broker.role.leadership`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from kerolox.broker.options import BrokerRole
from kerolox.broker.role.mastership import NONE_YET, Mastership


class LeaderAddress(NamedTuple):
    """Addresses of the leader."""

    address: str
    ha_address: str  # replication address; empty if unknown


@dataclass(frozen=True, slots=True)
class Role:
    """Role of a broker. ``name`` is SLAVE for every broker that does not lead."""

    name: BrokerRole = BrokerRole.SLAVE
    follower_id: int = 0  # id of this broker while it follows; leaders have 0
    mastership: Mastership = NONE_YET  # the election that gave the role; without elections epoch 0
    leader: LeaderAddress | None = None  # the leader, if it is another broker; None: unknown
    returning: LeaderAddress | None = None  # it announced that it will lead; it serves followers only
    acts: bool = False  # this follower does a leader's other work, while there is no leader
    is_decided: bool = True  # False before the first election
    why: str = ""  # reason why this broker does not lead, for clients
    leads: bool = field(init=False)  # asked with every send, so it is computed once

    def __post_init__(self) -> None:
        object.__setattr__(self, "leads", self.name is not BrokerRole.SLAVE)

    @property
    def epoch(self) -> int:
        return self.mastership.epoch

    @property
    def serves(self) -> bool:
        """True if consumers are served here: the broker leads, or acts for a leader."""
        return self.leads or self.acts

    @property
    def id(self) -> int:
        """Id of this broker among the brokers of its name."""
        return 0 if self.leads else self.follower_id

    @property
    def waits_for(self) -> str:
        """Reason why the broker has no role yet; empty: it has one."""
        return "" if self.is_decided else self.why
