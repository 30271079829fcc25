"""``kerolox etcd-member``, run by ``kerolox cluster up``: an etcd member that stops with its parent.

etcd is a separate program. This process starts it, prints the same ready line as kerolox's servers, and stops
it on a signal, when the parent has ended, and (on Linux) when this process is killed.

A member that lost its disk cannot restart under its old identity: etcd exits with "member ... has already
been bootstrapped". While the other members run, it is removed from the cluster and added as a new member, as
etcd's manual describes. The file ``<dataDir>.joins`` records that the next start joins the existing cluster.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kerolox.cli.output import JsonFlag, echo, one_line_errors
from kerolox.errors import KeroloxError

if TYPE_CHECKING:
    import asyncio

READY_S = 60.0
ASK_S = 1.0
ASKED_TIMES = 5
STOP_S = 1.0  # when all stop, the etcd leader seeks a successor for 6 s; killing it loses no data
LOOK_S = 0.05
PARENT_LOOK_S = 0.5
_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux's prctl


class EtcdNotStarted(KeroloxError):
    """The etcd program is not installed, or exited."""


@one_line_errors
def serve(
    config_file: Annotated[Path, typer.Option("--config-file", "-c", help="Settings of the member.")],
    parent: Annotated[int | None, typer.Option(hidden=True, help="Stop when this process ends.")] = None,
    json: JsonFlag = False,
) -> None:
    """Run one member of an etcd cluster on this machine."""
    from kerolox.net.loop import run
    from kerolox.protocol.bodies.properties_text import read_properties
    from kerolox.testing.etcd import EtcdPlace, find_etcd, member_command

    program = find_etcd()
    if program is None:
        raise EtcdNotStarted(
            "etcd is not installed. Install it (apt-get install etcd-server), or give --etcd ENDPOINTS"
        )
    settings = read_properties(config_file.read_bytes())
    places = {}
    for entry in settings["members"].split(";"):
        name, client, peer = entry.split("=")
        places[name] = EtcdPlace(client, peer)
    name, directory = settings["name"], Path(settings["dataDir"])
    others = [place.client for each, place in places.items() if each != name]
    joins = _rejoin(name, directory, places[name].peer, others)
    command = member_command(program, name, directory, places, joins=joins)
    run(_serve(command, places[name].client, parent))


def _rejoin(name: str, directory: Path, peer: str, others: list[str]) -> bool:
    """Return True if the member must join an existing cluster.

    A member without data that was started before is replaced by a new member first. At its first start the
    others may know its name already: they have the same list of members.
    """
    note = directory.with_name(f"{directory.name}.joins")
    if (directory / "member").exists():
        return note.exists()
    started = directory.with_name(f"{directory.name}.started")
    if not started.exists():
        directory.parent.mkdir(parents=True, exist_ok=True)
        started.touch()  # a member whose disk was replaced fails now, and joins at its next start
        return False
    url = f"http://{peer}"
    for other in others:
        known = _ask(other, "list", {})
        if known is None:
            continue
        mine = [one for one in known.get("members", ()) if url in one.get("peerURLs", ())]
        if not mine or not mine[0].get("name"):
            break  # the member has not joined before
        removed = _ask(other, "remove", {"ID": mine[0]["ID"]})
        if removed is None or _ask(other, "add", {"peerURLs": [url]}) is None:
            raise EtcdNotStarted(
                f"member {name} lost its data in {directory}, and the other members could not replace it: "
                "more than half of them must run. The start is retried. To replace it manually: etcdctl "
                f"member remove ID, etcdctl member add {name} --peer-urls={url}, then create the empty file "
                f"{note}"
            )
        directory.parent.mkdir(parents=True, exist_ok=True)
        note.touch()
        echo(
            f"etcd member {name} lost its data in {directory}: it was removed from the cluster and joins as "
            "a new member",
            err=True,
        )
        return True
    return note.exists()


def _ask(address: str, what: str, asked: dict[str, object]) -> dict[str, Any] | None:
    """Send a membership request to a member's HTTP gateway. Return None if it fails or is rejected."""
    import json
    import urllib.error
    import urllib.request

    url, data = f"http://{address}/v3/cluster/member/{what}", json.dumps(asked).encode()
    for _ in range(ASKED_TIMES):
        try:
            with urllib.request.urlopen(urllib.request.Request(url, data), timeout=ASK_S) as answer:
                told: dict[str, Any] = json.loads(answer.read())
                return told
        except (OSError, ValueError) as error:
            if not isinstance(error, urllib.error.HTTPError):
                return None
            time.sleep(ASK_S)  # etcd rejects changes while it has lost contact with a member
    return None


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
            raise EtcdNotStarted(f"etcd exited with code {ended.result()}. See its output above")
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
    """Return True if the member answers and belongs to a healthy cluster."""
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
