"""What clients of a cluster were told: sends, and what came back of them to a reader."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from tests.rig.history import History


class Read(NamedTuple):
    """A message that was handed to a reader."""

    at_s: float
    queue: int
    offset: int
    body: bytes


class Commit(NamedTuple):
    """A reader's progress, which a broker said it has saved."""

    at_s: float
    queue: int
    offset: int  # the next one it wants


@dataclass
class ClusterHistory(History):
    """All that happened to the clients of one cluster."""

    reads: list[Read] = field(default_factory=list)
    commits: list[Commit] = field(default_factory=list)
