"""The ends of a log that has no files."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class Ends:
    wrote: int = 0
    committed: int = 0
    flushed: int = 0

    def append(self, size: int) -> None:
        self.wrote += size
        self.committed = self.wrote
