"""The other brokers of this broker's name: who of them is registered, leads, and has how much of the log."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import NamedTuple

from kerolox.broker.cluster.group_members import GroupMembers
from kerolox.broker.cluster.remote_tables import RemoteTables
from kerolox.broker.options import BrokerOptions
from kerolox.errors import KeroloxError
from kerolox.net.dialer import Dialer
from kerolox.protocol.bodies.routes import KVTable
from kerolox.protocol.bodies.stats import HaStatus
from kerolox.protocol.codes import RequestCode

ASK_S = 3.0


class AnotherLeads(KeroloxError):
    """A broker is not to lead beside another one."""


class OtherLeader(NamedTuple):
    """Another broker of the name, that leads."""

    address: str
    promotion: int
    end: int  # of its log
    is_ours: bool  # RocketMQ's brokers do not number promotions

    def precedes(self, promotion: int, end: int, address: str) -> bool:
        """Whether a leader with these values gives way to this one: the last promotion counts. If nobody was
        promoted, as of two brokers that were given one name, the longer log counts."""
        if not self.is_ours:
            return self.promotion > promotion
        return (self.promotion, self.end, self.address) > (promotion, end, address)


class Fellows:
    def __init__(
        self,
        dialer: Dialer,
        nameservers: Iterable[str],
        options: BrokerOptions,
        own_address: str,
        *,
        old: set[str] | None = None,
    ) -> None:
        self.nameservers = list(nameservers)
        self.dialer = dialer
        self._members = GroupMembers(dialer, options, old)
        self._options = options
        self._own_address = own_address

    async def registered(self) -> set[tuple[int, str]] | None:
        """Id and address of the others, as all name servers together say; None when none of them answers."""
        found = await asyncio.gather(*[self._members.ask(server, ASK_S) for server in self.nameservers])
        told = [members for members in found if members is not None]
        if not told:
            return None
        return {(id, at) for members in told for id, at in members.items() if at != self._own_address}

    async def leads(self, address: str) -> bool | None:
        """Whether the broker there leads; None when nobody answers."""
        try:
            answer = await self.dialer.call(address, RequestCode.GET_BROKER_HA_STATUS, timeout_s=ASK_S)
            # RocketMQ 4 does not know the question: but it lives, and is registered as the leader.
            return answer.code != 0 or HaStatus.decode(answer.body).master
        except KeroloxError:
            return None

    async def end(self, address: str) -> int | None:
        """Where the log of the broker there ends; None when it does not say."""
        try:
            answer = await self.dialer.call(address, RequestCode.GET_BROKER_RUNTIME_INFO, timeout_s=ASK_S)
            return int(KVTable.decode(answer.body).table["commitLogMaxOffset"])
        except (KeroloxError, KeyError, ValueError):
            return None

    async def leaders_at(self, nameserver: str) -> list[str]:
        """Who else is registered there as the leader."""
        members = await self._members.ask(nameserver, ASK_S) or {}
        return [address for id, address in members.items() if id == 0 and address != self._own_address]

    async def leader(self, address: str) -> OtherLeader | None:
        """The broker there, if it leads and says so; RocketMQ 4 does not know the question."""
        try:
            answer = await self.dialer.call(address, RequestCode.GET_BROKER_HA_STATUS, timeout_s=ASK_S)
            status = HaStatus.decode(answer.body) if answer.code == 0 else HaStatus()
        except KeroloxError:
            return None
        number = await self.promotion(address)
        if not status.master or number is None:
            return None
        return OtherLeader(
            address, number, status.master_commit_log_max_offset, is_ours=status.leads_since is not None
        )

    async def promotion(self, address: str) -> int | None:
        """The promotion number of the broker there; None when it does not say."""
        try:
            version = await RemoteTables(self.dialer, address).topics_version()
        except KeroloxError:
            return None
        return version.state_version

    async def refuse_second_leader(self, store: str, own_promotion: int) -> None:
        """Raises AnotherLeads if this broker, which is about to lead, is not the only one."""
        for id, address in sorted(await self.registered() or ()):
            if id == 0 and await self.leads(address):
                raise self.another_leads(address, store, own_promotion, await self.promotion(address) or 0)

    def another_leads(self, address: str, store: str, own: int, others: int) -> AnotherLeads:
        """``own`` and ``others`` are the numbers of promotions."""
        if own > others:
            return AnotherLeads(
                f"broker {self._options.broker_name} does not lead: {address} leads under this name, and "
                f"this broker was promoted after it (promotion {own} here, {others} there), so this one has "
                f"the newer messages. Do not put its log aside. Stop {address}, start this broker, and let "
                f"{address} follow it"
            )
        return AnotherLeads(
            f"broker {self._options.broker_name} does not lead: {address} leads under this name. With two "
            "leaders each would take messages the other never gets. If that one was promoted while this one "
            f"was away, let this one follow: kerolox store resync {store} --leader {address}, then set "
            "brokerRole=SLAVE and a brokerId above 0 that is free, and start it. If this one is to lead, "
            "stop the other one first; if the two have nothing in common, give one of them another brokerName"
        )
