"""``kerolox etcd-member``, which ``kerolox cluster up`` runs: a member of etcd that goes with its parent.

etcd is a program of its own. This process starts it, says in the same line as our servers when it is ready,
and stops it: when it is told to, when its parent has ended, and, where the kernel helps, when it is killed.

A member that has lost its disk cannot come back as the same one: etcd ends with "member ... has already been
bootstrapped". While the others run, it is taken out of the cluster and added as a new member, as etcd's
manual says; the file ``<dataDir>.joins`` notes that the next start joins the others.
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
    name, directory = settings["name"], Path(settings["dataDir"])
    others = [place.client for each, place in places.items() if each != name]
    joins = _rejoin(name, directory, places[name].peer, others)
    command = member_command(program, name, directory, places, joins=joins)
    run(_serve(command, places[name].client, parent))


def _rejoin(name: str, directory: Path, peer: str, others: list[str]) -> bool:
    """Whether the member joins a cluster that exists. One that has no data, and is known to the others as a
    member that was there before, is replaced there by a new one."""
    note = directory.with_name(f"{directory.name}.joins")
    if (directory / "member").exists():
        return note.exists()
    url = f"http://{peer}"
    for other in others:
        known = _ask(other, "list", {})
        if known is None:
            continue
        mine = [one for one in known.get("members", ()) if url in one.get("peerURLs", ())]
        if not mine or not mine[0].get("name"):
            break  # it has not been there yet
        removed = _ask(other, "remove", {"ID": mine[0]["ID"]})
        if removed is None or _ask(other, "add", {"peerURLs": [url]}) is None:
            raise EtcdNotStarted(
                f"member {name} has lost its data in {directory}, and the other members do not replace it in "
                "the cluster now: more than half of them have to run. It is tried again; or by hand: "
                f"etcdctl member remove ID, etcdctl member add {name} --peer-urls={url}, and an empty file "
                f"{note}"
            )
        directory.parent.mkdir(parents=True, exist_ok=True)
        note.touch()
        echo(
            f"etcd member {name} had lost its data in {directory}: it was taken out of the cluster, and "
            "joins it as a new member",
            err=True,
        )
        return True
    return note.exists()


def _ask(address: str, what: str, asked: dict[str, object]) -> dict[str, Any] | None:
    """Ask a member about the members, by its gateway. None: it does not answer, or refuses."""
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
            time.sleep(ASK_S)  # a member was not heard for a moment: etcd refuses changes then
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
