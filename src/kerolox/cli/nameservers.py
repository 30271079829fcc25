"""Shared parts of client commands: the name server option, credentials, and the event loop."""

from __future__ import annotations

import os
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from kerolox.client.addresses import split_addresses

if TYPE_CHECKING:
    from kerolox.client.admin.calls import AdminCalls
    from kerolox.client.nameservers import NameServers
    from kerolox.net.dialer import Dialer

__all__ = [
    "DEFAULT_ADDRESS",
    "NameServerOption",
    "forget_keys",
    "new_dialer",
    "run_admin",
    "run_with",
    "split_addresses",
    "use",
]

T = TypeVar("T")

DEFAULT_ADDRESS = "127.0.0.1:9876"
NameServerOption = Annotated[
    str,
    typer.Option(
        "--nameserver",
        "-n",
        envvar="NAMESRV_ADDR",
        help="Name server addresses, separated by ';' or ','. The first one that answers is used.",
        metavar="HOST:PORT",
    ),
]


def new_dialer() -> Dialer:
    """Return a dialer that signs requests and uses TLS as the environment configures them."""
    from kerolox.client.calls.signing import adds_no_fields
    from kerolox.client.cluster.signing import Signing
    from kerolox.client.options import ClientOptions
    from kerolox.net.dialer import Dialer
    from kerolox.net.handlers import RemotingHandlers

    options = ClientOptions()
    handlers = RemotingHandlers()
    if not adds_no_fields(options):
        handlers.hooks.append(Signing(options))
    return Dialer(handlers, tls=options.tls)


def use(
    access_key: str | None,
    keys_file: str | None,
    tls: bool | None,
    tls_ca: str | None,
    tls_certificate: str | None,
    tls_key: str | None,
    tls_verify: bool | None,
) -> None:
    """Apply the flags that precede a command, by setting the corresponding environment variables.

    Child processes of a command, such as Spark's, inherit them. Without any keys, use mqadmin's
    ``$ROCKETMQ_HOME/conf/tools.yml`` if it exists, so that a machine configured for mqadmin needs no more.
    """
    from kerolox.client import environment

    detail = environment.TLS_DETAILS
    files = {
        environment.KEYS_FILE: keys_file,
        detail["ca"]: tls_ca,
        detail["certificate"]: tls_certificate,
        detail["key"]: tls_key,
    }
    given = {name: os.path.abspath(path) for name, path in files.items() if path is not None}
    if access_key is not None:
        given[environment.ACCESS_KEY] = access_key
    if tls is None and (tls_verify is not None or any(detail[name] in given for name in detail)):
        tls = True
    for name, switch in ((environment.TLS, tls), (detail["verify"], tls_verify)):
        if switch is not None:
            given[name] = "on" if switch else "off"
    if keys_file is not None:  # the file overrides credentials of the environment
        for name in environment.KEYS:
            os.environ.pop(name, None)
    os.environ.update(given)
    if not any(os.environ.get(name) for name in (environment.ACCESS_KEY, environment.KEYS_FILE)):
        mqadmins = os.path.join(os.environ.get("ROCKETMQ_HOME", ""), "conf", "tools.yml")
        if os.environ.get("ROCKETMQ_HOME") and os.path.exists(mqadmins):
            os.environ[environment.KEYS_FILE] = mqadmins


def forget_keys() -> None:
    """Remove keys and TLS settings from the environment, for commands that start their own open servers."""
    from kerolox.client.environment import VARIABLES

    for name in VARIABLES:
        os.environ.pop(name, None)


def run_with(addresses: str, work: Callable[[NameServers], Coroutine[Any, Any, T]]) -> T:
    """Run a command's work against the name servers of an option."""
    from kerolox.client.nameservers import NameServers
    from kerolox.net.loop import run

    async def main() -> T:
        async with new_dialer() as dialer:
            return await work(NameServers(split_addresses(addresses), dialer))

    return run(main())


def run_admin(addresses: str, work: Callable[[AdminCalls], Coroutine[Any, Any, T]]) -> T:
    """Run a command's work against the name servers of an option and their brokers."""
    from kerolox.client.admin.calls import AdminCalls
    from kerolox.client.nameservers import NameServers
    from kerolox.net.loop import run

    async def main() -> T:
        async with new_dialer() as dialer:
            return await work(AdminCalls(NameServers(split_addresses(addresses), dialer), dialer))

    return run(main())
