"""Calls to name servers: any of them for a question, all of them for a change."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.errors import (
    ConnectFailed,
    ConnectionLost,
    KeroloxError,
    OptionError,
    RequestFailed,
    RequestTimeout,
)

if TYPE_CHECKING:
    from kerolox.net.dialer import Dialer
    from kerolox.protocol.command import Command
    from kerolox.protocol.header import Header

STARTING_PAUSE_S = 0.2  # before a name server that has just started is asked again


def split_addresses(text: str) -> list[str]:
    """``a:1;b:2`` or ``a:1,b:2`` → the addresses. A scheme, as some environments have it, is dropped."""
    parts = (part.strip() for part in text.replace(",", ";").split(";"))
    addresses = [part.removeprefix("http://").rstrip("/") for part in parts if part]
    if not addresses:
        raise OptionError("--nameserver", text, "at least one host:port")
    return addresses


class NoNameServer(KeroloxError):
    """All were asked, none answered."""


class NameServers:
    """The name servers of one cluster."""

    def __init__(
        self, addresses: list[str], dialer: Dialer, timeout_s: float = 3.0, clock: Clock = SYSTEM_CLOCK
    ) -> None:
        self.addresses = addresses
        self._dialer = dialer
        self._timeout_s = timeout_s
        self._clock = clock

    async def ask(
        self,
        code: int,
        header: Header | None = None,
        body: bytes = b"",
        *,
        patient: bool = True,
        doubtful: bool = False,
    ) -> Command:
        """Ask them in turn until one answers, which is then the first to be asked. Raises a kind of
        RequestFailed when the answer is an error.

        Instead of a server that has just started, and knows nothing yet, another is asked; if all have, a
        ``patient`` caller waits for them as long as for any answer. ``doubtful``: the caller knows the topic,
        so one that does not know it has perhaps not heard of its broker yet, and the others are asked too.
        """
        from kerolox.client.errors import NameServerStarting  # not at the top: see _call

        deadline_s = self._clock.monotonic_s() + self._timeout_s
        while True:
            try:
                return await self._ask_in_turn(code, header, body, doubtful)
            except NameServerStarting:
                if not patient or self._clock.monotonic_s() >= deadline_s:
                    raise
                await self._clock.sleep(STARTING_PAUSE_S)

    def prefer_another(self) -> None:
        """The first one knows too little: it is asked last from now on."""
        self.addresses.append(self.addresses.pop(0))

    async def _ask_in_turn(self, code: int, header: Header | None, body: bytes, doubtful: bool) -> Command:
        from kerolox.client.errors import NameServerStarting
        from kerolox.protocol.codes import ResponseCode

        failures: list[str] = []
        ignorant: RequestFailed | None = None
        for address in list(self.addresses):
            try:
                answer = await self._call(address, code, header, body)
                if failures or ignorant is not None:
                    self.addresses.remove(address)
                    self.addresses.insert(0, address)
                return answer
            except (ConnectFailed, ConnectionLost, RequestTimeout) as error:
                if len(self.addresses) == 1:
                    raise
                failures.append(f"{address}: {error.__cause__ or error}")
            except RequestFailed as error:
                unknown = doubtful and error.response_code == ResponseCode.TOPIC_NOT_EXIST
                if not unknown and not isinstance(error, NameServerStarting):
                    raise
                ignorant = error
        if ignorant is not None:
            raise ignorant
        raise NoNameServer(f"no name server answered: {', '.join(failures)}. Is one running there?")

    def each(self) -> list[NameServers]:
        """Each of them alone: they do not know each other, and may answer differently."""
        return [NameServers([address], self._dialer, self._timeout_s) for address in self.addresses]

    async def tell_all(self, code: int, header: Header | None = None, body: bytes = b"") -> None:
        """They do not know each other: what changes one has to be told to each."""
        for address in self.addresses:
            await self._call(address, code, header, body)

    async def _call(self, address: str, code: int, header: Header | None, body: bytes) -> Command:
        from kerolox.client.errors import failure  # not at the top: the options of clients need this module

        answer = await self._dialer.call(address, code, header, body, timeout_s=self._timeout_s)
        if answer.code != 0:
            raise failure(answer, address=address, code=code)
        return answer
