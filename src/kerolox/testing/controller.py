"""Controller for tests: on a free port, with its files in a temporary directory."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from kerolox.clock import SYSTEM_CLOCK, Clock
from kerolox.controller.controller import Controller
from kerolox.controller.options import ControllerOptions


@asynccontextmanager
async def running_controller(
    *, clock: Clock = SYSTEM_CLOCK, directory: Path | None = None, **options: Any
) -> AsyncIterator[Controller]:
    """Run a controller: ``async with running_controller() as controller: controller.address``.

    ``options`` are those of :class:`ControllerOptions` by kerolox's names. With a ``directory`` the files
    stay.
    """
    with tempfile.TemporaryDirectory(prefix="kerolox-controller-") as temporary:
        place = directory or Path(temporary)
        settings = {
            "bind_address": "127.0.0.1",
            "listen_port": 0,
            "store_path": str(place / "state"),
            "config_store_path": str(place / "controller.properties"),
            **options,
        }
        async with Controller(ControllerOptions(**settings), clock=clock) as controller:
            yield controller
