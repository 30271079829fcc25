"""Name server and broker in a separate process that tests can kill.

::

    with broker_process() as broker:
        ...
        broker.kill()       # SIGKILL: connections close without notice, nothing is flushed
        broker.start()      # again, with the same addresses and files
"""

from __future__ import annotations

import re
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from kerolox.errors import KeroloxError
from kerolox.supervise.process import kerolox_command
from kerolox.testing.offsets import isolate_offsets

_READY = re.compile(r"^kerolox ready: nameserver (\S+), broker (\S+)")
STOP_S = 30.0


class BrokerProcess:
    """Process that runs ``kerolox up`` in a folder."""

    def __init__(self, directory: Path, *settings: str) -> None:
        self.directory = directory
        self.nameserver_address = self.address = "127.0.0.1:0"  # free ports; kept for later starts
        self._settings = settings
        self._process: subprocess.Popen[str] | None = None

    @property
    def pid(self) -> int | None:
        return None if self._process is None else self._process.pid

    @property
    def command(self) -> list[str]:
        return kerolox_command(
            *("up", "--data", str(self.directory)),
            *("--nameserver-listen", self.nameserver_address, "--broker-listen", self.address),
            *(word for setting in self._settings for word in ("--set", setting)),
        )

    def start(self) -> None:
        """Start the process, and wait until it is ready."""
        self.stop()
        self._process = subprocess.Popen(self.command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        found = _READY.match(self._process.stdout.readline())
        if found is None:
            self.kill()
            raise KeroloxError("kerolox up did not start; read its error on stderr")
        self.nameserver_address, self.address = found.groups()

    def kill(self) -> None:
        """Kill the process, like a crash."""
        self._end(kill=True)

    def stop(self) -> None:
        """Stop the process, and wait until it has ended."""
        self._end(kill=False)

    def _end(self, *, kill: bool) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        (process.kill if kill else process.terminate)()
        try:
            process.communicate(timeout=STOP_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()


@contextmanager
def broker_process(*settings: str, directory: Path | None = None) -> Iterator[BrokerProcess]:
    """Run a :class:`BrokerProcess`. ``settings`` are the broker's, by RocketMQ's keys:
    ``"flushDiskType=SYNC_FLUSH"``. With a ``directory`` its files stay."""
    isolate_offsets()
    with ExitStack() as stack:
        place = directory or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="kerolox-process-")))
        broker = BrokerProcess(place, *settings)
        stack.callback(broker.stop)
        broker.start()
        yield broker
