"""Caller: the client or server that sent a request, independent of the transport.

Handlers answer a caller, send it requests, and keep data for it. They never see the transport: a connection
of the remoting port, a stream of another protocol, or objects in the same process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from kerolox.front.proof import Proof
    from kerolox.front.requests import Answer, Request
    from kerolox.protocol.codes import Language
    from kerolox.protocol.header import Header


@runtime_checkable
class Caller(Protocol):
    """A client or server that sends requests. It exists until it is closed, and equals only itself: tables
    use callers as keys."""

    @property
    def address(self) -> str:
        """The caller's address, as ``ip:port``."""

    @property
    def language(self) -> Language:
        """The caller's programming language, as in its last request."""

    @property
    def version(self) -> int:
        """The caller's RocketMQ release, as in its last request."""

    @property
    def data(self) -> dict[str, Any]:
        """Data that parts of a server keep for this caller."""

    @property
    def is_closed(self) -> bool:
        """True once the caller is gone; nothing can be sent to it."""

    @property
    def is_stalled(self) -> bool:
        """True while the caller does not read the data sent to it."""

    def proof(self, asked: Request[Any], /) -> Proof:
        """Return the identity that a request of this caller claims, with its proof. Called only where users
        are authenticated."""

    async def call(
        self,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout_s: float = 3.0,
        fields: dict[str, str] | None = None,
    ) -> Answer:
        """Send the caller a request and return its answer, whatever its code. Callers answer with code,
        remark and body, without a header. ``fields`` are sent in addition to those of the header."""

    def tell(
        self,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        fields: dict[str, str] | None = None,
    ) -> None:
        """Send the caller a one-way request. Raises if the caller is gone."""

    def answer(self, asked: Request[Any], answer: Answer) -> None:
        """Answer a request of this caller, now or later, exactly once. Nothing is sent if the caller is gone
        or the request is one-way."""

    def close(self, reason: str) -> None:
        """Close the connection to the caller."""


class CallerEvents:
    """Callbacks for callers that connect and close. Override as needed."""

    def connected(self, caller: Caller, /) -> None: ...

    def closed(self, caller: Caller, reason: str, /) -> None: ...
