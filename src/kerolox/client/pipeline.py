"""Many sends under way together: each goes out without waiting for the answer to the one before."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from kerolox.client.errors import failure, may_try_again
from kerolox.client.messages import Receipt
from kerolox.client.outgoing import Outgoing, Target
from kerolox.errors import KeroloxError, RequestTimeout
from kerolox.protocol.codes import STORED_CODES, request_name

if TYPE_CHECKING:
    from kerolox.client.sending import Publishing, Sender
    from kerolox.protocol.command import Command

RETRIES_AT_ONCE = 64

_NOT_YET = KeroloxError("not sent")


class Pipeline:
    """Sends under way together."""

    def __init__(self, sender: Sender, timeout_s: float) -> None:
        self._sender = sender
        self._timeout_s = timeout_s
        self._window = sender.options.window
        self._bytes_max = 4 * sender.options.message_bytes_max
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self.results: list[Receipt | Exception] = []
        # Place → what is to be sent again, and where it was tied to.
        self._again: dict[int, tuple[Outgoing, Target, Target | None, Exception]] = {}

    async def add(self, outgoing: Outgoing, pin: Callable[[Publishing, Outgoing], Target] | None) -> None:
        sender = self._sender
        place = len(self.results)
        self.results.append(_NOT_YET)
        try:
            publishing = sender.known(outgoing.topic)
            if publishing is None:
                publishing = await sender.publishing(outgoing.topic, self._timeout_s)
            if pin is None:
                pinned, target = None, publishing.next((), sender.health)
            else:
                pinned = target = pin(publishing, outgoing)
        except KeroloxError as error:
            self.results[place] = error
            return
        try:
            peer = sender.ready_peer(target.address)
            if peer is None:
                peer = await sender.peer(target.address, self._timeout_s, outgoing.code)
            if peer.stalled_since_s is not None:
                await sender.wait_for_room(peer, sender.client.clock.monotonic_s() + self._timeout_s)
            began_s = sender.client.clock.monotonic_s()
            sender.ask(
                peer,
                target,
                outgoing,
                partial(self._arrived, place, outgoing, target, pinned, began_s),
                self._timeout_s,
            )
        except KeroloxError as error:
            self._failed(place, outgoing, target, pinned, error)
            return
        self._in_flight += 1
        self._in_flight_bytes += len(outgoing.body)
        if self._in_flight >= self._window or self._in_flight_bytes >= self._bytes_max:
            await self._fall_to(self._window // 2)

    async def finish(self) -> list[Receipt | Exception]:
        await self._fall_to(0)
        again = list(self._again.items())
        for start in range(0, len(again), RETRIES_AT_ONCE):
            await asyncio.gather(*(self._retry(*item) for item in again[start : start + RETRIES_AT_ONCE]))
        return self.results

    async def _retry(self, place: int, what: tuple[Outgoing, Target, Target | None, Exception]) -> None:
        outgoing, target, pinned, error = what
        tried = [(target.queue.broker, error)]
        try:
            self.results[place] = await self._sender.deliver(
                outgoing, self._timeout_s, pinned=pinned, tried=tried
            )
        except KeroloxError as failed:
            self.results[place] = failed

    async def _fall_to(self, low: int) -> None:
        while self._in_flight > low or (low and self._in_flight_bytes >= self._bytes_max):
            self._waiter = asyncio.get_running_loop().create_future()
            self._low = low
            await self._waiter

    def _arrived(
        self,
        place: int,
        outgoing: Outgoing,
        target: Target,
        pinned: Target | None,
        began_s: float,
        answer: Command | Exception,
    ) -> None:
        sender = self._sender
        self._in_flight -= 1
        self._in_flight_bytes -= len(outgoing.body)
        if isinstance(answer, Exception):
            if isinstance(answer, RequestTimeout):
                answer = RequestTimeout(target.address, request_name(outgoing.code), self._timeout_s)
            self._failed(place, outgoing, target, pinned, answer)
        elif answer.code in STORED_CODES:
            try:
                self.results[place] = target.receipt(answer, outgoing)
            except KeroloxError as error:
                self.results[place] = error
            if sender.options.avoid_slow_brokers:
                sender.health.answered(target.queue.broker, sender.client.clock.monotonic_s() - began_s)
        else:
            self._failed(
                place, outgoing, target, pinned, failure(answer, address=target.address, code=outgoing.code)
            )
        waiter = self._waiter
        if waiter is not None and self._in_flight <= self._low:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)

    def _failed(
        self, place: int, outgoing: Outgoing, target: Target, pinned: Target | None, error: Exception
    ) -> None:
        self._sender.note_failure(target, error)
        if may_try_again(error, pinned=pinned is not None) and not isinstance(error, RequestTimeout):
            self._again[place] = (outgoing, target, pinned, error)
        else:
            self.results[place] = error
