"""Controllers on simulated hosts: one with a file of its own, or several with a consensus engine behind
them."""

from __future__ import annotations

import os
import random

from kerolox.controller.carriers.carrier import Carrier
from kerolox.controller.carriers.embedded import EmbeddedCarrier
from kerolox.controller.controller import Controller
from kerolox.controller.options import ControllerOptions
from kerolox.controller.state import ReplicaGroup
from kerolox.net.tls import TlsMode

from .consensus import Engine, EngineCarrier
from .loop import Process
from .world import Host

PORT = 9878
COPIES_MAX = 10

Commits = list[tuple[str, ReplicaGroup | None]]


class RecordedFile(EmbeddedCarrier):
    """The carrier of one controller, whose commits are noted."""

    def __init__(self, directory: str, commits: Commits) -> None:
        super().__init__(directory)
        self._commits = commits
        self.copies: list[bytes] = []  # of the file, as an operator may have made them

    async def _commit_in_turn(self, token: int, name: str, revision: int, group: ReplicaGroup | None) -> int:
        number = await super()._commit_in_turn(token, name, revision, group)
        self._commits.append((name, group))
        self.copies = [*self.copies[1 - COPIES_MAX :], self.path.read_bytes()]
        return number

    def let_go(self) -> None:
        """The process that held the lock is gone."""
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None


class ControllerNode:
    """One controller, that is started and killed."""

    def __init__(self, host: Host, engine: Engine | None, commits: Commits, **options: object) -> None:
        self.host = host
        self.controller: Controller | None = None
        self._file: RecordedFile | None = None
        self._engine = engine
        self._commits = commits
        self._options = options

    @property
    def address(self) -> str:
        return f"{self.host.ip}:{PORT}"

    def start(self) -> None:
        process = self.host.begin()
        self.host.world.loop.start(process, self._run(process))

    def restore(self, chance: random.Random) -> str:
        """While it does not run: put an older copy of its file in place. Which one; empty: there is none."""
        if self._file is None or len(self._file.copies) < 2:
            return ""
        number = chance.randrange(len(self._file.copies) - 1)
        self._file.path.write_bytes(self._file.copies[number])
        return f"{len(self._file.copies) - 1 - number} changes older"

    def power_off(self, seed: int) -> None:
        self.host.power_off()

    async def _run(self, process: Process) -> None:
        directory = str(self.host.directory)
        carrier: Carrier
        if self._engine is not None:
            carrier = EngineCarrier(self._engine)
        else:
            carrier = own = RecordedFile(directory, self._commits)
            own.copies = [] if self._file is None else self._file.copies
            self._file = own
            process.on_death.append(own.let_go)
        options = ControllerOptions(
            bind_address=self.host.ip,
            peers=f"{self.host.name}-{self.address}",
            self_id=self.host.name,
            store_path=directory,
            config_store_path=os.path.join(directory, "controller.properties"),
            tls_mode=TlsMode.DISABLED,
            **self._options,  # type: ignore[arg-type]
        )
        self.controller = Controller(options, clock=self.host.clock, carrier=carrier)
        await self.controller.start()
