"""Caller: who asks, whatever door it came through.

Handlers answer a caller, ask it in turn, and remember things of it. They never see what carries its requests:
a connection of the remoting port, a stream of another protocol, or a few objects in the same process.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    from kerolox.front.requests import Answer, Request
    from kerolox.protocol.codes import Language
    from kerolox.protocol.header import Header


@runtime_checkable
class Caller(Protocol):
    """A client or server that sends requests. It exists until it is closed, and is equal only to itself:
    tables use callers as keys."""

    @property
    def address(self) -> str:
        """The caller's address, as ``ip:port``."""

    @property
    def language(self) -> Language:
        """The programming language of the caller, as its last request told."""

    @property
    def version(self) -> int:
        """The release of the caller, as its last request told."""

    @property
    def data(self) -> dict[str, Any]:
        """What the parts of a server want to remember about the caller."""

    @property
    def is_closed(self) -> bool:
        """Whether the caller is gone: nothing reaches it any more."""

    @property
    def is_stalled(self) -> bool:
        """Whether the caller does not read what is sent to it, for now."""

    async def call(
        self,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout_s: float = 3.0,
        fields: dict[str, str] | None = None,
    ) -> Answer:
        """Send the caller a request and wait for its answer, whatever code the answer has. A caller answers
        with code, remark and body: such answers have no header. ``fields`` are sent beside those of the
        header."""

    def tell(
        self,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        fields: dict[str, str] | None = None,
    ) -> None:
        """Send the caller a one-way request: there will be no answer. Raises when the caller is gone."""

    def answer(self, asked: Request[Any], answer: Answer) -> None:
        """Answer a request of this caller, now or later, once. Nothing is sent when the caller is gone, or
        wants no answer."""

    def close(self, reason: str) -> None:
        """Close the connection to the caller."""


class CallerEvents:
    """Hears of callers that come and go. Override what you need."""

    def connected(self, caller: Caller, /) -> None: ...

    def closed(self, caller: Caller, reason: str, /) -> None: ...
