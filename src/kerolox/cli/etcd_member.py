"""``kerolox etcd-member``, which ``kerolox cluster up`` runs: a member of etcd that goes with its parent.

etcd is a program of its own. This process starts it, says in the same line as our servers when it is ready,
and stops it: when it is told to, when its parent has ended, and, where the kernel helps, when it is killed.
"""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kerolox.cli.output import JsonFlag, echo, one_line_errors
from kerolox.errors import KeroloxError

if TYPE_CHECKING:
    import asyncio

READY_S = 60.0
STOP_S = 1.0  # when all stop, one that leads looks for 6 s for another to lead; a kill loses nothing
LOOK_S = 0.05
PARENT_LOOK_S = 0.5
_SET_PARENT_DEATH_SIGNAL = 1  # of Linux's prctl


class EtcdNotStarted(KeroloxError):
    """The program is not there, or ended."""


@one_line_errors
def serve(
    config_file: Annotated[Path, typer.Option("--config-file", "-c", help="Its settings.")],
    parent: Annotated[int | None, typer.Option(hidden=True, help="Stop when this process ends.")] = None,
    json: JsonFlag = False,
) -> None:
    """Run one member of an etcd cluster on this machine."""
    from kerolox.net.loop import run
    from kerolox.protocol.bodies.properties_text import read_properties
    from kerolox.testing.etcd import EtcdPlace, find_etcd, member_command

    program = find_etcd()
    if program is None:
        raise EtcdNotStarted("etcd is not installed: apt-get install etcd-server, or give --etcd ENDPOINTS")
    settings = read_properties(config_file.read_bytes())
    places = {}
    for entry in settings["members"].split(";"):
        name, client, peer = entry.split("=")
        places[name] = EtcdPlace(client, peer)
    name = settings["name"]
    command = member_command(program, name, Path(settings["dataDir"]), places)
    run(_serve(command, places[name].client, parent))


async def _serve(command: list[str], address: str, parent: int | None) -> None:
    import asyncio

    from kerolox.cli.serving import stop_signals

    told = stop_signals()
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=sys.stderr, preexec_fn=_end_with_parent
    )
    ended = asyncio.ensure_future(process.wait())
    try:
        async with asyncio.timeout(READY_S):
            while not ended.done() and not await asyncio.to_thread(_is_healthy, address):
                if await _told_within(told, LOOK_S):
                    break
        if not ended.done():
            echo(f"kerolox etcd-member ready on {address}")
            sys.stdout.flush()
        while not ended.done() and (parent is None or os.getppid() == parent):
            if await _told_within(told, PARENT_LOOK_S):
                break
        if ended.done() and not told.is_set():
            raise EtcdNotStarted(f"etcd ended with code {ended.result()}: its words are above")
    finally:
        if not ended.done():
            process.terminate()
            try:
                async with asyncio.timeout(STOP_S):
                    await ended
            except TimeoutError:
                process.kill()


async def _told_within(told: asyncio.Event, time_s: float) -> bool:
    import asyncio

    try:
        async with asyncio.timeout(time_s):
            await told.wait()
    except TimeoutError:
        return False
    return True


def _is_healthy(address: str) -> bool:
    """Whether it answers, and has a cluster."""
    import urllib.request

    try:
        with urllib.request.urlopen(f"http://{address}/health", timeout=1) as answer:
            return b'"true"' in answer.read()
    except OSError:
        return False


def _end_with_parent() -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
