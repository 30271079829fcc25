"""Transactions, connected to the statistics and meters that count them."""

from __future__ import annotations

from kerolox.broker.base import Base
from kerolox.broker.figures.room import Figures
from kerolox.broker.members.room import Membership
from kerolox.broker.tables.room import Tables
from kerolox.broker.transactions.transactions import Transactions
from kerolox.broker.write.outlet import Outlet
from kerolox.broker.write.room import WritePath


def transactions_of(
    base: Base,
    tables: Tables,
    membership: Membership,
    figures: Figures,
    path: WritePath,
    outlet: Outlet | None = None,
) -> Transactions:
    made = Transactions(
        base.store,
        base.leadership,
        base.endpoints,
        path.intake,
        path.delivery,
        membership.members,
        tables.topics,
        tables.offsets,
        tables.transaction_counts,
        base.options,
        base.clock,
        base.guard,
        outlet,
    )
    base.store.on_truncated.append(made.recent.truncated)
    made.endings.on_stored.append(figures.stats.stored)
    made.check_backs.on_read.append(figures.stats.served)
    tables.topics.on_removed.append(made.counts.forget_topic)
    figures.metrics.more.append(made.counts.metrics)
    return made
