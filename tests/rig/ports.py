"""Free ports for servers that have to know their port before they start."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Sequence

_given: set[int] = set()
_giving = threading.Lock()


FIRST, SLOT = 12000, 4500  # ports; a worker of pytest has a slot, and other processes share one


class NoPorts(Exception):
    """No port is free."""


def free_port() -> int:
    return free_ports(1)[0]


def free_ports(count: int, *, offsets: Sequence[int] = (0,)) -> list[int]:
    """Return ``count`` ports P for which every P + offset is free just now.

    They are below the range the kernel hands out for outgoing connections, so that a client
    connecting in the meantime does not take one, and none is given out twice, whatever thread asks.
    """
    with _giving:
        return _free_ports(count, offsets)


def _free_ports(count: int, offsets: Sequence[int]) -> list[int]:
    found: list[int] = []
    first = FIRST + _slot() * SLOT
    start = os.getpid() * 37 + int(time.monotonic() * 1000)
    for step in range(SLOT):
        port = first + (start + step * 7) % SLOT
        wanted = {port + offset for offset in offsets}
        if not wanted & _given and all(_is_free(each) for each in wanted):
            _given.update(wanted)
            found.append(port)
            if len(found) == count:
                return found
    raise NoPorts(f"no port from {first} to {first + SLOT} is free")


def _slot() -> int:
    """Return the slot of this process: two that look at the same time find the same port free."""
    worker = os.environ.get("PYTEST_XDIST_WORKER", "").removeprefix("gw")
    return 1 + int(worker) % 3 if worker.isdigit() else 0


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("0.0.0.0", port))
        except OSError:
            return False
        return True
