"""Incoming messages: sends, replies, recalls, retries."""

from __future__ import annotations

import os
import random

from kerolox.broker.base import Base, Room
from kerolox.broker.figures.room import Figures
from kerolox.broker.members.room import Membership
from kerolox.broker.produce.recalls import Recalls
from kerolox.broker.produce.replies import Replies
from kerolox.broker.produce.retries import Retries
from kerolox.broker.produce.sends import Sends
from kerolox.broker.tables.room import Tables
from kerolox.broker.transactions.transactions import Transactions
from kerolox.broker.write.room import WritePath
from kerolox.front.rows import Row, rows_of
from kerolox.protocol.message_id import UniqueKeys


class Producing(Room):
    def __init__(
        self,
        base: Base,
        tables: Tables,
        membership: Membership,
        figures: Figures,
        path: WritePath,
        transactions: Transactions,
    ) -> None:
        options, clock, store, topics = base.options, base.clock, base.store, tables.topics
        self.recalls = Recalls(store, base.leadership, path.intake, topics, options, clock)
        self.replies = Replies(
            store,
            path.admission,
            path.intake,
            topics,
            membership.members,
            options,
            clock,
            address=base.endpoints.address,
        )
        self.retries = Retries(
            store,
            path.admission,
            path.intake,
            path.delivery,
            topics,
            membership.groups,
            membership.queue_locks,
            figures.stats,
            options,
            base.endpoints,
            base.guard,
        )
        meters, host = figures.meters, store.log.store_host
        self.sends = Sends(
            path.intake,
            path.admission,
            topics,
            UniqueKeys(host[:-4], os.getpid(), random.getrandbits(32), clock.wall_ms),
            # Messages with too many attempts are redirected before they could become half messages.
            (self.retries.redirect, transactions.prepare),
            None if meters is None else meters.sent,
        )

    def rows(self) -> list[Row]:
        return rows_of(self.sends, self.retries, self.recalls, self.replies)
