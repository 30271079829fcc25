"""Whom servers of ``up`` and ``cluster up`` let in: this machine, known users, or everybody.

Nobody gets an open port on a network by accident. On loopback nothing need be said; beyond it either
``--access`` or ``--open``. Servers that had users are not opened by leaving a word out.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated

import typer

from kerolox.errors import KeroloxError, OptionError

if TYPE_CHECKING:
    from kerolox.cli.access_folder import AccessFolder

AccessFlag = Annotated[
    bool,
    typer.Option(
        "--access", help="Let in only users that are known, and let them do what their rules say. Makes the "
        "first users, if there are none.",
    ),
]  # fmt: skip
OpenFlag = Annotated[
    bool,
    typer.Option("--open", help="Let everybody in, on addresses beyond this machine too."),
]


class NotOpened(KeroloxError):
    """Nobody has said that everybody may come in."""


def check_posture(hosts: Iterable[str], *, access: bool, open_to_all: bool, folder: AccessFolder) -> None:
    """Refuse what would let in more people than was said. One line names what to say."""
    from kerolox.net.address import is_loopback

    if access and open_to_all:
        raise OptionError("--open", True, "either --access or --open")
    if access or open_to_all:
        return
    if folder.is_there:
        raise NotOpened(
            f"there are users in {folder.access}: say --access to let in only those, or --open to let in "
            "everybody"
        )
    beyond = [host for host in hosts if not is_loopback(host)]
    if beyond:
        raise NotOpened(
            f"{beyond[0]} can be reached from other machines: say --access to let in only known users, or "
            "--open to let in everybody"
        )


def secured(
    folder: AccessFolder, hosts: Iterable[str], chosen: Mapping[str, str], *, make: bool = True
) -> dict[str, str]:
    """What secured servers are told, by RocketMQ's keys. Beyond loopback they speak TLS alone. ``make``:
    users and certificates that are not there yet; without it nothing is written."""
    from kerolox.net.address import is_loopback
    from kerolox.net.signing import Credentials

    inner = folder.make().inner if make else Credentials("inner", "made at the start")
    settings = folder.settings(inner)
    if not all(map(is_loopback, hosts)):
        settings["tls.server.mode"] = "enforcing"
        if chosen.get("tls.server.mode", "enforcing") == "enforcing" and "tls.server.certPath" not in chosen:
            if make:
                folder.make_certificate()
            settings |= folder.tls_settings()
    return settings | {key: value for key, value in chosen.items() if key.startswith("tls.")}
