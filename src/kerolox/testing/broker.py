"""A name server and a broker for tests: real ones, in the test's process, on free ports.

::

    async with running_broker() as running:
        running.nameserver_address  # what a client is given
        running.broker              # the broker itself
"""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kerolox.broker.broker import Broker
from kerolox.broker.options import BrokerOptions
from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.nameserver.server import NameServer
from kerolox.store.files import Files
from kerolox.testing.nameserver import running_nameserver

# Small files: a test writes little, and starts often.
SMALL = {
    "commit_log_file_bytes": 16 << 20,
    "queue_file_bytes": 6000 * 20,
    "index_slots": 5000,
    "index_entries": 20_000,
}


@dataclass
class RunningBroker:
    """A broker and the name server it is registered at."""

    broker: Broker
    nameserver: NameServer

    @property
    def address(self) -> str:
        """Of the broker."""
        return self.broker.address

    @property
    def nameserver_address(self) -> str:
        return self.nameserver.address


@asynccontextmanager
async def running_broker(
    *,
    directory: Path | None = None,
    nameserver: NameServer | None = None,
    clock: Clock = SYSTEM_CLOCK,
    files: Files | None = None,
    **options: Any,
) -> AsyncIterator[RunningBroker]:
    """``options`` are those of :class:`BrokerOptions` by our names. With a ``directory`` the files stay; with
    a ``nameserver`` the broker registers there."""
    async with AsyncExitStack() as stack:
        place = directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kerolox-broker-")))
        if nameserver is None:
            nameserver = await stack.enter_async_context(
                running_nameserver(directory=place / "nameserver", clock=clock)
            )
        settings = {
            "bind_address": "127.0.0.1",
            "listen_port": 0,
            "broker_name": "broker-a",
            "nameservers": nameserver.address,
            "store_path": str(place / "store"),
            **SMALL,
            **options,
        }
        broker = Broker(BrokerOptions(**settings), clock=clock, files=files)
        yield RunningBroker(await stack.enter_async_context(broker), nameserver)
