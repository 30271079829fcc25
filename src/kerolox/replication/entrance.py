"""Authentication on the port for followers, with access control on: a follower can read every message.

kerolox followers prove their identity (:mod:`kerolox.protocol.ha_proof`). Apache's cannot: they are accepted
by source address, if the operator allows it.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable
from dataclasses import dataclass

from kerolox.protocol.ha_proof import OPENING, LeadersProof, ProofRefused

Network = ipaddress.IPv4Network | ipaddress.IPv6Network

ENTER_S_MAX = 5.0  # from the connection to the proof
ENTERING_MAX = 64  # at once; beyond it the oldest unfinished connection is closed
REFUSE_AFTER_S = 0.5  # delay of rejections: prevents guessing secrets at network speed


@dataclass(frozen=True)
class Trust:
    """The followers that a leader trusts."""

    # returns the secret of a user who may replicate the log; None for others
    secret_of: Callable[[str], str | None]
    networks: tuple[Network, ...] = ()  # haTrustedAddresses

    def trusts(self, host: str) -> bool:
        """Return whether followers at this address may replicate without a proof."""
        try:
            address = ipaddress.ip_address(host.strip("[]"))
        except ValueError:
            return False
        if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
            address = address.ipv4_mapped
        return any(address in network for network in self.networks)


class Entrance:
    """Authentication of one connection, until it is ``done``. ``rest`` contains the bytes after the proof."""

    def __init__(self, trust: Trust, host: str) -> None:
        self.done = False
        self.rest = b""
        self.name = ""  # of the user, once proved
        self.began = False  # true once the follower has begun a proof
        self._is_trusted = trust.trusts(host)
        self._proof = LeadersProof(trust.secret_of)

    def feed(self, data: bytes) -> bytes:
        """Return the bytes to answer. Raises ProofRefused."""
        if not self.began and not data.startswith(OPENING[:1]):
            if not self._is_trusted:
                raise ProofRefused("the follower did not authenticate")
            self.done, self.rest = True, data
            return b""
        self.began = True
        answer = self._proof.feed(data)
        self.done, self.rest, self.name = self._proof.done, self._proof.rest, self._proof.name
        return answer


def parse_networks(text: str) -> tuple[Network, ...]:
    """Parse addresses and networks, separated by commas. Raises ValueError."""
    return tuple(ipaddress.ip_network(one.strip(), strict=False) for one in text.split(",") if one.strip())
