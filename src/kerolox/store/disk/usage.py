"""How full a disk is."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class DiskUsage:
    """Bytes of a file system: all, free, and free for this user."""

    total: int
    free: int
    available: int

    @property
    def ratio(self) -> float:
        """Used share, rounded up to a hundredth; -1 when the file system does not say."""
        used = self.total - self.free
        whole = used + self.available
        if self.total <= 0 or whole <= 0:
            return -1.0
        return -(-used * 100 // whole) / 100

    def ratio_unless(self, enough: int) -> float:
        """The share, but 0 with so many bytes free (0: never). A tenth of a large disk is more room than most
        brokers will ever need."""
        return 0.0 if 0 < enough <= self.available else self.ratio
