"""What commands that ask servers share: where the name servers are, and the loop their work runs in."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from kerolox.client.addresses import split_addresses
from kerolox.errors import KeroloxError, OptionError, nearest

if TYPE_CHECKING:
    from kerolox.client.admin.admin import Admin
    from kerolox.client.nameservers import NameServers
    from kerolox.net.handlers import RemotingHandlers

__all__ = [
    "DEFAULT_ADDRESS",
    "NameServerOption",
    "access_keys",
    "handlers",
    "near_topic",
    "run_admin",
    "run_with",
    "split_addresses",
]

T = TypeVar("T")

DEFAULT_ADDRESS = "127.0.0.1:9876"
# Not options: what stands in a command line, everybody on the machine can read.
ACCESS_KEY_VARIABLE = "KEROLOX_ACCESS_KEY"
SECRET_KEY_VARIABLE = "KEROLOX_SECRET_KEY"

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


def access_keys() -> tuple[str, str]:
    """The keys of the environment, for brokers that let in only whom they know; empty without."""
    access_key = os.environ.get(ACCESS_KEY_VARIABLE, "")
    secret_key = os.environ.get(SECRET_KEY_VARIABLE, "")
    if access_key and not secret_key:
        raise OptionError(ACCESS_KEY_VARIABLE, access_key, f"{SECRET_KEY_VARIABLE} beside it")
    return (access_key, secret_key) if access_key else ("", "")


def handlers() -> RemotingHandlers:
    from kerolox.net.handlers import RemotingHandlers

    made = RemotingHandlers()
    access_key, secret_key = access_keys()
    if access_key:
        from kerolox.client.cluster.signing import Signing
        from kerolox.client.options import ClientOptions

        made.hooks.append(Signing(ClientOptions(access_key=access_key, secret_key=secret_key)))
    return made


async def near_topic(admin: Admin, topic: str) -> str:
    """A question whether a topic of nearly this name was meant; nothing from name servers that list none."""
    try:
        return nearest(topic, await admin.topics())
    except KeroloxError:
        return ""


def run_with(addresses: str, work: Callable[[NameServers], Coroutine[Any, Any, T]]) -> T:
    """Run a command's work against the name servers of an option."""
    from kerolox.client.nameservers import NameServers
    from kerolox.net.dialer import Dialer
    from kerolox.net.loop import run

    async def main() -> T:
        async with Dialer(handlers()) as dialer:
            return await work(NameServers(split_addresses(addresses), dialer))

    return run(main())


def run_admin(addresses: str, work: Callable[[Admin], Coroutine[Any, Any, T]]) -> T:
    """Run a command's work against the name servers of an option and their brokers."""
    from kerolox.client.admin.admin import Admin, NoSuchTopic
    from kerolox.client.nameservers import NameServers
    from kerolox.net.dialer import Dialer
    from kerolox.net.loop import run

    async def main() -> T:
        async with Dialer(handlers()) as dialer:
            admin = Admin(NameServers(split_addresses(addresses), dialer), dialer)
            try:
                return await work(admin)
            except NoSuchTopic as error:
                near = await near_topic(admin, error.topic)
                raise NoSuchTopic(error.topic, error.nameserver, near) from None

    return run(main())
