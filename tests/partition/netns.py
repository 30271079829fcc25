"""Networks of their own for two brokers and their clients, with wires that can be cut.

::

            hub: name server, clients, relay          10.77.0.1
              │ bridge │
        10.77.0.2    10.77.0.3                        what clients use
         node 0 ────── node 1
        10.78.0.2    10.78.0.3                        what the brokers copy over

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
from types import TracebackType

CLONE_NEWNET = 0x40000000
OWN = "/proc/thread-self/ns/net"
NOBODY = "02:00:00:00:00:99"  # a hardware address that no wire ends at
NODES = 2


class NoNamespaces(Exception):
    """Networks cannot be made here; the message says why."""


class Namespace:
    """One network. What a thread makes while it is inside, sockets and processes, stays inside."""

    def __init__(self) -> None:
        self.fd = -1
        before = os.open(OWN, os.O_RDONLY)
        try:
            _call("unshare", CLONE_NEWNET)
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


class Wires:
    """The hub, two nodes, and the wires between them. ``with`` it: this thread is in the hub."""

    hub_ip = "10.77.0.1"

    def __init__(self) -> None:
        self.hub = Namespace()
        self.nodes = [Namespace() for _ in range(NODES)]
        self._inside = self.hub.inside()
        self.hub.ip("link", "add", "hub", "type", "bridge")
        self.hub.ip("addr", "add", f"{self.hub_ip}/24", "dev", "hub")
        self.hub.ip("link", "set", "hub", "up")
        for number, node in enumerate(self.nodes):
            self.hub.ip(
                "link", "add", f"to{number}", "type", "veth", "peer", "name", "eth", "netns", node.path
            )
            self.hub.ip("link", "set", f"to{number}", "master", "hub")
            self.hub.ip("link", "set", f"to{number}", "up")
            node.ip("addr", "add", f"{self.ip(number)}/24", "dev", "eth")
            node.ip("link", "set", "eth", "up")
        first, second = self.nodes
        first.ip("link", "add", "copy", "type", "veth", "peer", "name", "copy", "netns", second.path)
        for number, node in enumerate(self.nodes):
            node.ip("addr", "add", f"{self.copy_ip(number)}/24", "dev", "copy")
            node.ip("link", "set", "copy", "up")

    def __enter__(self) -> Wires:
        self._inside.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inside.__exit__(kind, error, trace)
        for namespace in (self.hub, *self.nodes):
            namespace.close()

    @staticmethod
    def ip(node: int) -> str:
        """Where clients find a node."""
        return f"10.77.0.{2 + node}"

    @staticmethod
    def copy_ip(node: int) -> str:
        """Where the other node finds it."""
        return f"10.78.0.{2 + node}"

    # --- cuts -------------------------------------------------------------------------------------------

    def cut_copy(self) -> None:
        """Nothing passes between the nodes."""
        self.nodes[0].ip("link", "set", "copy", "down")

    def cut_copy_from(self, node: int) -> None:
        """What this node sends to the other one gets lost on the way; the other way all is well."""
        self.nodes[node].ip(
            "neigh", "replace", self.copy_ip(1 - node), "lladdr", NOBODY, "dev", "copy", "nud", "permanent"
        )

    def cut_off(self, node: int) -> None:
        """A node is alone: neither clients, nor name servers, nor the other node reach it."""
        self.nodes[node].ip("link", "set", "eth", "down")
        self.nodes[node].ip("link", "set", "copy", "down")

    def mend(self) -> None:
        """All wires are whole."""
        for number, node in enumerate(self.nodes):
            node.ip("link", "set", "eth", "up")
            node.ip("link", "set", "copy", "up")
            # What was said of the other's hardware address is forgotten, and asked for again.
            node.ip(
                "neigh", "replace", self.copy_ip(1 - number), "lladdr", NOBODY, "dev", "copy", "nud", "stale"
            )
            node.ip("neigh", "del", self.copy_ip(1 - number), "dev", "copy")


def enter(network: int) -> None:
    """This thread is in the network of this descriptor from now on."""
    _call("setns", network, CLONE_NEWNET)


def _call(name: str, *numbers: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if getattr(libc, name)(*numbers):
        number = ctypes.get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
