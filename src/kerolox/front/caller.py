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
    """One that asks. It is there until it is closed, and only equal to itself: tables are kept by caller."""

    @property
    def address(self) -> str:
        """Where it is, as ``ip:port``."""

    @property
    def language(self) -> Language:
        """What it is written in, as its last request told."""

    @property
    def version(self) -> int:
        """The release it speaks as, as its last request told."""

    @property
    def identity(self) -> str | None:
        """Who it has proved to be; None for one that nobody has asked."""

    @property
    def data(self) -> dict[str, Any]:
        """What a role wants to remember of it."""

    @property
    def is_closed(self) -> bool:
        """Whether it is gone: nothing reaches it any more."""

    @property
    def is_stalled(self) -> bool:
        """Whether it does not take what it is told, for now."""

    async def call(
        self,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        timeout_s: float = 3.0,
        fields: dict[str, str] | None = None,
    ) -> Answer:
        """Ask it, and wait for its answer, whatever code that has. Its answers say all in code, remark and
        body: they have no header. ``fields`` go beside those of the header."""

    def tell(
        self,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        fields: dict[str, str] | None = None,
    ) -> None:
        """Tell it something: there will be no answer. Raises when it is gone."""

    def answer(self, asked: Request[Any], answer: Answer) -> None:
        """Answer a request of its own, now or later, once. Nothing happens when it is gone, or does not want
        to know."""

    def close(self, reason: str) -> None:
        """Have no more to do with it."""


class CallerEvents:
    """Told about callers that come and go. Override what you need."""

    def connected(self, caller: Caller, /) -> None: ...

    def closed(self, caller: Caller, reason: str, /) -> None: ...
