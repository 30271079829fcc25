"""Requests and answers as handlers see them, independent of the transport."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

import msgspec

from kerolox.protocol.codes import request_name
from kerolox.protocol.header import Header
from kerolox.protocol.signature_v2 import CREDENTIAL_FIELDS

if TYPE_CHECKING:
    from kerolox.front.caller import Caller

H = TypeVar("H")
T = TypeVar("T", bound=Header)


class Answer(msgspec.Struct):
    """A handler's answer. ``body`` may be a list of parts, which are joined when written."""

    code: int = 0
    header: Header | None = None
    body: bytes | Sequence[bytes] = b""
    remark: str | None = None
    reason: str = ""  # of a refusal, for metrics; it is not sent

    @property
    def whole_body(self) -> bytes:
        return self.body if isinstance(self.body, bytes) else b"".join(self.body)


class Ticket(Protocol):
    """A transport's data of a request, needed to write its answer. Other code reads the members named here
    through the Request."""

    @property
    def is_one_way(self) -> bool: ...

    @property
    def fields(self) -> Mapping[str, str]: ...

    @property
    def remark(self) -> str | None: ...

    @property
    def version(self) -> int:
        """The caller's release."""

    def header(self, cls: type[T], /) -> T:
        """Return the typed header. Raises InvalidRequest if a required field is missing or wrong."""


class Request(Generic[H]):
    """A caller's request: its typed header and body, and the means to answer it later."""

    __slots__ = ("body", "caller", "code", "header", "identity", "received_s", "ticket")

    def __init__(
        self, caller: Caller, code: int, header: H, body: bytes, received_s: float, ticket: Ticket
    ) -> None:
        self.caller = caller
        self.code = code
        self.header = header
        self.body = body
        self.received_s = received_s
        self.ticket: Any = ticket  # owned by the transport: handlers never use it
        self.identity: str | None = None  # the user that sent the request; None without authentication

    @property
    def name(self) -> str:
        """Name of the request, for logs and rejections."""
        return request_name(self.code)

    @property
    def is_one_way(self) -> bool:
        """True if the caller expects no answer."""
        return self.ticket.is_one_way  # type: ignore[no-any-return]

    @property
    def fields(self) -> Mapping[str, str]:
        """The header as text fields, including those that its type does not have."""
        return self.ticket.fields  # type: ignore[no-any-return]

    @property
    def fields_to_relay(self) -> dict[str, str]:
        """The fields without the caller's credentials, for handlers that forward the request: a receiver
        could use the signature."""
        return {name: value for name, value in self.fields.items() if name not in CREDENTIAL_FIELDS}

    @property
    def remark(self) -> str | None:
        """The caller's remark, a text for people."""
        return self.ticket.remark  # type: ignore[no-any-return]

    def answer(self, answer: Answer) -> None:
        """Answer now or later, exactly once. Nothing is sent for a one-way request or to a closed caller."""
        self.caller.answer(self, answer)


class HeldRequest(Request[H]):
    """A request that was held until an answer was available."""

    __slots__ = ()

    @classmethod
    def of(cls, asked: Request[H]) -> HeldRequest[H]:
        held = cls(asked.caller, asked.code, asked.header, asked.body, asked.received_s, asked.ticket)
        held.identity = asked.identity
        return held


# A handler returns its answer; or returns None and answers later (or never); or is a coroutine function, if
# it has to wait. Plain functions run inside the read pass; one that must wait for this particular request
# returns a coroutine function, which is run later in the request's lane.
Later = Callable[[], Coroutine[Any, Any, "Answer | None"]]
Handler = Callable[[Request[Any]], "Answer | Awaitable[Answer | None] | Later | None"]
