"""Asyncio calls to name servers: queries to any of them, changes to all of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, TypeVar

from kerolox.client.calls.nameservers import NameServerList
from kerolox.client.calls.retries import NAMESERVERS, Retries
from kerolox.client.calls.steps import Ask, Steps, awaited
from kerolox.client.errors import NameServerStarting
from kerolox.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from kerolox.net.dialer import Dialer
    from kerolox.protocol.command import Command
    from kerolox.protocol.header import Header

T = TypeVar("T")


class NameServers:
    """Name servers of one cluster."""

    def __init__(
        self, addresses: list[str], dialer: Dialer, timeout_s: float = 3.0, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.order = NameServerList(addresses)
        self._dialer = dialer
        self._timeout_s = timeout_s
        self._clock = clock

    @property
    def addresses(self) -> list[str]:
        """Addresses, in the order of requests."""
        return self.order.addresses

    async def ask(self, code: int, header: Header | None = None, body: bytes = b"") -> Command:
        """Ask any name server. Raises a subclass of RequestFailed for an error response."""
        return await self.patiently(lambda: self.order.ask(code, header, body))

    async def tell_all(self, code: int, header: Header | None = None, body: bytes = b"") -> None:
        """Send a change to every name server."""
        await self.follow(self.order.tell_all(code, header, body))

    async def patiently(self, steps: Callable[[], Steps[T]]) -> T:
        """Run steps, and retry until the timeout while all name servers have just started."""
        now_s = self._clock.monotonic_s
        retries = Retries(NAMESERVERS, now_s, deadline_s=now_s() + self._timeout_s)
        while True:
            try:
                return await self.follow(steps())
            except NameServerStarting as error:
                await self._clock.sleep(retries.pause_after(error))

    async def follow(self, steps: Steps[T]) -> T:
        """Run steps on the event loop, and return their result."""
        return await awaited(steps, self._call)

    def each(self) -> list[NameServers]:
        """Return each name server separately: they are independent and may answer differently."""
        return [NameServers([address], self._dialer, self._timeout_s) for address in self.addresses]

    async def _call(self, asked: Ask) -> Command:
        return await self._dialer.call(
            asked.address, asked.code, asked.header, asked.body, timeout_s=self._timeout_s
        )
