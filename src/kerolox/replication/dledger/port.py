"""The port of a DLedger member, and its connections to the others. Headers are JSON only: the codes are too
high for the binary kind."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import Any

from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.errors import KeroloxError, ProtocolError
from kerolox.front.handlers import Guard
from kerolox.front.lanes import Lane
from kerolox.front.needs import EVERYBODY
from kerolox.front.requests import Answer, Request
from kerolox.net.dialer import Dialer
from kerolox.net.handlers import RemotingHandlers
from kerolox.net.peer import Peer, PeerLimits
from kerolox.net.server import Server
from kerolox.net.signing import Credentials
from kerolox.net.tls import ClientTls, ServerTls
from kerolox.protocol.bodies.dledger import ANSWERED, LedgerCode, PushAnswer
from kerolox.protocol.command import Command, request
from kerolox.replication.dledger.group import LedgerGroup
from kerolox.replication.dledger.network import OnBytes
from kerolox.replication.dledger.settings import GroupSettings

REQUESTS_MAX = 256  # that wait at once for a disk, a vote or a majority; pushes are bounded on their own
IDLE_S_MAX = 120.0


class MemberRefused(KeroloxError):
    """A member answered with an error instead of an answer."""

    retriable = True


class PeerLine:
    """A connection to another member."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer

    @property
    def is_open(self) -> bool:
        return not self._peer.is_closed

    def ask(self, code: int, body: bytes, on_answer: OnBytes, timeout_s: float) -> None:
        def answered(answer: Command | Exception) -> None:
            on_answer(answer if isinstance(answer, Exception) else _body_of(answer))

        peer = self._peer
        peer.ask(request(code, None, body, opaque=peer.next_opaque()), answered, timeout_s)


class MemberNetwork:
    """Reaches members by their ids."""

    def __init__(
        self,
        settings: GroupSettings,
        clock: Clock = SYSTEM_CLOCK,
        *,
        tls: ClientTls | None = None,
        credentials: Credentials | None = None,
    ) -> None:
        self._settings = settings
        self._dialer = Dialer(
            clock=clock, limits=PeerLimits(idle_s_max=IDLE_S_MAX), tls=tls, credentials=credentials
        )

    async def line(self, peer: str) -> PeerLine:
        return PeerLine(await self._dialer.connect(self._settings.peers[peer], code=LedgerCode.PUSH))

    async def call(self, peer: str, code: int, body: bytes, timeout_s: float) -> bytes:
        answer = await self._dialer.call(self._settings.peers[peer], code, None, body, timeout_s=timeout_s)
        found = _body_of(answer)
        if isinstance(found, Exception):
            raise found
        return found

    async def close(self) -> None:
        await self._dialer.close()


class MemberPort:
    """Serves requests of other members and tools. ``bind`` first, ``start`` when the member exists."""

    def __init__(
        self,
        settings: GroupSettings,
        *,
        host: str = "0.0.0.0",
        clock: Clock = SYSTEM_CLOCK,
        tls: ServerTls = ServerTls(),
        guard: Guard | None = None,
    ) -> None:
        port = int(settings.peers[settings.self_id].rpartition(":")[2])  # 0: a free one
        self._group: LedgerGroup | None = None
        self._clock = clock
        # Heartbeats and pushes never wait in a lane. Votes do, for the disk.
        lane = Lane("ledger", running_max=REQUESTS_MAX, waiting_max=REQUESTS_MAX, clock=clock)
        handlers = RemotingHandlers(guard)
        for code in LedgerCode:
            handlers.add(code, self._push if code is LedgerCode.PUSH else self._other, None, lane, EVERYBODY)
        self._server = Server(
            handlers, host=host, port=port, limits=PeerLimits(idle_s_max=IDLE_S_MAX), tls=tls, clock=clock
        )

    @property
    def address(self) -> str:
        return self._server.address

    async def bind(self) -> None:
        """Take the port, or raise ListenFailed."""
        await self._server.bind()

    async def start(self, group: LedgerGroup) -> None:
        self._group = group
        await self._server.start()

    async def close(self) -> None:
        await self._server.close()

    def _push(self, asked: Request[Any]) -> Answer | None:
        assert self._group is not None

        def body(answer: PushAnswer) -> None:
            asked.answer(Answer(code=ANSWERED, body=answer.encode()))

        self._group.push(asked.body, body)
        return None

    def _other(self, asked: Request[Any]) -> Any:
        group = self._group
        assert group is not None
        if asked.code == LedgerCode.HEART_BEAT:
            return Answer(code=ANSWERED, body=group.beat(asked.body).encode())

        async def answer() -> Answer:
            return Answer(code=ANSWERED, body=(await group.answer(asked.code, asked.body)).encode())

        later: Coroutine[Any, Any, Answer] | Any = answer
        return later


def _body_of(answer: Command) -> bytes | KeroloxError:
    if answer.code != ANSWERED:
        return MemberRefused(f"answered {answer.code}: {answer.remark}")
    if not answer.body:
        return ProtocolError("answered without a body")
    return answer.body
