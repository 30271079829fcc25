"""What a follower asks its leader beside what it copies: requests that any RocketMQ broker answers."""

from __future__ import annotations

from typing import NamedTuple

from kerolox.errors import KeroloxError, RequestFailed
from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.routes import KVTable
from kerolox.protocol.bodies.stats import HaStatus
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.command import Command
from kerolox.protocol.header import Header
from kerolox.protocol.headers.query import ViewMessageRequest

TIMEOUT_S = 5.0
# What a leader of ours tells of its port for followers, and of itself; RocketMQ's has none of these.
HA_PROOF = "haProof"
HA_TLS = "haTls"
HA_PROCESS = "haProcess"
HA_PROMOTION = "haPromotion"


class LogRange(NamedTuple):
    """Where a log begins and ends."""

    low: int
    end: int
    wants_proof: bool = False  # of who follows: ha_proof.py
    speaks_tls: bool = False  # on its port for followers
    hears_process: bool = False  # the number of the process that follows
    promotion: int | None = None  # the number of its promotion; None: it does not say


class LeaderQuestions:
    def __init__(self, dialer: Dialer, address: str) -> None:
        self.address = address
        self._dialer = dialer

    async def log_range(self) -> LogRange:
        """Where the leader's log begins and ends. Raises when it does not say."""
        answer = await self._ask(RequestCode.GET_BROKER_RUNTIME_INFO)
        table = KVTable.decode(answer.body).table
        try:
            return LogRange(
                int(table["commitLogMinOffset"]),
                int(table["commitLogMaxOffset"]),
                wants_proof=table.get(HA_PROOF) == "true",
                speaks_tls=table.get(HA_TLS) == "true",
                hears_process=table.get(HA_PROCESS) == "true",
                promotion=int(table[HA_PROMOTION]) if HA_PROMOTION in table else None,
            )
        except (KeyError, ValueError):
            raise KeroloxError(
                f"the leader at {self.address} does not say where its log begins and ends"
            ) from None

    async def end(self) -> int:
        """Where its log ends: asked often, and cheaper than its range. Raises when it does not say, or does
        not lead."""
        status = HaStatus.decode((await self._ask(RequestCode.GET_BROKER_HA_STATUS)).body)
        if not status.master:
            raise KeroloxError(f"the broker at {self.address} does not lead")
        return status.master_commit_log_max_offset

    async def record_at(self, offset: int) -> bytes:
        """The record that begins there, as it is stored."""
        return (await self._ask(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequest(offset=offset))).body

    async def _ask(self, code: RequestCode, header: Header | None = None) -> Command:
        answer = await self._dialer.call(self.address, code, header, timeout_s=TIMEOUT_S)
        if answer.code != ResponseCode.SUCCESS:
            raise RequestFailed(answer.code, answer.remark, address=self.address, request=code.name)
        return answer
