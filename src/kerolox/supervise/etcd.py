"""Process ``kerolox etcd-member`` of ``kerolox cluster up``: an etcd member that stops with its parent.

etcd is a separate program. This process starts it, reports that it is ready as kerolox's servers do, and
stops it on a signal, when the parent has ended, and (on Linux) when this process is killed.

A member that lost its disk cannot restart under its old identity: etcd exits with "member ... has already
been bootstrapped". While the other members run, it is removed from the cluster and added as a new member, as
etcd's manual describes. The file ``<dataDir>.joins`` records that the next start joins the existing cluster.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import signal
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from kerolox.errors import KeroloxError
from kerolox.supervise.stopping import set_within, stop_signals, wait_for_stop

READY_S = 60.0
ASK_S = 1.0
ASKED_TIMES = 5
STOP_S = 1.0  # when all stop, the etcd leader seeks a successor for 6 s; killing it loses no data
LOOK_S = 0.05
_SET_PARENT_DEATH_SIGNAL = 1  # PR_SET_PDEATHSIG of Linux's prctl


class EtcdNotStarted(KeroloxError):
    """The etcd program is not installed, or exited."""


Tell = Callable[[str], object]


@dataclass(frozen=True)
class EtcdPlace:
    """Listen addresses of a member: for clients, and for the other members."""

    client: str  # host:port
    peer: str


def find_etcd() -> str | None:
    """Return the path of the program; None if it is not installed."""
    return shutil.which("etcd")


def member_command(
    program: str, name: str, directory: Path, places: Mapping[str, EtcdPlace], *, joins: bool = False
) -> list[str]:
    """Return the command that runs the member of this name, on one machine, with small files and fast
    elections. ``joins``: the cluster exists already."""
    own = places[name]
    cluster = ",".join(f"{each}=http://{place.peer}" for each, place in places.items())
    return [
        program,
        *("--name", name),
        *("--data-dir", str(directory)),
        *("--listen-client-urls", f"http://{own.client}"),
        *("--advertise-client-urls", f"http://{own.client}"),
        *("--listen-peer-urls", f"http://{own.peer}"),
        *("--initial-advertise-peer-urls", f"http://{own.peer}"),
        *("--initial-cluster", cluster),
        *("--initial-cluster-token", "kerolox"),
        *("--heartbeat-interval", "50"),
        *("--election-timeout", "500"),
        *("--auto-compaction-retention", "1"),
        *("--snapshot-count", "10000"),
        *(("--initial-cluster-state", "existing") if joins else ()),
    ]


class EtcdMember(NamedTuple):
    """Member that can be started: its command line, and its address for clients."""

    command: list[str]
    address: str


def prepare_member(settings: Mapping[str, str], notice: Tell) -> EtcdMember:
    """Return the member described by a settings file. ``notice`` gets sentences for the operator.

    Replaces a member that lost its data, which may take seconds. Raises EtcdNotStarted.
    """
    program = find_etcd()
    if program is None:
        raise EtcdNotStarted(
            "etcd is not installed. Install it (apt-get install etcd-server), or give --etcd ENDPOINTS"
        )
    places = {}
    for entry in settings["members"].split(";"):
        name, client, peer = entry.split("=")
        places[name] = EtcdPlace(client, peer)
    name, directory = settings["name"], Path(settings["dataDir"])
    others = [place.client for each, place in places.items() if each != name]
    joins = _rejoin(name, directory, places[name].peer, others, notice)
    command = member_command(program, name, directory, places, joins=joins)
    return EtcdMember(command, places[name].client)


def _rejoin(name: str, directory: Path, peer: str, others: list[str], notice: Tell) -> bool:
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
        notice(
            f"etcd member {name} lost its data in {directory}: it was removed from the cluster and joins as "
            "a new member"
        )
        return True
    return note.exists()


def _ask(address: str, what: str, asked: dict[str, object]) -> dict[str, Any] | None:
    """Send a membership request to a member's HTTP gateway. Return None if it fails or is rejected."""
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


async def run_member(member: EtcdMember, parent: int | None, ready: Tell) -> None:
    """Run a member until a signal arrives or the parent has ended. ``ready`` gets its address."""
    stop = stop_signals()
    process = await asyncio.create_subprocess_exec(
        *member.command, stdin=asyncio.subprocess.DEVNULL, stdout=sys.stderr, preexec_fn=_end_with_parent
    )
    ended = asyncio.ensure_future(process.wait())
    stopping = asyncio.ensure_future(wait_for_stop(stop, parent))
    try:
        async with asyncio.timeout(READY_S):
            while not ended.done() and not await asyncio.to_thread(_is_healthy, member.address):
                if await set_within(stop, LOOK_S):
                    break
        if not ended.done():
            ready(member.address)
        await asyncio.wait([ended, stopping], return_when=asyncio.FIRST_COMPLETED)
        if ended.done() and not stop.is_set():
            raise EtcdNotStarted(f"etcd exited with code {ended.result()}. See its output above")
    finally:
        stopping.cancel()
        if not ended.done():
            process.terminate()
            try:
                async with asyncio.timeout(STOP_S):
                    await ended
            except TimeoutError:
                process.kill()


def _is_healthy(address: str) -> bool:
    """Return True if the member answers and belongs to a healthy cluster."""
    try:
        with urllib.request.urlopen(f"http://{address}/health", timeout=1) as answer:
            return b'"true"' in answer.read()
    except OSError:
        return False


def _end_with_parent() -> None:
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(_SET_PARENT_DEATH_SIGNAL, signal.SIGKILL)
