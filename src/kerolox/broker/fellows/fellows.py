"""The other brokers of this broker's name: their registrations, the leader, and the ends of their logs."""

from __future__ import annotations

from typing import NamedTuple

from kerolox.broker.base import Base
from kerolox.broker.copies.remote_tables import RemoteTables
from kerolox.broker.nameservers.group_members import GroupMembers
from kerolox.errors import KeroloxError
from kerolox.protocol.bodies.routes import KVTable
from kerolox.protocol.bodies.stats import HaStatus
from kerolox.protocol.codes import RequestCode

ASK_S = 3.0


class AnotherLeads(KeroloxError):
    """A broker must not lead while another broker of its name leads."""


class OtherLeader(NamedTuple):
    """Another leader of this broker's name."""

    address: str
    promotion: int
    end: int  # end of its log
    is_ours: bool  # RocketMQ's brokers do not number promotions

    def precedes(self, promotion: int, end: int, address: str) -> bool:
        """True if a leader with these values must give way to this one. The last promotion counts. Without
        promotions, as with two brokers given the same name, the longer log counts."""
        if not self.is_ours:
            return self.promotion > promotion
        return (self.promotion, self.end, self.address) > (promotion, end, address)


class Fellows:
    def __init__(self, base: Base, members: GroupMembers) -> None:
        self.nameservers = members.nameservers
        self._dialer = base.dialer
        self._members = members
        self._options = base.options
        self._own_address = base.endpoints.address

    async def registered(self) -> set[tuple[int, str]] | None:
        """Return ids and addresses of the others, merged from all name servers. None if no name server
        answers."""
        answered = await self._members.ask_all()
        if not answered:
            return None
        return {(id, at) for members in answered for id, at in members.items() if at != self._own_address}

    async def leads(self, address: str) -> bool | None:
        """Return whether the broker at this address leads. None if it does not answer."""
        try:
            answer = await self._dialer.call(address, RequestCode.GET_BROKER_HA_STATUS, timeout_s=ASK_S)
            # RocketMQ 4 does not know the request. But the broker is alive, and is registered as the leader.
            return answer.code != 0 or HaStatus.decode(answer.body).master
        except KeroloxError:
            return None

    async def end(self, address: str) -> int | None:
        """Return the end of the log of the broker at this address. None if it does not report it."""
        try:
            answer = await self._dialer.call(address, RequestCode.GET_BROKER_RUNTIME_INFO, timeout_s=ASK_S)
            return int(KVTable.decode(answer.body).table["commitLogMaxOffset"])
        except (KeroloxError, KeyError, ValueError):
            return None

    async def leaders_at(self, nameserver: str) -> list[str]:
        """Return the other brokers registered there as leaders."""
        members = await self._members.ask(nameserver, ASK_S) or {}
        return [address for id, address in members.items() if id == 0 and address != self._own_address]

    async def leader(self, address: str) -> OtherLeader | None:
        """Return the broker at this address if it reports that it leads. RocketMQ 4 does not know the
        request."""
        try:
            answer = await self._dialer.call(address, RequestCode.GET_BROKER_HA_STATUS, timeout_s=ASK_S)
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
        """Return the promotion number of the broker at this address. None if it does not report it."""
        try:
            version = await RemoteTables(self._dialer, address).topics_version()
        except KeroloxError:
            return None
        return version.state_version

    async def refuse_second_leader(self, store: str, own_promotion: int) -> None:
        """Raise AnotherLeads if another broker of the name leads already. Called before this broker leads."""
        for id, address in sorted(await self.registered() or ()):
            if id == 0 and await self.leads(address):
                raise self.another_leads(address, store, own_promotion, await self.promotion(address) or 0)

    def another_leads(self, address: str, store: str, own: int, others: int) -> AnotherLeads:
        """``own`` and ``others`` are promotion numbers."""
        if own > others:
            return AnotherLeads(
                f"broker {self._options.broker_name} does not lead: {address} leads under this name, but "
                f"this broker was promoted after it (promotion {own} here, {others} there), so this one has "
                f"the newer messages. Do not discard its log. Stop {address}, start this broker, and make "
                f"{address} its follower"
            )
        return AnotherLeads(
            f"broker {self._options.broker_name} does not lead: {address} leads under this name. Each of two "
            "leaders would accept messages that the other never gets. If that broker was promoted while this "
            f"one was away, make this one a follower: kerolox store resync {store} --leader {address}, then "
            "set brokerRole=SLAVE and an unused brokerId above 0, and start it. To lead with this one, stop "
            "the other one first. If they are unrelated, give one of them another brokerName"
        )
