"""Concurrent sends: each is sent without waiting for the response to the previous one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from kerolox.client.calls.outgoing import Outgoing, Target
from kerolox.client.errors import NoRoute
from kerolox.client.messages import Receipt
from kerolox.errors import KeroloxError
from kerolox.protocol.codes import ResponseCode

if TYPE_CHECKING:
    from kerolox.client.calls.send_attempts import SendAttempt
    from kerolox.client.calls.sends import Publishing
    from kerolox.client.send.sending import Sender
    from kerolox.protocol.command import Command

_NOT_YET = KeroloxError("not sent")


class SendsInFlight:
    """Sends of one ``send_many``, with a limited number in flight."""

    def __init__(self, sender: Sender, timeout_s: float) -> None:
        self._sender = sender
        self._timeout_s = timeout_s
        self._window = sender.options.window
        self._bytes_max = 4 * sender.options.message_bytes_max
        self._in_flight = 0
        self._in_flight_bytes = 0
        self._waiter: asyncio.Future[None] | None = None
        self._low = 0  # number in flight at which the waiter is woken
        self.results: list[Receipt | Exception] = []
        self._retries: set[asyncio.Task[None]] = set()
        self._no_route: dict[str, NoRoute] = {}  # topics without a route after the wait: wait only once

    async def add(self, outgoing: Outgoing, choose: Callable[[Publishing, Outgoing], Target] | None) -> None:
        sender = self._sender
        place = len(self.results)
        self.results.append(_NOT_YET)
        try:
            publishing = sender.known(outgoing.topic)
            if publishing is None:
                if outgoing.topic in self._no_route:
                    raise self._no_route[outgoing.topic]
                publishing = await sender.publishing(outgoing.topic, self._timeout_s)
            if choose is None:
                pinned, target = None, publishing.next((), sender.health)
            else:
                pinned = target = choose(publishing, outgoing)
        except KeroloxError as error:
            if isinstance(error, NoRoute):
                self._no_route[outgoing.topic] = error
            self.results[place] = error
            return
        began_s = sender.client.clock.monotonic_s()
        self._in_flight += 1
        self._in_flight_bytes += len(outgoing.body)
        try:
            peer = sender.ready_peer(target.address)
            if peer is None:
                peer = await sender.peer(target.address, self._timeout_s, outgoing.code)
            if peer.stalled_since_s is not None:
                await sender.wait_for_room(peer, began_s + self._timeout_s)
            left_s = self._timeout_s - (sender.client.clock.monotonic_s() - began_s)
            arrived = partial(self._arrived, place, outgoing, target, pinned, began_s)
            sender.ask(peer, target, outgoing, arrived, left_s)
        except KeroloxError as error:
            self._failed(place, outgoing, target, pinned, began_s, error)
        if self._in_flight >= self._window or self._in_flight_bytes >= self._bytes_max:
            await self._fall_to(self._window // 2)

    async def finish(self) -> list[Receipt | Exception]:
        """Wait for all answers."""
        await self._fall_to(0)
        return self.results

    def give_up(self) -> None:
        """Cancel the retries, because the caller has stopped waiting."""
        for task in self._retries:
            task.cancel()

    async def _retry(
        self, place: int, outgoing: Outgoing, pinned: Target | None, attempt: SendAttempt
    ) -> None:
        try:
            self._done(place, outgoing, await self._sender.deliver(outgoing, pinned=pinned, attempt=attempt))
        except KeroloxError as failed:
            self._done(place, outgoing, failed)

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
        if not isinstance(answer, Exception) and answer.code == ResponseCode.GO_AWAY:
            peer = sender.ready_peer(target.address)
            if peer is not None:
                sender.client.retire(target.address, peer)
        took_s = sender.client.clock.monotonic_s() - began_s
        try:
            self._done(place, outgoing, sender.receipt(answer, target, outgoing, took_s))
        except KeroloxError as error:
            self._failed(place, outgoing, target, pinned, began_s, error)

    def _failed(
        self,
        place: int,
        outgoing: Outgoing,
        target: Target,
        pinned: Target | None,
        began_s: float,
        error: KeroloxError,
    ) -> None:
        sender = self._sender
        step = sender.failed(sender.attempt(outgoing, self._timeout_s, began_s, pinned), target, error)
        result = step.receipt or step.error
        if result is not None:
            self._done(place, outgoing, result)
            return
        # It still counts as in flight, so the window bounds the number of these tasks.
        task = sender.client.spawn(self._retry(place, outgoing, pinned, step.attempt))
        self._retries.add(task)
        task.add_done_callback(self._retries.discard)

    def _done(self, place: int, outgoing: Outgoing, result: Receipt | Exception) -> None:
        self.results[place] = result
        self._in_flight -= 1
        self._in_flight_bytes -= len(outgoing.body)
        waiter = self._waiter
        if waiter is not None and self._in_flight <= self._low:
            self._waiter = None
            if not waiter.done():
                waiter.set_result(None)
