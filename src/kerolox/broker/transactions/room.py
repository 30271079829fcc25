"""Transactions."""

from __future__ import annotations

from kerolox.broker.base import Base
from kerolox.broker.members.room import Membership
from kerolox.broker.tables.room import Tables
from kerolox.broker.transactions.transactions import Transactions
from kerolox.broker.write.room import WritePath


def transactions_of(
    base: Base,
    tables: Tables,
    membership: Membership,
    path: WritePath,
) -> Transactions:
    return Transactions(
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
        path.outlet,
    )
