"""Connection to the leading controller. Only the leader answers the requests of brokers.

Every controller reports the leader. A controller that reports itself is contacted at the address by which it
was reached, since addresses that controllers report of each other may be valid only among them.
"""

from __future__ import annotations

import asyncio
import logging

from kerolox.broker.controlled.answer import ControllerAnswer
from kerolox.broker.options import BrokerOptions
from kerolox.clock import Clock
from kerolox.errors import KeroloxError, OptionError, RequestFailed
from kerolox.front.caller import Caller, CallerEvents
from kerolox.net.dialer import Dialer, split_address
from kerolox.observers import Observers
from kerolox.protocol.codes import RequestCode, ResponseCode, request_name
from kerolox.protocol.header import Header
from kerolox.protocol.headers.controller import ControllerMetadataAnswer

log = logging.getLogger(__name__)

ASK_S = 3.0
LOOK_UP_S = 120.0  # between two look-ups of a name
CONTROLLERS_MAX = 32


class NoController(KeroloxError):
    """No reachable controller leads."""

    retriable = True


def split_controllers(text: str) -> list[str]:
    """Split ``a:1;b:2`` into unique addresses. Raises OptionError."""
    found = list(dict.fromkeys(part.strip() for part in text.replace(",", ";").split(";") if part.strip()))
    if not 0 < len(found) <= CONTROLLERS_MAX:
        raise OptionError("controllerAddr", text, f"1 to {CONTROLLERS_MAX} addresses, joined by semicolons")
    for address in found:
        try:
            split_address(address)
        except KeroloxError:
            raise OptionError("controllerAddr", address, "host:port, or [ipv6]:port") from None
    return found


class Controllers(CallerEvents):
    """Client of the leading controller. ``on_lost`` is called when the connection to it is lost, or when it
    no longer leads.

    It has connections of its own, because their end is an event here, and at the controller: a leader that
    stops, and could not hand over, is replaced when they end.
    """

    def __init__(self, options: BrokerOptions, clock: Clock) -> None:
        self.addresses = split_controllers(options.controllers)
        self.leader = ""  # address of the leading controller; empty: unknown
        self.on_lost: Observers[[]] = Observers("controller lost")
        # called when the addresses have changed
        self.on_addresses: Observers[[]] = Observers("controllers changed")
        self._options = options
        self._clock = clock
        self._names = self.addresses if options.controllers_by_name else []
        self._looked_up_s: float | None = None
        self._found_s = clock.monotonic_s()  # time of the last answer that named the leader
        self._looking: asyncio.Task[None] | None = None
        self._reported = ""  # the last error
        self.dialer = Dialer(
            events=self, clock=clock, tls=options.own_tls, credentials=options.own_credentials
        )

    async def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()
            await asyncio.gather(self._looking, return_exceptions=True)
        await self.dialer.close()

    def look_around(self) -> None:
        """Ask all controllers for their leader, if that is due. Runs in the background."""
        due_s = self._found_s + self._options.controllers_check_ms / 1000
        if self.leader and self._looking is None and self._clock.monotonic_s() >= due_s:
            self._looking = asyncio.get_running_loop().create_task(self._look_around())

    async def _look_around(self) -> None:
        try:
            await self.find()
        except KeroloxError as error:
            self._found_s = self._clock.monotonic_s()
            log.debug("controllers_not_asked error=%r", str(error))
        finally:
            self._looking = None

    def closed(self, caller: Caller, reason: str, /) -> None:
        if self.leader and self.dialer.connected_peer(self.leader) is None:
            self.lost(self.leader, reason)

    def lost(self, address: str, why: str) -> None:
        """Note that the controller at this address does not lead, or cannot be reached."""
        if address == self.leader:
            log.info("controller_lost address=%r reason=%r", address, why)
            self.leader = ""
            self.on_lost()

    async def ask(
        self,
        code: RequestCode,
        header: Header | None = None,
        body: bytes = b"",
        *,
        also: tuple[int, ...] = (),
    ) -> ControllerAnswer:
        """Return the answer of the leading controller, with code 0 or one of ``also``. Raises RequestFailed
        for another code, NoController if none leads, or the error of the connection."""
        for last in (False, True):
            address = self.leader or await self.find()
            try:
                answer = await self.dialer.call(address, code, header, body, timeout_s=ASK_S)
            except KeroloxError as error:
                self.lost(address, str(error))
                raise
            if answer.code == ResponseCode.CONTROLLER_NOT_LEADER:
                self.lost(address, "it reports that it does not lead")
                if not last:
                    continue
            if answer.code in (ResponseCode.SUCCESS, *also):
                return answer
            raise RequestFailed(answer.code, answer.remark, address=address, request=request_name(code))
        raise AssertionError("not reached")

    async def find(self) -> str:
        """Return the address of the leading controller. Raises NoController."""
        await self._look_up()
        answers = await asyncio.gather(*[self._who_leads(address) for address in self.addresses])
        leaders = [found for found in answers if isinstance(found, str) and found]
        own = [found for found, address in zip(answers, self.addresses, strict=True) if found == address]
        found = next(iter(own or leaders), "")
        if not found:
            texts = "; ".join(f"{one}" for one in answers if isinstance(one, KeroloxError))
            raise NoController(
                f"none of the controllers {', '.join(self.addresses)} leads: "
                f"{texts or 'they have not elected a leader yet'}"
            )
        if found != self.leader:
            log.info("controller_found address=%r", found)
        self.leader = found
        self._found_s = self._clock.monotonic_s()
        return found

    async def _who_leads(self, address: str) -> str | KeroloxError:
        """Return the controller's own address if it leads, else the leader it reports; empty if it knows
        none."""
        try:
            answer = await self.dialer.call(
                address, RequestCode.CONTROLLER_GET_METADATA_INFO, timeout_s=ASK_S
            )
            if answer.code != ResponseCode.SUCCESS:
                request = RequestCode.CONTROLLER_GET_METADATA_INFO.name
                raise RequestFailed(answer.code, answer.remark, address=address, request=request)
            header = answer.header(ControllerMetadataAnswer)
        except KeroloxError as error:
            return error
        return address if header.is_leader else header.controller_leader_address or ""

    async def _look_up(self) -> None:
        """Look up the addresses of a name, at intervals."""
        now_s = self._clock.monotonic_s()
        if not self._names or (self._looked_up_s is not None and now_s - self._looked_up_s < LOOK_UP_S):
            return
        loop = asyncio.get_running_loop()
        found: list[str] = []
        for name in self._names:
            host, port = split_address(name)
            try:
                for *_, place in await loop.getaddrinfo(host, port, type=1):
                    ip = str(place[0])
                    found.append(f"[{ip}]:{port}" if ":" in ip else f"{ip}:{port}")
            except OSError as error:
                if str(error) != self._reported:
                    self._reported = str(error)
                    log.warning(
                        "controllers_not_looked_up name=%r error=%r next='retried'", name, self._reported
                    )
        found = list(dict.fromkeys(found))[:CONTROLLERS_MAX]
        if not found:
            return
        self._looked_up_s, self._reported = now_s, ""
        if set(found) != set(self.addresses):
            log.info("controllers_looked_up names=%r addresses=%r", self._names, found)
            self.addresses = found
            self.on_addresses()
