"""How often the brokers of one name were promoted: of two that lead, the one that was promoted last goes on.

The number is the state version of the topic table. Under a controller it is the leader's epoch. Otherwise a
promotion makes it one larger than any that the brokers of the name have, and saves it before the broker
leads. It travels with the table: followers copy it, and name servers refuse the registration of a leader with
a smaller one (RocketMQ's since 5.0 too). Brokers of RocketMQ stay at 0 outside controller mode. The clocks of
the hosts play no part.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable

from kerolox.broker.tables.room import Tables

log = logging.getLogger(__name__)


class Promotions:
    """The number of this broker."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    @property
    def number(self) -> int:
        """The promotion of this broker, or of the leader whose tables it copied."""
        tables = self._tables
        return max(tables.topics.table.version.state_version, tables.groups.version.state_version)

    async def promote(self, others: Iterable[int], why: str) -> None:
        """This broker is to lead instead of those with these numbers. Raises NotSaved."""
        tables = self._tables
        number = max([self.number, *others]) + 1
        for table in (tables.topics.table, tables.groups):
            table.state_version = number
            table.bump()
        await tables.topic_saver.saved()
        await tables.group_saver.saved()
        log.info("promoted number=%d reason=%r", number, why)
