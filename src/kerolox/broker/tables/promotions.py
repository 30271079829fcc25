"""Number of promotions among the brokers of one name. Of two leaders, the one promoted last continues.

The number is the state version of the topic table. Under a controller it is the leader's epoch. Otherwise a
promotion sets it to one more than the largest number of the brokers of the name, and saves it before the
broker leads. Followers copy it with the table, and name servers reject the registration of a leader with a
smaller one (RocketMQ's since 5.0 too). Brokers of RocketMQ stay at 0 outside controller mode. Wall clocks
play no part.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kerolox.broker.tables.room import Tables

log = logging.getLogger(__name__)


class Promotions:
    """Promotion number of this broker."""

    def __init__(self, tables: Tables) -> None:
        self._tables = tables

    @property
    def number(self) -> int:
        """The promotion number of this broker, or of the leader whose tables it copied."""
        tables = self._tables
        return max(tables.topics.table.version.state_version, tables.groups.version.state_version)

    async def promote(self, others: Iterable[int], why: str) -> None:
        """Increase the number above those of the other brokers, because this one is going to lead. Raises
        NotSaved."""
        tables = self._tables
        number = max([self.number, *others]) + 1
        for table in (tables.topics.table, tables.groups):
            table.state_version = number
            table.bump()
        await tables.topic_saver.saved()
        await tables.group_saver.saved()
        log.info("promoted number=%d reason=%r", number, why)
