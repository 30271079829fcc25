"""Members and timeouts of a DLedger group. All members have the same settings; the member list never
changes."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from kerolox.errors import KeroloxError

_SELF_ID = re.compile(r"[A-Za-z](\d+)")


class GroupUnusable(KeroloxError):
    """The settings of a group make no sense: the key that is wrong, its value, and what it should be."""

    def __init__(self, key: str, value: str, expected: str) -> None:
        super().__init__(f"{key}={value}: expected {expected}")
        self.key = key
        self.value = value
        self.expected = expected


@dataclass(frozen=True)
class GroupSettings:
    """Settings of a member. The timeouts are Apache's; only tests change them."""

    group: str
    self_id: str
    peers: Mapping[str, str]  # id → address, this member among them
    preferred: tuple[str, ...] = ()  # who should lead, if it can
    batch_push: bool = False  # many entries in one request
    heartbeat_ms: int = 2000
    heartbeat_leak_max: int = 3  # so many heartbeats may be missed
    vote_ms_min: int = 300  # between two rounds, at random
    vote_ms_max: int = 1000
    take_vote_ms_min: int = 30  # before the first round of who takes over
    take_vote_ms_max: int = 100
    call_ms: int = 3000  # how long an answer is waited for
    push_again_ms: int = 1000
    transfer_wait_ms: int = 1000
    transfer_lag_max: int = 1000  # entries
    push_window: int = 1000  # requests that are not answered, to one follower
    throttle_bytes: int = 300 << 20  # a follower that lacks more is sent no more than the next one per second
    push_bytes_per_s: int = 20 << 20

    def __post_init__(self) -> None:
        if self.self_id not in self.peers:
            raise GroupUnusable(
                "dLegerSelfId", self.self_id, f"one of the ids in dLegerPeers: {', '.join(self.peers)}"
            )
        unknown = [name for name in self.preferred if name not in self.peers]
        if unknown:
            raise GroupUnusable(
                "preferredLeaderId", unknown[0], f"ids in dLegerPeers: {', '.join(self.peers)}"
            )

    @property
    def quorum(self) -> int:
        return len(self.peers) // 2 + 1

    @property
    def others(self) -> tuple[str, ...]:
        return tuple(name for name in self.peers if name != self.self_id)

    @property
    def silence_s(self) -> float:
        """A leader that is not heard for longer is gone."""
        return self.heartbeat_ms * self.heartbeat_leak_max / 1000

    @property
    def follower_id(self) -> int:
        """The broker's id while it follows: the number in its own id, and one."""
        match = _SELF_ID.fullmatch(self.self_id)
        if match is None:
            raise GroupUnusable("dLegerSelfId", self.self_id, "one letter and a number, such as n0")
        return int(match[1]) + 1


def parse_peers(text: str) -> dict[str, str]:
    """``n0-host:port;n1-host:port`` → ids and addresses."""
    peers: dict[str, str] = {}
    for part in text.split(";"):
        if not part.strip():
            continue
        name, separator, address = part.strip().partition("-")
        host, colon, port = address.rpartition(":")
        if not (name and separator and host and colon and port.isdigit() and int(port) < 65536):
            raise GroupUnusable("dLegerPeers", part.strip(), "id-host:port, joined by semicolons")
        if name in peers:
            raise GroupUnusable("dLegerPeers", part.strip(), f"each id once, and {name} was there before")
        peers[name] = address
    unnamed = [f"{name}-{address}" for name, address in peers.items() if address.endswith(":0")]
    if unnamed and len(peers) > 1:
        raise GroupUnusable(
            "dLegerPeers", unnamed[0],
            "a port from 1 on: port 0 picks a free one, which the other members cannot know",
        )  # fmt: skip
    if not peers:
        raise GroupUnusable("dLegerPeers", text, "the members: n0-host:port;n1-host:port;n2-host:port")
    return peers
