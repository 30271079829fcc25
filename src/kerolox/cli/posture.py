"""Access policy of the servers of ``up`` and ``cluster up``: loopback, authenticated users, or all clients.

Servers are never opened to a network by accident. Loopback addresses need no flag; all others require
``--access`` or ``--open``. So does a data folder with users: omitting the flag does not disable access
control.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Annotated

import typer

from kerolox.errors import KeroloxError, OptionError

if TYPE_CHECKING:
    from kerolox.access.folder import AccessFolder

AccessFlag = Annotated[
    bool,
    typer.Option(
        "--access", help="Require authentication and enforce access policies. Creates the first users if "
        "none exist.",
    ),
]  # fmt: skip
OpenFlag = Annotated[
    bool,
    typer.Option("--open", help="Accept all clients without authentication, also on non-loopback addresses."),
]


class NotOpened(KeroloxError):
    """The servers would be reachable without access control, and neither --access nor --open was given."""


def check_posture(hosts: Iterable[str], *, access: bool, open_to_all: bool, folder: AccessFolder) -> None:
    """Reject a start that would expose the servers without an explicit flag.

    Raises NotOpened, which names the flags, or OptionError for both flags at once.
    """
    from kerolox.net.address import is_loopback

    if access and open_to_all:
        raise OptionError("--open", True, "either --access or --open")
    if access or open_to_all:
        return
    if folder.is_there:
        raise NotOpened(
            f"{folder.access} has users: give --access to require authentication, or --open to accept all "
            "clients"
        )
    beyond = [host for host in hosts if not is_loopback(host)]
    if beyond:
        raise NotOpened(
            f"{beyond[0]} is reachable from other machines: give --access to require authentication, or "
            "--open to accept all clients"
        )
