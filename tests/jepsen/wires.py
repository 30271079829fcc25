"""A network with one place for each process, where what one place sends to another can be lost.

::

            clients                       10.79.0.1
           │ bridge │
     b1 b2 b3  c1 c2 c3  e1 e2 e3  n1     10.79.0.11, ...

A cut has one direction: packets of the sender go to a hardware address that no wire ends at, so they vanish
without a word, as in a switch that broke. Both directions are two cuts. Said to the kernel directly, a cut
takes microseconds: wires can flap.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterable, Sequence
from types import TracebackType

from tests.rig.netns import NOBODY, Namespace

CLIENTS = "clients"
Link = tuple[str, str]  # who sends, and to whom

# rtnetlink: struct nlmsghdr, struct ndmsg, struct rtattr; <linux/neighbour.h>
HEAD = struct.Struct("=IHHII")
NEIGHBOUR = struct.Struct("=BxxxiHBB")
ATTRIBUTE = struct.Struct("=HH")
ERROR = struct.Struct("=i")
RTM_NEWNEIGH, RTM_DELNEIGH = 28, 29
REQUEST_ACK, CREATE_REPLACE = 0x1 | 0x4, 0x400 | 0x100
NDA_DST, NDA_LLADDR = 1, 2
NUD_PERMANENT = 0x80
ENOENT = -2


class Neighbours:
    """What a place believes of others' hardware addresses."""

    def __init__(self, place: Namespace, device: str) -> None:
        with place.inside():
            self._socket = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, socket.NETLINK_ROUTE)
            self._index = socket.if_nametoindex(device)
        self._socket.bind((0, 0))

    def misplace(self, ip: str) -> None:
        """Whatever is sent there from now on gets lost."""
        hardware = bytes.fromhex(NOBODY.replace(":", ""))
        self._ask(RTM_NEWNEIGH, CREATE_REPLACE, ip, NUD_PERMANENT, hardware)

    def forget(self, ip: str) -> None:
        """It is asked for when something is sent there."""
        self._ask(RTM_DELNEIGH, 0, ip, 0, None)

    def _ask(self, kind: int, flags: int, ip: str, state: int, hardware: bytes | None) -> None:
        body = NEIGHBOUR.pack(socket.AF_INET, self._index, state, 0, 0)
        body += ATTRIBUTE.pack(8, NDA_DST) + socket.inet_aton(ip)
        if hardware is not None:
            body += ATTRIBUTE.pack(10, NDA_LLADDR) + hardware + b"\0\0"
        self._socket.send(HEAD.pack(HEAD.size + len(body), kind, REQUEST_ACK | flags, 0, 0) + body)
        (code,) = ERROR.unpack_from(self._socket.recv(4096), HEAD.size)
        if code and not (kind == RTM_DELNEIGH and code == ENOENT):
            raise OSError(-code, f"the kernel refused what was said of {ip}")

    def close(self) -> None:
        self._socket.close()


class Wires:
    """Places and the wires between them. ``with`` it: this thread is where the clients are."""

    def __init__(self, names: Sequence[str]) -> None:
        self.places = {CLIENTS: Namespace()}
        self.ips = {CLIENTS: "10.79.0.1"}
        self.cuts: set[Link] = set()
        hub = self.places[CLIENTS]
        self._inside = hub.inside()
        hub.ip("link", "add", "eth", "type", "bridge")
        hub.ip("addr", "add", f"{self.ips[CLIENTS]}/24", "dev", "eth")
        hub.ip("link", "set", "eth", "up")
        for number, name in enumerate(names):
            place = Namespace()
            self.places[name] = place
            self.ips[name] = f"10.79.0.{11 + number}"
            hub.ip("link", "add", name, "type", "veth", "peer", "name", "eth", "netns", place.path)
            hub.ip("link", "set", name, "master", "eth", "up")
            place.ip("addr", "add", f"{self.ips[name]}/24", "dev", "eth")
            place.ip("link", "set", "eth", "up")
        self._neighbours = {name: Neighbours(place, "eth") for name, place in self.places.items()}

    def __enter__(self) -> Wires:
        self._inside.__enter__()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._inside.__exit__(kind, error, trace)
        for neighbours in self._neighbours.values():
            neighbours.close()
        for place in self.places.values():
            place.close()

    # --- cuts -------------------------------------------------------------------------------------------

    def cut(self, links: Iterable[Link]) -> None:
        for sender, receiver in set(links) - self.cuts:
            self._neighbours[sender].misplace(self.ips[receiver])
            self.cuts.add((sender, receiver))

    def mend(self, links: Iterable[Link] | None = None) -> None:
        """These wires are whole again; all, if none are named."""
        for sender, receiver in self.cuts & set(self.cuts if links is None else links):
            self._neighbours[sender].forget(self.ips[receiver])
            self.cuts.discard((sender, receiver))


def both_ways(links: Iterable[Link]) -> set[Link]:
    return {way for one, other in links for way in ((one, other), (other, one))}


def between(some: Iterable[str], others: Iterable[str]) -> set[Link]:
    """Every wire between two sides, in both directions."""
    others = list(others)
    return both_ways((one, other) for one in some for other in others if one != other)
