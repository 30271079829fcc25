"""What clients of a pair were told, and what that is judged by."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.rig.history import History


@dataclass(frozen=True)
class Alone:
    """From when to when nothing that was sent could reach the follower and be confirmed by it."""

    began_s: float
    ended_s: float
    why: str


@dataclass
class PairHistory(History):
    """All sends to one pair, and what they are judged by."""

    alone: list[Alone] = field(default_factory=list)
    swapped_s: float = 0.0  # when another broker began to lead: what was not acknowledged before may be gone
