"""Messages whose invisible time the service extends while a push consumer works on them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Coroutine
from typing import Final

import msgspec

from kerolox.clock import Clock, TimerHandle
from kerolox.errors import KeroloxError
from kerolox.protocol.bodies.groups import GroupConfig
from kerolox.protocol.grpc.messages import Code
from kerolox.proxy.checks import Rejected
from kerolox.proxy.clients import Client, Visit
from kerolox.proxy.pops import Pops
from kerolox.proxy.receipts import Receipt
from kerolox.proxy.settings import pause_ms

log = logging.getLogger(__name__)

SCAN_S: Final = 5.0
AHEAD_MS: Final = 10_000  # extended when no more time than this is left
RENEWED_MS_MAX: Final = 10_800_000  # after the first pop; then the message becomes visible
FAILURES_MAX: Final = 3
CLEARED_MS: Final = 1_000  # invisible time of messages whose client is gone
_EXTENSIONS_MS: Final = tuple(60_000 * minutes for minutes in (1, 3, 5, 10, 30, 60))

Place = tuple[str, int, int]


class Renewal(msgspec.Struct):
    """One message that a client works on."""

    visit: Visit  # the call that received it, for whose user it is renewed
    group: str
    topic: str
    receipt: Receipt  # the current one
    first_ms: int  # of the first pop
    last_ms: int  # invisible time when it is renewed no more
    times: int = 0
    failures: int = 0
    is_changing: bool = False


class Renewals:
    """Messages of all clients, by client, group and place."""

    def __init__(self, pops: Pops, clock: Clock) -> None:
        self._pops = pops
        self._clock = clock
        self._of: dict[Client, dict[tuple[str, Place], Renewal]] = {}
        self._scan: TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self) -> None:
        self._scan = self._clock.beat(SCAN_S, self._renew_due)

    async def close(self) -> None:
        """Make all messages visible soon."""
        if self._scan is not None:
            self._scan.cancel()
        for client in list(self._of):
            self.gone(client)
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=2.0)

    def __len__(self) -> int:
        return sum(map(len, self._of.values()))

    def add(self, visit: Visit, config: GroupConfig, topic: str, receipt: Receipt, attempt: int) -> None:
        """Keep a message invisible until the client is done with it."""
        group = config.group_name
        popped_ms = receipt.handle.pop_time
        renewal = Renewal(visit, group, topic, receipt, popped_ms, pause_ms(config, attempt))
        self._of.setdefault(visit.client, {})[group, receipt.place] = renewal

    def take(self, client: Client, group: str, receipt: Receipt) -> Receipt:
        """End the renewal of a message and return its current receipt."""
        renewals = self._of.get(client)
        renewal = renewals.pop((group, receipt.place), None) if renewals else None
        if renewals is not None and not renewals:
            del self._of[client]
        return receipt if renewal is None else renewal.receipt

    def gone(self, client: Client) -> None:
        """Make the messages of a client visible soon."""
        for renewal in self._of.pop(client, {}).values():
            self._run(self._clear(client, renewal))

    def _run(self, work: Coroutine[object, object, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _clear(self, client: Client, renewal: Renewal) -> None:
        try:
            await self._pops.change(renewal.visit, renewal.group, renewal.topic, renewal.receipt, CLEARED_MS)
        except KeroloxError as error:  # it becomes visible when its time is over
            log.info("message_not_given_back client=%s error=%r", client.client_id, str(error))

    def _renew_due(self) -> None:
        now_ms = self._clock.wall_ms()
        for client, renewals in list(self._of.items()):
            for renewal in list(renewals.values()):
                handle = renewal.receipt.handle
                left_ms = handle.pop_time + handle.invisible_time - now_ms
                if left_ms <= AHEAD_MS and not renewal.is_changing:
                    renewal.is_changing = True
                    self._run(self._renew(client, renewal, now_ms))
        self._scan = self._clock.beat(SCAN_S, self._renew_due)

    async def _renew(self, client: Client, renewal: Renewal, now_ms: int) -> None:
        is_last = now_ms - renewal.first_ms > RENEWED_MS_MAX
        if is_last:
            invisible_ms = renewal.last_ms
        else:
            invisible_ms = _EXTENSIONS_MS[min(renewal.times, len(_EXTENSIONS_MS) - 1)]
        place = renewal.receipt.place
        try:
            renewal.receipt = await self._pops.change(
                renewal.visit, renewal.group, renewal.topic, renewal.receipt, invisible_ms
            )
            renewal.times += 1
            renewal.failures = 0
        except KeroloxError as error:
            renewal.failures += 1
            is_gone = isinstance(error, Rejected) and error.status is Code.INVALID_RECEIPT_HANDLE
            is_last = is_last or is_gone or renewal.failures >= FAILURES_MAX
            log.warning(
                "message_not_renewed client=%s group=%s failures=%d error=%r next=%r",
                client.client_id, renewal.group, renewal.failures, str(error),
                "the message is delivered again when its time is over" if is_last else "it is tried again",
            )  # fmt: skip
        finally:
            renewal.is_changing = False
        if is_last:
            self._of.get(client, {}).pop((renewal.group, place), None)
