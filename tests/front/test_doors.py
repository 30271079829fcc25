"""What carries requests stays in the doors: no handler of a role knows frames, commands or connections."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parent.parent.parent / "src" / "kerolox"

# Where remoting comes in, and callers of this process.
DOORS = ("broker/remoting/", "broker/proxy/", "nameserver/server.py")
# What only they may know. Whom a role calls itself, it calls through a dialer.
DOORS_OWN = (
    "kerolox.net.handlers",
    "kerolox.net.listener",
    "kerolox.net.peer",
    "kerolox.net.server",
    "kerolox.protocol.command",
    "kerolox.protocol.exchange",
    "kerolox.protocol.frame",
)
OPEN_TO_ALL = {"kerolox.net.listener.ListenFailed"}  # any port may be taken
DOORS_WORDS = {"Command", "Frame", "Peer"}


def trespasses(source: str) -> list[str]:
    """The names a module imports, or speaks of, that are a door's own."""
    found: list[str] = []
    for node in ast.walk(ast.parse(source)):
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Name) and node.id in DOORS_WORDS:
            found.append(node.id)
        elif isinstance(node, ast.Attribute) and node.attr in ("command", "ticket"):
            found.append(f".{node.attr}")
        found += [
            name for name in names if name not in OPEN_TO_ALL and f"{name}.".startswith(
                tuple(f"{own}." for own in DOORS_OWN)
            )
        ]  # fmt: skip
    return found


def rooms(role: str) -> list[Path]:
    return [
        path
        for path in sorted((SOURCE / role).rglob("*.py"))
        if not str(path.relative_to(SOURCE)).startswith(DOORS)
    ]


@pytest.mark.parametrize("role", ["broker", "nameserver"])
def test_handlers_know_no_frames_commands_and_connections(role: str) -> None:
    looked_at = rooms(role)
    assert len(looked_at) > 5
    for path in looked_at:
        assert not trespasses(path.read_text()), f"{path} knows what only a door may know"


def test_what_a_client_is_asked_needs_none_of_it_either() -> None:
    assert not trespasses((SOURCE / "client" / "cluster" / "incoming.py").read_text())


@pytest.mark.parametrize(
    "line",
    [
        "from kerolox.net.peer import Peer",
        "from kerolox.net.peer import PeerLimits",
        "import kerolox.protocol.command",
        "from kerolox.protocol import frame",
        "from kerolox.net.listener import ListenFailed, Listener",
        "from kerolox.net import handlers",
        "version = request.command.version",
        "flag = request.ticket.flag",
        "def closed(peer: Peer) -> None: ...",
    ],
)
def test_a_trespass_is_seen(line: str) -> None:
    assert trespasses(line)


def test_what_any_role_may_know_is_no_trespass() -> None:
    allowed = "from kerolox.net.dialer import Dialer\nfrom kerolox.net.listener import ListenFailed\n"
    assert trespasses(allowed + "from kerolox.front.requests import Request") == []


@pytest.mark.parametrize("door", DOORS)
def test_the_doors_are_where_this_test_looks(door: str) -> None:
    assert (SOURCE / door).exists()
