"""The broker of this process as the service's backend: requests reach the handlers without a socket."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from kerolox.access.guard import Guard, NotKnown
from kerolox.access.needs import names
from kerolox.access.needs.nameserver import ROUTE
from kerolox.broker.members.groups import Groups
from kerolox.broker.role.leadership import Leadership
from kerolox.broker.tables.topics import Topics
from kerolox.clock import Clock
from kerolox.errors import ConnectionLost, InvalidRequest, RequestTimeout
from kerolox.front.caller import CallerEvents
from kerolox.front.handlers import Handlers
from kerolox.front.needs import Need, Rule, View
from kerolox.front.proof import Proof
from kerolox.front.refusals import Refusal
from kerolox.front.requests import Answer, Request
from kerolox.protocol.bodies.groups import GroupConfig
from kerolox.protocol.codes import VERSION, Language, RequestCode, request_name
from kerolox.protocol.header import Header, encode_fields
from kerolox.protocol.headers.pop import PollingInfoRequest
from kerolox.protocol.headers.route import RouteRequest
from kerolox.proxy.backend import BrokerQueues, Door, Visitor

H = TypeVar("H", bound=Header)


def _sending(asked: Request[RouteRequest], view: View) -> Iterator[Need]:
    yield from names.sending(asked.header.topic, view)


def _consuming(asked: Request[PollingInfoRequest], view: View) -> Iterator[Need]:
    header = asked.header
    yield names.group(header.consumer_group, names.SUB)
    if header.topic:
        yield from names.topic(header.topic, names.SUB, view, header.consumer_group)


# Rights that calls need, whatever requests follow from them.
SENDING = Rule(_sending)
CONSUMING = Rule(_consuming)
MESSAGE_TYPE = "message.type"


class LocalTicket:
    """A request of a client: its header as it is, the proof of its user, and where the answer goes."""

    __slots__ = ("_header", "answered", "proof", "remark")

    def __init__(self, header: Header | None, proof: Proof, answered: asyncio.Future[Answer] | None) -> None:
        self.remark: str | None = None
        self.proof = proof
        self.answered = answered
        self._header = header

    @property
    def is_one_way(self) -> bool:
        return self.answered is None

    @property
    def version(self) -> int:
        return VERSION

    @property
    def fields(self) -> Mapping[str, str]:
        return {} if self._header is None else encode_fields(self._header)

    def header(self, cls: type[H], /) -> H:
        if not isinstance(self._header, cls):
            raise InvalidRequest(f"the header is a {type(self._header).__name__}, expected {cls.__name__}")
        return self._header


class LocalLink:
    """A client of the service as a caller of the broker."""

    def __init__(self, backend: LocalBackend, visitor: Visitor) -> None:
        self.data: dict[str, Any] = {}
        self.is_closed = False
        self.is_stalled = False
        self.version = VERSION
        self._backend = backend
        self._visitor = visitor

    @property
    def address(self) -> str:
        return self._visitor.address

    @property
    def language(self) -> Language:
        return self._visitor.language

    # --- for the service ---------------------------------------------------------------------------

    async def ask(
        self, broker_name: str, code: int, header: Header | None, body: bytes, proof: Proof, timeout_s: float
    ) -> Answer:
        """See :class:`kerolox.proxy.backend.Link`. This broker is the only one, whatever its name."""
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        self._backend.hand_in(self, code, body, LocalTicket(header, proof, answered))
        if answered.done():
            return answered.result()
        try:
            async with asyncio.timeout(timeout_s):
                return await answered
        except TimeoutError:
            raise RequestTimeout(self._backend.name, request_name(code), timeout_s) from None

    async def ask_all(self, code: int, header: Header | None, body: bytes, proof: Proof) -> list[Answer]:
        return [await self.ask("", code, header, body, proof, 5.0)]

    async def check_seeing(self, topic: str, proof: Proof) -> Answer | None:
        return self._check(RequestCode.GET_ROUTEINFO_BY_TOPIC, RouteRequest(topic=topic), proof, ROUTE)

    async def check_sending(self, topic: str, proof: Proof) -> Answer | None:
        return self._check(RequestCode.SEND_MESSAGE_V2, RouteRequest(topic=topic), proof, SENDING)

    async def check_consuming(self, group: str, topic: str, proof: Proof) -> Answer | None:
        header = PollingInfoRequest(consumer_group=group, topic=topic, queue_id=-1)
        return self._check(RequestCode.POP_MESSAGE, header, proof, CONSUMING)

    def _check(self, code: int, header: Header, proof: Proof, rule: Rule) -> Answer | None:
        return self._backend.check(self, code, header, proof, rule)

    def close(self, reason: str) -> None:
        if not self.is_closed:
            self.is_closed = True
            self._backend.closed(self, reason)

    # --- for handlers; see :class:`kerolox.front.caller.Caller` ---------------------------------------

    def proof(self, asked: Request[Any], /) -> Proof:
        proof: Proof = asked.ticket.proof
        return proof

    def answer(self, asked: Request[Any], answer: Answer) -> None:
        self._backend.answered(asked, answer)
        future = asked.ticket.answered
        if future is not None and not future.done():
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
        self._check_open()
        return await self._visitor.asked(code, header, body)

    def tell(
        self,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        fields: dict[str, str] | None = None,
    ) -> None:
        self._check_open()
        self._visitor.told(self._backend.name, code, header, body)

    def _check_open(self) -> None:
        if self.is_closed:
            raise ConnectionLost(self.address, "the client has left")

    def __repr__(self) -> str:
        return f"<gRPC client {self.address}>"


class Entrance:
    """The caller of a call whose user is not known yet: its connection."""

    def __init__(self, door: Door) -> None:
        self.data: dict[str, Any] = {}
        self.address = door.address
        self.is_closed = False
        self.is_stalled = False
        self.version = VERSION
        self.language = Language.OTHER
        self.close = door.close

    def proof(self, asked: Request[Any], /) -> Proof:
        proof: Proof = asked.ticket.proof
        return proof

    def answer(self, asked: Request[Any], answer: Answer) -> None:
        future = asked.ticket.answered
        if not future.done():
            future.set_result(answer)

    async def call(self, code: int, *_: object, **__: object) -> Answer:
        raise ConnectionLost(self.address, "the caller is not known yet")

    def tell(self, code: int, *_: object, **__: object) -> None:
        raise ConnectionLost(self.address, "the caller is not known yet")


class LocalBackend:
    """The broker of this process."""

    def __init__(
        self,
        *,
        name: str,
        host: str,
        leadership: Leadership,
        topics: Topics,
        groups: Groups,
        handlers: Handlers,
        guard: Guard,
        events: CallerEvents,
        clock: Clock,
        is_serving: Callable[[], bool],
    ) -> None:
        self.name = name
        self._host = host
        self._leadership = leadership
        self._topics = topics
        self._groups = groups
        self._handlers = handlers
        self._guard = guard
        self._events = events
        self._clock = clock
        self._is_serving = is_serving

    # --- see :class:`kerolox.proxy.backend.Backend` -----------------------------------------------------

    @property
    def is_serving(self) -> bool:
        return self._is_serving()

    async def queues(self, topic: str) -> list[BrokerQueues] | None:
        config = self._topics.find(topic)
        if config is None:
            return None
        return [
            BrokerQueues(
                broker_name=self.name,
                broker_id=self._leadership.id,
                host=self._host,
                permission=config.perm,
                read_queues=config.read_queue_nums,
                write_queues=config.write_queue_nums,
                message_type=config.attributes.get(MESSAGE_TYPE, ""),
            )
        ]

    async def group(self, name: str) -> GroupConfig | None:
        return self._groups.find(name)

    async def admit(self, door: Door, code: int, proof: Proof) -> str | Answer | None:
        if not self._guard.wants_signatures:
            return None
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        now_s = self._clock.monotonic_s()
        asked: Request[Any] = Request(
            Entrance(door), code, None, b"", now_s, LocalTicket(None, proof, answered)
        )
        return asked.identity if self._guard.admits(asked) else await answered

    def link(self, visitor: Visitor) -> LocalLink:
        made = LocalLink(self, visitor)
        self._events.connected(made)
        return made

    # --- for links -----------------------------------------------------------------------------------

    def hand_in(self, link: LocalLink, code: int, body: bytes, ticket: LocalTicket) -> None:
        """Bring a request to its handler."""
        now_s = self._clock.monotonic_s()
        self._handlers.handle(Request(link, code, None, body, now_s, ticket), now_s)
        self._handlers.end_pass()

    def check(self, link: LocalLink, code: int, header: Header, proof: Proof, rule: Rule) -> Answer | None:
        """Return the guard's rejection of a call, before anything of it is looked up."""
        if not self._guard.wants_signatures:
            return None
        answered: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        ticket = LocalTicket(header, proof, answered)
        asked: Request[Any] = Request(link, code, header, b"", self._clock.monotonic_s(), ticket)
        if self._guard.admits(asked) and self._guard.allows(asked, rule):
            return None
        # The user was known a moment ago: a rejection that comes late, or never, must not let the call pass.
        return answered.result() if answered.done() else Refusal.of(NotKnown("the user has changed")).answer()

    def answered(self, asked: Request[Any], answer: Answer) -> None:
        if self._handlers.answered is not None:
            self._handlers.answered(asked, answer)

    def closed(self, link: LocalLink, reason: str) -> None:
        self._events.closed(link, reason)
