"""Networks of their own.

Nothing of this has a name on the machine: a network is a descriptor of this process, and gone when the last
process that uses it is. So nothing is left behind, however this process ends, and several do not meet.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

CLONE_NEWNET = 0x40000000
OWN = "/proc/thread-self/ns/net"
NOBODY = "02:00:00:00:00:99"  # a hardware address that no wire ends at


class NoNamespaces(Exception):
    """Networks cannot be made here; the message says why."""


class Namespace:
    """One network. What a thread makes while it is inside, sockets and processes, stays inside."""

    def __init__(self) -> None:
        self.fd = -1
        before = os.open(OWN, os.O_RDONLY)
        try:
            call("unshare", CLONE_NEWNET)
            self.fd = os.open(OWN, os.O_RDONLY)
            enter(before)
        except OSError as error:
            raise NoNamespaces(f"this process may not make a network of its own: {error}") from error
        finally:
            os.close(before)
        self.ip("link", "set", "lo", "up")

    @property
    def path(self) -> str:
        return f"/proc/{os.getpid()}/fd/{self.fd}"

    @contextmanager
    def inside(self) -> Iterator[None]:
        """This thread, and whatever it starts, is inside."""
        before = os.open(OWN, os.O_RDONLY)
        enter(self.fd)
        try:
            yield
        finally:
            enter(before)
            os.close(before)

    def ip(self, *words: str) -> None:
        """Run ``ip`` inside."""
        program = shutil.which("ip") or shutil.which("ip", path="/usr/sbin:/sbin")
        if program is None:
            raise NoNamespaces("there is no `ip` here: install iproute2")
        with self.inside():
            done = subprocess.run([program, *words], capture_output=True, text=True, check=False)
        if done.returncode:
            raise NoNamespaces(f"ip {' '.join(words)}: {done.stderr.strip()}")

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
            self.fd = -1


def enter(network: int) -> None:
    """This thread is in the network of this descriptor from now on."""
    call("setns", network, CLONE_NEWNET)


def call(name: str, *numbers: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*numbers):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
