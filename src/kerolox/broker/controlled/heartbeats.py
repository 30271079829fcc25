"""Heartbeats to every controller, with the state of the log; any controller may lead next.

Each controller answers. The answer of the leading controller renews the lease, counted from the time the
heartbeat was sent. RocketMQ's brokers send heartbeats one way; its controllers answer any sender that asks.

A broker whose disk has failed cannot lead, and sends none, so that it is not elected.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any, NamedTuple

from kerolox.broker.base import Base
from kerolox.broker.controlled.answer import ControllerAnswer
from kerolox.broker.controlled.controllers import Controllers
from kerolox.broker.controlled.lease import Lease
from kerolox.broker.role.mastership import Mastership
from kerolox.errors import KeroloxError
from kerolox.observers import Observers
from kerolox.protocol.codes import RequestCode, ResponseCode
from kerolox.protocol.headers.controller import ControllerHeartbeatAnswer
from kerolox.protocol.headers.registration import BrokerHeartbeatRequest

log = logging.getLogger(__name__)


REFUSAL_LENGTH_MAX = 600  # of the reported reason


class LogState(NamedTuple):
    """State of a broker's log, by which the controller elects, and its knowledge of the group, by which a
    controller detects that its own state is an older copy."""

    epoch: int
    max_offset: int
    confirmed: int
    start: int  # the number of this process
    known: Mastership  # the newest one on this broker's disk
    leads: bool = False  # this process leads in that epoch
    kept: int | None = None  # of a leader: end of the confirmed and flushed log
    refusal: str | None = None  # of a follower: why it does not copy

    def report(self) -> dict[str, Any]:
        """Return the fields of a heartbeat or registration for this state."""
        known = self.known
        header: dict[str, Any] = {
            "epoch": self.epoch,
            "max_offset": self.max_offset,
            "confirm_offset": self.confirmed,
            "broker_start": self.start,
            "kept_offset": self.kept,
            "follower_refusal": None if self.refusal is None else self.refusal[:REFUSAL_LENGTH_MAX],
        }
        if known.epoch:
            header |= {
                "known_master_epoch": known.epoch,
                "known_master_id": known.id,
                "known_set_epoch": known.in_sync_epoch,
                "known_set": ";".join(map(str, sorted(known.in_sync))),
                "known_leads": self.leads,
            }
        return header


class Heartbeats:
    """Periodic heartbeats from :meth:`start` on. ``on_unknown`` is called when the leading controller does
    not know this broker, ``on_epoch`` with the epoch that it reports."""

    def __init__(
        self,
        base: Base,
        controllers: Controllers,
        lease: Lease,
        state: Callable[[], LogState | None],
    ) -> None:
        self.on_unknown: Observers[[]] = Observers("broker unknown to the controller")
        self.on_epoch: Observers[[int]] = Observers("epoch reported")
        self._controllers = controllers
        self._lease = lease
        self._options = base.options
        self._clock = base.clock
        self._address = base.endpoints.address
        self._state = state
        self._id = 0
        self._tasks: dict[str, asyncio.Task[None]] = {}
        controllers.on_addresses.append(self._to_all)

    def start(self, id: int) -> None:
        self._id = id
        self._to_all()

    async def close(self) -> None:
        tasks, self._tasks = list(self._tasks.values()), {}
        self._id = 0
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _to_all(self) -> None:
        """Run one task for each controller, so that none waits for another. The leading controller is
        included, even if only the others know its address."""
        if not self._id:
            return
        wanted = {*self._controllers.addresses, *filter(None, (self._controllers.leader,))}
        for address in self._tasks.keys() - wanted:
            self._tasks.pop(address).cancel()
        for address in sorted(wanted - self._tasks.keys()):
            self._tasks[address] = asyncio.get_running_loop().create_task(self._run(address))

    async def _run(self, address: str) -> None:
        while True:
            sent_s = self._clock.monotonic_s()
            state = self._state()
            try:
                if state is not None:
                    self._heard(address, await self._send(address, state), sent_s)
            except KeroloxError as error:
                self._controllers.lost(address, str(error))
            if self._controllers.leader not in self._tasks:
                self._to_all()
            took_s = self._clock.monotonic_s() - sent_s
            await self._clock.sleep(max(0.0, self._options.alive_ms / 1000 - took_s))

    async def _send(self, address: str, state: LogState) -> ControllerAnswer:
        options = self._options
        header = BrokerHeartbeatRequest(
            cluster_name=options.cluster,
            broker_addr=self._address,
            broker_name=options.broker_name,
            broker_id=self._id,
            heartbeat_timeout_mills=options.controller_silence_ms,
            election_priority=options.election_priority,
            **state.report(),
        )
        return await self._controllers.dialer.call(
            address, RequestCode.BROKER_HEARTBEAT, header, timeout_s=options.alive_timeout_ms / 1000
        )

    def _heard(self, address: str, answer: ControllerAnswer, sent_s: float) -> None:
        controllers = self._controllers
        header = answer.header(ControllerHeartbeatAnswer)
        leads = header.is_leader
        if leads is None:
            leads = address == controllers.leader
        if answer.code == ResponseCode.CONTROLLER_BROKER_NEED_TO_BE_REGISTERED and leads:
            self.on_unknown()
        elif answer.code == ResponseCode.SUCCESS and leads:
            self._lease.renew(sent_s)
            if header.master_epoch is not None:
                self.on_epoch(header.master_epoch)
        elif address == controllers.leader:
            controllers.lost(address, f"its answer to a heartbeat: {answer.code} {answer.remark}")
