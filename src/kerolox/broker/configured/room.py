"""Role that the settings give and operators change: the elector, role changes, and the start of a leader."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager

from kerolox.broker.base import Base
from kerolox.broker.configured.elections import ByNameServers
from kerolox.broker.configured.followers_progress import FollowersProgress
from kerolox.broker.configured.hand_back import HandBack
from kerolox.broker.configured.leader_start import LeaderStart
from kerolox.broker.configured.role_changes import RoleChanges
from kerolox.broker.configured.second_leader import SecondLeader
from kerolox.broker.fellows.room import Fellowship
from kerolox.broker.later.room import Scheduling
from kerolox.broker.nameservers.room import NameServers
from kerolox.broker.replication.room import Replication
from kerolox.broker.tables.room import Tables


class Configured:
    """Every broker has these parts. Under a controller, or in a DLedger group, only elections change the
    role, so there they do nothing."""

    def __init__(
        self,
        base: Base,
        tables: Tables,
        later: Scheduling,
        nameservers: NameServers,
        fellowship: Fellowship,
        replication: Replication,
        only_followers: Callable[[], AbstractAsyncContextManager[None]],
    ) -> None:
        fellows, follower, promotions = fellowship.fellows, replication.follower, tables.promotions
        progress = FollowersProgress(base, tables, later.timers)
        self.changes = RoleChanges(base, promotions, nameservers, follower, fellows, progress)
        self.leader_start = LeaderStart(
            base,
            promotions,
            fellows,
            HandBack(base, nameservers.members, progress, replication.leader),
            follower,
            only_followers,
        )
        self.elector = ByNameServers(
            base, nameservers.registrations, SecondLeader(base, promotions, fellows), follower
        )
