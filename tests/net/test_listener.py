"""Errors of an address that cannot be listened on."""

from __future__ import annotations

import errno
import socket

import pytest

from kerolox.net.handlers import RemotingHandlers
from kerolox.net.listener import ListenFailed, listen_failure
from kerolox.net.server import Server


async def test_an_address_of_another_machine_is_named_as_such() -> None:
    with pytest.raises(ListenFailed, match=r"192\.0\.2\.99 is not an address of this machine.*ip address"):
        await Server(RemotingHandlers(), host="192.0.2.99", port=0).start()


async def test_a_port_in_use_is_named_with_the_command_that_finds_its_process() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(ListenFailed, match=rf"another process uses port {port}.*ss -ltnp"):
            await Server(RemotingHandlers(), host="127.0.0.1", port=port).start()


@pytest.mark.parametrize(
    ("reason", "says"),
    [
        (PermissionError(errno.EACCES, "Permission denied"), "a port above 1023"),
        (OSError(errno.ENETDOWN, "Network is down"), "Network is down"),
        ("it is no address", "it is no address. Next"),
    ],
)
def test_other_causes(reason: object, says: str) -> None:
    assert says in listen_failure("10.0.0.1:80 (for followers)", reason)
