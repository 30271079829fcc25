"""A follower's requests to its leader beside replication; any RocketMQ broker answers them."""

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
# Fields of a kerolox leader's runtime information about its port for followers and itself; RocketMQ's leaders
# have none of these.
HA_PROOF = "haProof"
HA_TLS = "haTls"
HA_PROCESS = "haProcess"
HA_PROMOTION = "haPromotion"


class LogRange(NamedTuple):
    """The range of a log, with properties of its broker."""

    low: int
    end: int
    wants_proof: bool = False  # requires followers to authenticate: ha_proof.py
    speaks_tls: bool = False  # on its port for followers
    hears_process: bool = False  # supports the number of the follower's process
    promotion: int | None = None  # number of its promotion; None: not sent


class LeaderQuestions:
    def __init__(self, dialer: Dialer, address: str) -> None:
        self.address = address
        self._dialer = dialer

    async def log_range(self) -> LogRange:
        """Return the range of the leader's log. Raises if the leader does not send it."""
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
            raise KeroloxError(f"the leader at {self.address} does not report the range of its log") from None

    async def end(self) -> int:
        """Return the end of the leader's log, which is cheaper than its range. Raises if the broker does not
        send it or does not lead."""
        status = HaStatus.decode((await self._ask(RequestCode.GET_BROKER_HA_STATUS)).body)
        if not status.master:
            raise KeroloxError(f"the broker at {self.address} does not lead")
        return status.master_commit_log_max_offset

    async def record_at(self, offset: int) -> bytes:
        """Return the stored record that begins at an offset."""
        return (await self._ask(RequestCode.VIEW_MESSAGE_BY_ID, ViewMessageRequest(offset=offset))).body

    async def _ask(self, code: RequestCode, header: Header | None = None) -> Command:
        answer = await self._dialer.call(self.address, code, header, timeout_s=TIMEOUT_S)
        if answer.code != ResponseCode.SUCCESS:
            raise RequestFailed(answer.code, answer.remark, address=self.address, request=code.name)
        return answer
