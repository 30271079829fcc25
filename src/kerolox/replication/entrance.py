"""The entrance of the port for followers, while access control is on: who copies the log reads every message.

Our followers prove who they are (:mod:`kerolox.protocol.ha_proof`). Apache's cannot: they are let in by the
address they come from, if the operator says so.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass

from kerolox.protocol.ha_proof import OPENING, LeadersProof, ProofRefused

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

ENTER_S_MAX = 5.0  # from the first byte to the proof
ENTERING_MAX = 64  # at once; for one more the longest under way is closed
REFUSE_AFTER_S = 0.5  # secrets are not guessed at the speed of the network


@dataclass(frozen=True)
class Trust:
    """Whom a leader trusts."""

    secret_of: Callable[[str], str | None]  # the secret of a user who may copy the log; None for others
    networks: tuple[Network, ...] = ()  # haTrustedAddresses

    def trusts(self, host: str) -> bool:
        """Whether everybody at this address may copy."""
        try:
            address = ipaddress.ip_address(host.strip("[]"))
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self.networks)


class Entrance:
    """One connection, until it is ``done``. ``rest`` is what came behind the proof."""

    def __init__(self, trust: Trust, host: str) -> None:
        self.done = False
        self.rest = b""
        self.name = ""  # of the user, if it was proved
        self.began = False  # to prove something
        self._is_trusted = trust.trusts(host)
        self._proof = LeadersProof(trust.secret_of)

    def feed(self, data: bytes) -> bytes:
        """What to answer. Raises ProofRefused."""
        if not self.began and not data.startswith(OPENING[:1]):
            if not self._is_trusted:
                raise ProofRefused("it does not prove who it is")
            self.done, self.rest = True, data
            return b""
        self.began = True
        answer = self._proof.feed(data)
        self.done, self.rest, self.name = self._proof.done, self._proof.rest, self._proof.name
        return answer


def parse_networks(text: str) -> tuple[Network, ...]:
    """Addresses and networks, joined by commas. Raises ValueError."""
    return tuple(ipaddress.ip_network(one.strip(), strict=False) for one in text.split(",") if one.strip())
