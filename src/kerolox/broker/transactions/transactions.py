"""Transactions: messages that consumers get only if their producer commits them. See docs/RELIABILITY.md."""

from __future__ import annotations

from kerolox.access.guard import Guard
from kerolox.broker.endpoints import Endpoints
from kerolox.broker.members.members import Members
from kerolox.broker.options import BrokerOptions
from kerolox.broker.role.leadership import Leadership
from kerolox.broker.tables.topics import Topics
from kerolox.broker.transactions import half_messages
from kerolox.broker.transactions.check_backs import CheckBacks
from kerolox.broker.transactions.counts import Counts
from kerolox.broker.transactions.end_transaction import EndTransaction
from kerolox.broker.transactions.finished_half_messages import FinishedHalfMessages
from kerolox.broker.transactions.half_messages import Home
from kerolox.broker.transactions.recent_half_messages import RecentHalfMessages
from kerolox.broker.write.delivery import Delivery
from kerolox.broker.write.intake import Intake
from kerolox.broker.write.outlet import Outlet
from kerolox.broker.write.pending_message import OnParked, PendingMessage
from kerolox.clock import Clock
from kerolox.errors import Refused
from kerolox.front.requests import Request
from kerolox.front.rows import Row, rows_of
from kerolox.protocol.codes import ResponseCode
from kerolox.protocol.headers.send import SendRequest
from kerolox.store.log.commit_log import Place
from kerolox.store.message_store import MessageStore
from kerolox.store.tables.offsets import ConsumerOffsets
from kerolox.store.tables.transaction_counts import TransactionCounts


class Transactions:
    """Parts of transactions, and their shared state."""

    def __init__(
        self,
        store: MessageStore,
        leadership: Leadership,
        endpoints: Endpoints,
        intake: Intake,
        delivery: Delivery,
        members: Members,
        topics: Topics,
        offsets: ConsumerOffsets,
        table: TransactionCounts,
        options: BrokerOptions,
        clock: Clock,
        guard: Guard,
        outlet: Outlet | None = None,
    ) -> None:
        self._options = options
        self._endpoints = endpoints
        self._home: Home = "", 0, b""  # topic, queue and properties of the half message being stored
        # Additional properties of all messages make the stored half message differ from the one in memory.
        self._remembers = not options.record_crc and not options.multi_dispatch
        self.counts = Counts(table)
        self.recent = RecentHalfMessages(intake, self.counts)
        self.finished = FinishedHalfMessages(store, intake, offsets, options, clock)
        self.endings = EndTransaction(
            store,
            leadership,
            intake,
            delivery,
            self.finished,
            self.recent,
            self.counts,
            options,
            clock,
            guard,
        )
        self.check_backs = CheckBacks(
            store, intake, self.finished, self.counts, members, topics, options, clock, guard, outlet
        )

    async def lead(self) -> None:
        """Read the finished half messages, and start to check the others."""
        self.recent.clear()
        await self.finished.load()
        self.check_backs.start()

    async def act(self) -> None:
        """Do the same for an acting follower: open half messages are moved to another broker."""
        await self.finished.load(may_write=False)
        self.check_backs.start(moves=True)

    async def follow(self) -> None:
        await self.check_backs.close()
        await self.endings.settled()
        self.finished.close()

    def rows(self) -> list[Row]:
        return rows_of(self.endings)

    def prepare(self, request: Request[SendRequest], pending: PendingMessage) -> OnParked | None:
        """Turn a message into a half message if it asks for that. A rewrite of sends."""
        if not half_messages.is_half(pending):
            return None
        if self._options.reject_transactions:
            raise Refused(
                ResponseCode.NO_PERMISSION,
                f"the broker[{self._endpoints.host}] sending transaction message is forbidden",
            )
        self._home = half_messages.park(pending)
        return self._parked

    def _parked(self, pending: PendingMessage, place: Place) -> None:
        """Remember a half message that sends have just appended."""
        home = self._home
        half = half_messages.just_parked(pending, home, place) if self._remembers else None
        self.recent.add(home[0], half, place[2])
