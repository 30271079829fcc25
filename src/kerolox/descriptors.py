"""Shares of the process's file descriptors: connections of all ports, files of a store, a reserve.

The kernel assigns the lowest free number, so the number of a new connection shows how many descriptors of any
kind are in use, without counting them: from :attr:`Descriptors.ceiling` on, the rest is reserved for the
store. A store without a free descriptor rejects sends (see RELIABILITY.md, "File failures").
"""

from __future__ import annotations

from collections.abc import Sized
from typing import Final
from weakref import WeakSet

CONNECTIONS_MAX: Final = 500_000  # all ports together, regardless of the limit of open files
UNLIMITED: Final = 1 << 20
FILES_MAX: Final = 256  # open files of queues and the log
OTHERS: Final = 32  # small files, tables, outgoing connections, libraries


class Descriptors:
    """The shares of one limit, and the connections of all ports."""

    def __init__(self, limit: int | None = None) -> None:
        limit = open_files_limit() if limit is None else limit
        self.limit = limit
        self.files = min(max(limit // 4, 16), FILES_MAX)  # of the log and the queues of a store
        self.index_files = min(max(limit // 64, 4), 16)
        self.timer_files = min(max(limit // 16, 4), FILES_MAX)
        reserve = self.files + self.index_files + self.timer_files + OTHERS
        self.connections_max = min(max(limit // 2, 16), CONNECTIONS_MAX)
        # A connection with this number or a higher one would use the reserve.
        self.ceiling = limit - min(reserve, limit // 2)
        self._ports: WeakSet[Sized] = WeakSet()

    def add_port(self, connections: Sized) -> None:
        """Count the connections of a further port for its lifetime."""
        self._ports.add(connections)

    def connections_left(self, port: Sized) -> int:
        """Return the number of connections that a port may have, given those of all other ports."""
        return self.connections_max - sum(len(other) for other in self._ports if other is not port)


def open_files_limit() -> int:
    """Return the number of files this process may open."""
    try:
        import resource
    except ImportError:  # Windows has no such limit
        return UNLIMITED
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft in (-1, resource.RLIM_INFINITY) else soft


# The limit applies to the whole process.
PROCESS: Final = Descriptors()
