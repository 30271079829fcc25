"""Name server and broker for tests: real ones, in the test's process, on free ports.

::

    async with running_broker() as running:
        running.nameserver_address  # address for clients
        running.broker              # the broker itself
        await running.stop()        # clients can no longer connect
        await running.kill()        # like SIGKILL, with its files as they were at that moment
        await running.start()       # running again, at the same address, with its messages
"""

from __future__ import annotations

import asyncio
import logging
import tempfile
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kerolox.broker.broker import Broker
from kerolox.broker.options import BrokerOptions
from kerolox.client.admin.calls import AdminCalls
from kerolox.client.nameservers import NameServers
from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.errors import KeroloxError, OptionError, nearest
from kerolox.nameserver.server import NameServer
from kerolox.net.dialer import Dialer
from kerolox.net.server import Server
from kerolox.options import specs
from kerolox.protocol.bodies.topics import TopicConfig
from kerolox.store.disk.files import Files
from kerolox.store.errors import StoreError
from kerolox.testing.mortal_files import MortalFiles
from kerolox.testing.nameserver import running_nameserver

log = logging.getLogger(__name__)

# Small files, because a test writes little and starts often.
SMALL = {
    "commit_log_file_bytes": 16 << 20,
    "queue_file_bytes": 6000 * 20,
    "index_slots": 5000,
    "index_entries": 20_000,
    "disk_free_enough": 64 << 20,  # tests also run on disks that are nearly full
}


# Arguments other than a broker's options: errors about misspelt ones suggest these too.
HOW = ("brokers", "followers", "sync", "clock", "directory")


def broker_settings(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return a broker's options by kerolox's names, from those names or RocketMQ's keys:
    ``transaction_check_ms=1000`` or ``transactionCheckInterval=1000``. Text is parsed as in a file. Raise
    OptionError for an unknown option."""
    known = {word: spec for spec in specs(BrokerOptions) for word in (spec.key, spec.name)}
    found: dict[str, Any] = {}
    for word, value in given.items():
        spec = known.get(word)
        if spec is None:
            near = nearest(word, (*known, *HOW))
            raise OptionError(
                word, value, f"an option of the broker, by kerolox's name or RocketMQ's key.{near}"
            )
        if spec.name in found:
            raise OptionError(
                word, value, f"only one of {spec.key} and {spec.name}: they are the same option"
            )
        found[spec.name] = value if word == spec.name and not isinstance(value, str) else spec.parse(value)
    return found


@dataclass
class RunningBroker:
    """Broker, and the name server it is registered at."""

    broker: Broker
    nameserver: NameServer
    files: Files | None = None
    _is_down: bool = False

    @property
    def address(self) -> str:
        """Return the address of the broker."""
        return self.broker.address

    @property
    def nameserver_address(self) -> str:
        return self.nameserver.address

    async def create_topic(self, topic: str, *, queues: int = 4, attributes: str = "") -> None:
        """Create a topic, so that consumers find it before the first send. ``attributes`` as in mqadmin."""
        async with Dialer() as dialer:
            admin = AdminCalls(NameServers([self.nameserver_address], dialer), dialer)
            config = TopicConfig(topic_name=topic, read_queue_nums=queues, write_queue_nums=queues)
            await admin.put_topic(self.address, config, attributes)

    @property
    def is_running(self) -> bool:
        return not self._is_down

    async def stop(self) -> None:
        """Stop the broker; the name server keeps running. No client can connect until it starts again."""
        self._is_down = True
        await self.broker.close()

    async def kill(self) -> None:
        """End the broker as SIGKILL does: connections close without notice, and nothing more is written."""
        if not isinstance(self.files, MortalFiles):
            raise KeroloxError("cannot kill a broker that got a Files object: call kill() of that object")
        if self._is_down:
            return
        self._is_down = True
        self.files.kill()
        await bury(self.broker)

    async def start(self) -> None:
        """Start the broker again, with the same address and files."""
        before = self.broker
        await before.close()
        options = replace(before.options, **before.endpoints.as_options())
        if isinstance(self.files, MortalFiles):
            self.files = MortalFiles()
        broker = Broker(options, clock=before.clock, files=self.files)
        self.broker = await broker.__aenter__()  # of one that does not start the old one stays
        self._is_down = False


async def bury(broker: Broker) -> None:
    """Close the remains of a broker whose files are dead: first its connections, so that no peer gets
    anything more from it."""
    servers, replication = broker.ports.servers, broker.replication
    if broker.controlled is not None:
        await broker.controlled.controllers.close()
    if broker.dledger is not None:
        await broker.dledger.hang_up()
    for peer in [peer for server in servers for peer in server.peers]:
        peer.close("the broker was killed", at_once=True)
    for follower in list(replication.leader.followers):
        follower.close()
    if replication.follower.link is not None:
        replication.follower.link.close()
    # Without its connection it cannot unregister at the name servers.
    await asyncio.gather(
        broker.nameservers.registrations._dialer.close(),
        broker.ports.followers.close(),
        *map(Server.close, servers),
    )
    try:
        await broker.close()
    except StoreError as error:
        log.debug("broker_killed error=%r", str(error))


@asynccontextmanager
async def running_broker(
    *,
    directory: Path | None = None,
    nameserver: NameServer | None = None,
    clock: Clock = SYSTEM_CLOCK,
    files: Files | None = None,
    **options: Any,
) -> AsyncIterator[RunningBroker]:
    """Run a name server and a broker. ``options`` are those of :class:`BrokerOptions`, by kerolox's names or
    RocketMQ's keys. With a ``directory`` the files stay; with a ``nameserver`` the broker registers there."""
    own = broker_settings(options)
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
            "property_filter": True,  # the same as in `kerolox up`
            "send_wait_ms": 10_000,  # test machines are busy: no send is rejected for having waited
            **SMALL,
            **own,
        }
        files = MortalFiles() if files is None else files
        broker = Broker(BrokerOptions(**settings), clock=clock, files=files)
        running = RunningBroker(await broker.__aenter__(), nameserver, files)
        try:
            yield running
        finally:
            await running.stop()
