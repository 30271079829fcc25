"""Brokers on simulated hosts: whole ones, with small files in memory."""

from __future__ import annotations

import asyncio
import shutil
from typing import Any

from kerolox.broker.broker import Broker
from kerolox.broker.options import BrokerOptions
from kerolox.errors import KeroloxError
from kerolox.net.tls import TlsMode
from kerolox.store.disk.files import DiskUsage
from kerolox.testing.faults import FaultyFiles

from .clients import GROUP
from .loop import Process
from .world import Host

NAME, CLUSTER, PORT = "broker-a", "C", 10911
LOG_FILE_BYTES = 16 * 1024


class Disk(FaultyFiles):
    """Files of one host, through all lives of its broker."""

    def __init__(self, host: Host) -> None:
        super().__init__()
        self.usage = DiskUsage(total=1 << 40, free=1 << 39, available=1 << 39)
        self._host = host
        self._dying = False

    def tear_no_write(self) -> None:
        self._tear_after = None

    def _die(self) -> None:
        """Also in the middle of a write that is torn: from here on nothing of the process is heard."""
        super()._die()
        if not self._dying:
            self._dying = True
            self._host.end()
            self._dying = False


class BrokerNode:
    """One broker, that is started and killed."""

    def __init__(self, host: Host, **options: Any) -> None:
        self.host = host
        self.disk = Disk(host)
        self.broker: Broker | None = None  # of the process that runs, or ran last
        self.refusals: list[str] = []  # why it did not start
        self._options = options

    @property
    def address(self) -> str:
        return f"{self.host.ip}:{PORT}"

    @property
    def store_path(self) -> str:
        return str(self.host.directory / "store")

    @property
    def serves(self) -> bool:
        """It runs, and has started."""
        return self.host.is_up and self.broker is not None and self.broker.started

    # --- as it is now ---------------------------------------------------------------------------------------

    @property
    def id(self) -> int:
        """That the controller gave it; 0 before it is known."""
        return self._running.controlled.identity.id

    @property
    def epoch(self) -> int:
        """The newest in effect there."""
        return self._running.controlled.elections.mastership.epoch

    @property
    def leads(self) -> bool:
        return self._running.leadership.leads

    @property
    def end(self) -> int:
        return self._running.store.log.max_offset

    @property
    def confirmed(self) -> int:
        return self._running.store.progress.confirmed

    @property
    def is_cutting(self) -> bool:
        """Its log is being cut back: a leader that counts on what it had hears of it before."""
        return bool(self._running.store._truncations)

    def offsets(self, topic: str) -> dict[int, int]:
        """How far the readers are, by queue."""
        return dict(self._running.tables.offsets.offsets.get(f"{topic}@{GROUP}", {}))

    @property
    def _running(self) -> Any:
        assert self.broker is not None
        return self.broker

    # --- its life -------------------------------------------------------------------------------------------

    def start(self) -> None:
        process = self.host.begin()
        self.broker = None
        process.on_death.append(self.disk.kill)
        self.host.world.loop.start(process, self._run(process))

    def stop(self) -> None:
        """As SIGTERM: it ends by itself, after a while."""
        process = self.host.process
        if self.host.is_up and process is not None:
            self.host.world.loop.start(process, self._stop())

    async def _stop(self) -> None:
        if self.broker is not None:
            await self.broker.close()
        self.host.end()

    def power_off(self, seed: int) -> None:
        self.host.power_off()
        self.disk.power_loss(seed, names=True)
        self.host.boots += 1

    def wipe(self) -> None:
        shutil.rmtree(self.host.directory)
        self.host.directory.mkdir()
        self.disk = Disk(self.host)

    async def _run(self, process: Process) -> None:
        options = BrokerOptions(
            broker_name=NAME,
            cluster=CLUSTER,
            bind_address=self.host.ip,
            advertised_host=self.host.ip,
            listen_port=PORT,
            store_path=self.store_path,
            tls_mode=TlsMode.DISABLED,
            commit_log_file_bytes=LOG_FILE_BYTES,
            queue_file_bytes=100 * 20,
            index_slots=100,
            index_entries=400,
            default_topic_queues=2,
            timer_wheel=False,
            **self._options,
        )
        broker = Broker(options, clock=self.host.clock, files=self.disk)
        try:
            await broker.start()
        except KeroloxError as error:
            self.refusals.append(str(error))
            self.host.world.tell(f"NOT STARTED {type(error).__name__}: {error}")
            self.host.end()
            return
        self.broker = broker
        await asyncio.get_running_loop().create_future()
