"""What commands that ask servers share: where the name servers are, and the loop their work runs in."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from kerolox.client.nameservers import NameServers, split_addresses

if TYPE_CHECKING:
    from kerolox.client.admin import Admin

__all__ = ["DEFAULT_ADDRESS", "NameServerOption", "NameServers", "run_admin", "run_with", "split_addresses"]

T = TypeVar("T")

DEFAULT_ADDRESS = "127.0.0.1:9876"

NameServerOption = Annotated[
    str,
    typer.Option(
        "--nameserver",
        "-n",
        envvar="NAMESRV_ADDR",
        help="Addresses of name servers, joined by ';' or ','; the first that answers is used.",
        metavar="HOST:PORT",
    ),
]


def run_with(addresses: str, work: Callable[[NameServers], Coroutine[Any, Any, T]]) -> T:
    """Run a command's work against the name servers of an option."""
    from kerolox.net.dialer import Dialer
    from kerolox.net.loop import run

    async def main() -> T:
        async with Dialer() as dialer:
            return await work(NameServers(split_addresses(addresses), dialer))

    return run(main())


def run_admin(addresses: str, work: Callable[[Admin], Coroutine[Any, Any, T]]) -> T:
    """Run a command's work against the name servers of an option and their brokers."""
    from kerolox.client.admin import Admin
    from kerolox.net.dialer import Dialer
    from kerolox.net.loop import run

    async def main() -> T:
        async with Dialer() as dialer:
            return await work(Admin(NameServers(split_addresses(addresses), dialer), dialer))

    return run(main())
