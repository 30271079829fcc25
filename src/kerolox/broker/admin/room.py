"""Administrative requests of tools, collected from the classes of this package."""

from __future__ import annotations

from kerolox.broker.admin.client_admin import ClientAdmin
from kerolox.broker.admin.group_admin import GroupAdmin, ProgressAdmin
from kerolox.broker.admin.topic_admin import TopicAdmin
from kerolox.broker.base import Base
from kerolox.broker.figures.room import Figures
from kerolox.broker.members.room import Membership
from kerolox.broker.nameservers.room import NameServers
from kerolox.broker.tables.room import Tables
from kerolox.front.rows import Row, rows_of


class Admin:
    """Administrative requests about topics, groups and clients, one part for each noun."""

    def __init__(
        self,
        base: Base,
        tables: Tables,
        membership: Membership,
        figures: Figures,
        nameservers: NameServers,
    ) -> None:
        stats = figures.stats
        self.topics = TopicAdmin(base, tables, membership, stats, nameservers.registrations)
        self.groups = GroupAdmin(base, tables, membership, stats)
        self.progress = ProgressAdmin(base, tables, membership, figures)
        self.clients = ClientAdmin(base, tables, membership)

    def rows(self) -> list[Row]:
        return rows_of(self.topics, self.groups, self.progress, self.clients)
