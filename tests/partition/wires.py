"""Networks of their own for two brokers and their clients, with wires that can be cut.

::

            hub: name server, clients, relay          10.77.0.1
              │ bridge │
        10.77.0.2    10.77.0.3                        what clients use
         node 0 ────── node 1
        10.78.0.2    10.78.0.3                        what the brokers copy over
"""

from __future__ import annotations

from types import TracebackType

from tests.rig.netns import NOBODY, Namespace

NODES = 2


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
