"""What runs in the places: ``kerolox broker`` and its like, with a clock and a disk that a test can reach.

The nursery calls these in processes of their own.
"""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from kerolox.broker.broker import Broker
from kerolox.broker.options import BrokerOptions
from kerolox.cli.serving import LogLevel, load_options, log_to_stderr, serve_until_told
from kerolox.controller.controller import Controller
from kerolox.controller.options import ControllerOptions
from kerolox.nameserver.options import NamesrvOptions
from kerolox.nameserver.server import NameServer
from kerolox.net.loop import run
from kerolox.store import message_store
from kerolox.testing.faults import FaultyFiles

from .shifted_clock import ShiftedClock

POWER_OFF = signal.SIGUSR1


def broker(words: list[str]) -> None:
    """``config clock power``: with ``power`` the disk can lose what was not flushed."""
    config, page, power = words
    clock = ShiftedClock(page)
    options = _options(BrokerOptions, config, config_path=config)
    files = FaultyFiles() if power else None
    if files is not None:
        # A machine that lost its power begins anew: pages may be missing anywhere behind the last flush.
        message_store.boot_identity = lambda: f"start {clock.losses}"
        signal.signal(POWER_OFF, lambda *_: _lose_power(files, clock.seed))
    run(serve_until_told("broker", Broker(options, clock=clock, files=files)))


def controller(words: list[str]) -> None:
    """``config clock``"""
    config, page = words
    options = _options(ControllerOptions, config, config_store_path=config)
    run(serve_until_told("controller", Controller(options, clock=ShiftedClock(page))))


def nameserver(words: list[str]) -> None:
    """``config clock``"""
    config, page = words
    options = _options(NamesrvOptions, config)
    run(serve_until_told("nameserver", NameServer(options, clock=ShiftedClock(page))))


def execute(words: list[str]) -> None:
    """Another program."""
    os.execvp(words[0], words)


def _options(kind: Any, config: str, **flags: object) -> Any:
    log_to_stderr(LogLevel.INFO)
    loaded = load_options(kind, Path(config), flags)
    loaded.warn_unknown()
    return loaded.options


def _lose_power(files: FaultyFiles, seed: int) -> None:
    """Of what was not flushed a part is gone, and so is this process."""
    files.power_loss(seed, names=True)
    os.kill(os.getpid(), signal.SIGKILL)
