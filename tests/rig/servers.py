"""Our programs as processes that a nursery starts, in networks of their own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.peers.ours import OurServer

from .nursery import Child, Nursery

COMMAND = "tests.rig.nursery:command"
SHIFTED_COMMAND = "tests.rig.nursery:shifted_command"
# What a process that is one of these commands imports.
BROKER = ("kerolox.broker.broker", "kerolox.cli.main", "kerolox.cli.broker", "kerolox.net.loop")


class NurseryServer(OurServer):
    """Serves until it is stopped or killed. ``function`` is given the command."""

    def __init__(
        self,
        home: Path,
        nursery: Nursery,
        network: int,
        command: Sequence[str],
        *,
        function: str = COMMAND,
    ) -> None:
        super().__init__(home, command, r"ready on \S+")
        self._function = function
        self._nursery = nursery
        self._network = network

    def launch(self) -> Child:
        return self.run(self._function, self.command)

    def run(self, function: str, given: Any) -> Child:
        """Another process in the same place."""
        return self._nursery.start(function, given, self.home, self._network)
