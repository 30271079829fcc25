"""Identity of this process: its client id at brokers, and the unique keys of its messages."""

from __future__ import annotations

import os
import random
import socket
import time
from functools import lru_cache

from kerolox.clock import SYSTEM_CLOCK
from kerolox.protocol.hosts import ip_bytes
from kerolox.protocol.message_id import UniqueKeys

LOOPBACK = "127.0.0.1"
DEFAULT_INSTANCE = "DEFAULT"


@lru_cache(1)
def local_ip() -> str:
    """Return the address that this machine uses for outgoing connections. Sends no packets."""
    for family, elsewhere in ((socket.AF_INET, "192.0.2.1"), (socket.AF_INET6, "2001:db8::1")):
        try:
            with socket.socket(family, socket.SOCK_DGRAM) as probe:
                probe.connect((elsewhere, 9))
                return str(probe.getsockname()[0]).partition("%")[0]
        except OSError:
            continue
    return LOOPBACK


def client_id(
    instance: str = DEFAULT_INSTANCE, unit: str = "", *, stable: bool = False, tail: str = ""
) -> str:
    """Return ``ip@instance[@unit]``.

    The default instance is replaced by a name unique on this machine, unless the id must be ``stable`` across
    restarts, as for broadcasting consumers, which keep files under it.
    """
    if instance == DEFAULT_INSTANCE and not stable:
        instance = f"{os.getpid()}#{time.monotonic_ns()}"
    parts = [local_ip(), instance]
    if unit:
        parts.append(unit)
    if tail:
        parts.append(tail)
    return "@".join(parts)


_keys: UniqueKeys | None = None


def unique_keys() -> UniqueKeys:
    """Return the single generator of unique keys of this process: two could generate equal keys."""
    global _keys
    if _keys is None:
        _keys = UniqueKeys(
            ip_bytes(local_ip()), os.getpid(), random.SystemRandom().getrandbits(32), SYSTEM_CLOCK.wall_ms
        )
    return _keys


def _forget() -> None:
    global _keys
    _keys = None


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
