"""A second door of a broker: callers in the same process, without a socket and without a frame."""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeVar

from kerolox.broker.broker import Broker
from kerolox.errors import ConnectionLost, InvalidRequest
from kerolox.front.proof import NoProof, Proof
from kerolox.front.requests import Answer, Request
from kerolox.protocol.codes import VERSION, Language
from kerolox.protocol.header import Header, encode_fields

H = TypeVar("H", bound=Header)


class Told(NamedTuple):
    """What a broker told or asked a caller."""

    code: int
    header: Any
    body: bytes
    fields: Mapping[str, str]


NOBODY = NoProof()


class Password(NoProof):
    """A user's name and password, for all requests of a caller."""

    def __init__(self, user: str, password: str) -> None:
        self.user = user
        self._password = password

    def holds(self, secret: str, /, *, any_release: bool = False) -> bool:
        return hmac.compare_digest(secret.encode(), self._password.encode())


class Known(NoProof):
    """A user whom the door knows already."""

    def __init__(self, user: str) -> None:
        self.user = user

    def holds(self, secret: str, /, *, any_release: bool = False) -> bool:
        return True


class DirectTicket:
    """Where the answer goes, and the header as it was given."""

    def __init__(self, header: Header | None, answered: asyncio.Future[Answer] | None) -> None:
        self.remark: str | None = None
        self.answered = answered
        self._header = header

    @property
    def is_one_way(self) -> bool:
        return self.answered is None

    @property
    def fields(self) -> Mapping[str, str]:
        return {} if self._header is None else encode_fields(self._header)

    def header(self, cls: type[H], /) -> H:
        if not isinstance(self._header, cls):
            raise InvalidRequest(f"the header is {self._header!r}, and has to be a {cls.__name__}")
        return self._header


class DirectCaller:
    """One caller. What it is told is kept in ``told``; what it is asked, ``reply`` answers."""

    def __init__(
        self, door: DirectDoor, address: str, language: Language, version: int, proof: Proof
    ) -> None:
        self.address = address
        self.language = language
        self.version = version
        self._proof = proof
        self.data: dict[str, Any] = {}
        self.is_closed = False
        self.is_stalled = False
        self.told: list[Told] = []
        self.reply: Callable[[Told], Answer] = lambda _: Answer()
        self._door = door

    # --- as the test uses it ------------------------------------------------------------------

    def begin(
        self, code: int, header: Header | None = None, body: bytes = b"", *, age_s: float = 0.0
    ) -> asyncio.Future[Answer]:
        """Ask the broker something, ``age_s`` ago; its answer comes when it comes."""
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._door.hand_in(self, code, body, DirectTicket(header, answered), age_s)
        return answered

    async def ask(
        self, code: int, header: Header | None = None, body: bytes = b"", *, age_s: float = 0.0
    ) -> Answer:
        return await asyncio.wait_for(self.begin(code, header, body, age_s=age_s), 10)

    def say(self, code: int, header: Header | None = None, body: bytes = b"") -> None:
        """The same, and nobody waits for the answer."""
        self._door.hand_in(self, code, body, DirectTicket(header, None), 0.0)

    def proof(self, asked: Request[Any]) -> Proof:
        return self._proof

    # --- as handlers use it -------------------------------------------------------------------

    def answer(self, asked: Request[Any], answer: Answer) -> None:
        self._door.answered(asked, answer)
        future = asked.ticket.answered
        if future is not None and not self.is_closed and not future.done():
            future.set_result(answer)

    async def call(
        self,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout_s: float = 3.0,
        fields: dict[str, str] | None = None,
    ) -> Answer:
        self.tell(code, header, body, fields=fields)
        return self.reply(self.told[-1])

    def tell(
        self,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        fields: dict[str, str] | None = None,
    ) -> None:
        if self.is_closed:
            raise ConnectionLost(self.address, "the caller has gone")
        self.told.append(Told(code, header, body, fields or {}))

    def close(self, reason: str) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._door.closed(self, reason)


class DirectDoor:
    """The door of one running broker."""

    def __init__(self, broker: Broker) -> None:
        self._broker = broker
        self._count = 0

    def caller(
        self, language: Language = Language.PYTHON, version: int = VERSION, *, proof: Proof = NOBODY
    ) -> DirectCaller:
        self._count += 1
        made = DirectCaller(self, f"10.9.8.7:{self._count}", language, version, proof)
        self._broker.connected(made)
        return made

    def hand_in(
        self, caller: DirectCaller, code: int, body: bytes, ticket: DirectTicket, age_s: float
    ) -> None:
        now_s = self._broker.clock.monotonic_s()
        handlers = self._broker.handlers
        handlers.handle(Request(caller, code, None, body, now_s - age_s, ticket), now_s)
        handlers.end_pass()

    def answered(self, asked: Request[Any], answer: Answer) -> None:
        if self._broker.handlers.answered is not None:
            self._broker.handlers.answered(asked, answer)

    def closed(self, caller: DirectCaller, reason: str) -> None:
        self._broker.closed(caller, reason)
