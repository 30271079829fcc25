"""What a handler sees, and what it gives back. Nothing here knows how either is carried."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from kerolox.protocol.header import Header
from kerolox.protocol.signature_v2 import CREDENTIAL_FIELDS

if TYPE_CHECKING:
    from kerolox.front.caller import Caller

H = TypeVar("H")
T = TypeVar("T", bound=Header)


class Answer(msgspec.Struct):
    """What a handler answers. ``body`` may come in parts, which are joined once when written."""

    code: int = 0
    header: Header | None = None
    body: bytes | Sequence[bytes] = b""
    remark: str | None = None

    @property
    def whole_body(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else b"".join(self.body)


class Ticket(Protocol):
    """What a door needs to write the answer of a request. Others read the members named here through the
    Request."""

    @property
    def is_one_way(self) -> bool: ...

    @property
    def fields(self) -> Mapping[str, str]: ...

    @property
    def remark(self) -> str | None: ...

    @property
    def version(self) -> int:
        """The release of who asks."""

    def header(self, cls: type[T], /) -> T:
        """The header, typed. Raises InvalidRequest when a needed field is missing or wrong."""


class Request(Generic[H]):
    """One request of a caller: its typed header and body, and the way to answer it later."""

    __slots__ = ("body", "caller", "code", "header", "identity", "received_s", "ticket")

    def __init__(
        self, caller: Caller, code: int, header: H, body: bytes, received_s: float, ticket: Ticket
    ) -> None:
        self.caller = caller
        self.code = code
        self.header = header
        self.body = body
        self.received_s = received_s
        self.ticket: Any = ticket  # the door's own: handlers never touch it
        self.identity: str | None = None  # the user that has signed it; None where nobody looks

    @property
    def is_one_way(self) -> bool:
        """Whether nobody waits for the answer."""
        return self.ticket.is_one_way  # type: ignore[no-any-return]

    @property
    def fields(self) -> Mapping[str, str]:
        """The header as text, with the fields that its type does not know."""
        return self.ticket.fields  # type: ignore[no-any-return]

    @property
    def fields_to_relay(self) -> dict[str, str]:
        """The fields without the credentials of who asks, for handlers that pass the request on: a signature
        is proof for whoever gets it."""
        return {name: value for name, value in self.fields.items() if name not in CREDENTIAL_FIELDS}

    @property
    def remark(self) -> str | None:
        """The remark of the caller, a text for people."""
        return self.ticket.remark  # type: ignore[no-any-return]

    def answer(self, answer: Answer) -> None:
        """Answer now or later, once. Nothing is sent for a one-way request or to a caller that is gone."""
        self.caller.answer(self, answer)


class HeldRequest(Request[H]):
    """A request that was held until there was something to answer."""

    __slots__ = ()

    @classmethod
    def of(cls, asked: Request[H]) -> HeldRequest[H]:
        held = cls(asked.caller, asked.code, asked.header, asked.body, asked.received_s, asked.ticket)
        held.identity = asked.identity
        return held


# A handler decides at once and returns its answer; or returns None and answers later (or never); or is
# a coroutine function, for work that has to wait. Plain functions run inside the read pass; one that finds
# that just this request has to wait returns a coroutine function, to be called when its turn has come.
Later = Callable[[], Coroutine[Any, Any, "Answer | None"]]
Handler = Callable[[Request[Any]], "Answer | Awaitable[Answer | None] | Later | None"]

# The requests that a part of a server serves: code, handler, type of the header.
Row = tuple[int, Handler, type[Header] | None]
