"""``kerolox cluster up``, ``status`` and ``down``: a whole cluster on one machine, for trials and tests."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kerolox.cli.output import JsonFlag, OutputTable, echo, json_text, one_line_errors, output, plain, say
from kerolox.cli.posture import AccessFlag, OpenFlag
from kerolox.errors import OptionError

if TYPE_CHECKING:
    import asyncio

    from kerolox.access.folder import AccessFolder
    from kerolox.supervise.cluster import ClusterServers, ServerExit
    from kerolox.supervise.folder import ClusterFolder, ServerEntry
    from kerolox.supervise.layouts import Planned

UP_EXAMPLE = "Example: kerolox cluster up --like 2m-2s-sync --data ./cluster"
STATUS_EXAMPLE = "Example: kerolox cluster status --data ./cluster"
DOWN_EXAMPLE = "Example: kerolox cluster down --data ./cluster"

DOWN_S = 180.0
COLUMNS = ("name", "role", "broker", "id", "address", "followers at", "state", "pid", "restarts")
KEYS = ("name", "role", "broker", "broker_id", "address", "ha_address", "state", "pid", "restarts")

# Options that the cluster chooses for each broker.
_CHOSEN = "nothing: the cluster chooses it for each broker. To change it, edit the files in DIR/conf"
OWN = {
    "bindAddress": "--nameserver-listen HOST:PORT, whose host the brokers use too",
    "namesrvAddr": "--nameserver-listen HOST:PORT, of the cluster's own name server",
    "storePathRootDir": "--data DIR",
    **dict.fromkeys(("listenPort", "haListenPort", "brokerName", "brokerId", "brokerRole"), _CHOSEN),
}

DataOption = Annotated[Path, typer.Option(help="Data folder.", metavar="DIR", file_okay=False)]


@one_line_errors
def up(
    like: Annotated[
        str,
        typer.Option(
            help="Layout of the cluster: a folder of RocketMQ's conf (2m-2s-sync, 2m-2s-async or "
            "2m-noslave), or controller-3 (three brokers of one name under a controller).",
            metavar="NAME",
        ),
    ],
    data: DataOption = Path("cluster"),
    nameserver_listen: Annotated[
        str | None,
        typer.Option(
            help="Listen address of the name server; brokers use the same host. Port 0 picks a free port. "
            "Default: the address of the previous run, or 127.0.0.1:9876.",
            metavar="HOST:PORT",
        ),
    ] = None,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="Set an option of all brokers by RocketMQ's key. Repeatable.", metavar="KEY=VALUE"
        ),
    ] = None,
    controllers: Annotated[
        int | None,
        typer.Option(
            help="Number of controllers for controller-3: 1 or 3. Three share their state through etcd.",
            metavar="COUNT",
        ),
    ] = None,
    etcd: Annotated[
        str | None,
        typer.Option(
            help="Endpoints of an etcd that the controllers of controller-3 use. Default: with three "
            "controllers, three members are started on this machine; etcd must be installed.",
            metavar="URL,URL",
        ),
    ] = None,
    access: AccessFlag = False,
    open_to_all: OpenFlag = False,
    json: JsonFlag = False,
) -> None:
    """Run a cluster as processes on this machine until SIGTERM or SIGINT.

    Servers that exit are restarted. Non-loopback addresses require --access or --open.
    """
    from kerolox.access.folder import AccessFolder
    from kerolox.broker.options import BrokerOptions
    from kerolox.cli.broker import by_key, refuse_own
    from kerolox.cli.posture import check_posture
    from kerolox.cli.serving import listen_address
    from kerolox.net.loop import run
    from kerolox.supervise.cluster import ClusterServers
    from kerolox.supervise.folder import ClusterFolder
    from kerolox.supervise.layouts import layout

    layout(like)
    folder, users = ClusterFolder(data), AccessFolder(data)
    planned = _planned(folder, like, controllers, etcd)
    chosen = settings or []
    refuse_own(chosen, OWN)
    by_key(BrokerOptions, chosen)  # raises for a wrong option before any server starts
    if nameserver_listen is not None:
        listen_address(nameserver_listen, "--nameserver-listen")
    host, _ = folder.nameserver_at(nameserver_listen)
    given = dict(setting.split("=", 1) for setting in chosen)
    if open_to_all and folder.is_secured:
        known = f"{folder.path / 'conf'} sets authenticationEnabled=true"
        raise OptionError("--open", True, f"no --open: {known}. Edit the files there to open the cluster")
    check_posture([host], access=access or folder.is_secured, open_to_all=open_to_all, folder=users)
    lock = folder.take()
    try:
        secure = users.secured_settings([host], given) if access or folder.is_secured else {}
        new = folder.prepare(like, planned, nameserver_listen, given, etcd, secure)
        events = _Events(json, users, secure)
        servers = ClusterServers(folder, like, planned, lock, events.ended, events.started)
        if new:
            added = sorted({key for one in planned for key in one.added})
            stock = next((one.source.rpartition("/")[0] for one in planned if one.source), f"conf/{like}")
            events.note(
                f"The settings of RocketMQ's {stock} were written to {folder.path / 'conf'}. Added for one "
                f"machine: ports, paths, name server; and {', '.join(added)}. To change settings, edit these "
                "files: they are not overwritten."
            )
        run(_run(folder, servers, events))
    finally:
        folder.release()


def _planned(
    folder: ClusterFolder, like: str, controllers: int | None, etcd: str | None
) -> tuple[Planned, ...]:
    """Return the servers to run; for an existing cluster, those of the previous run. Raises OptionError."""
    from kerolox.controller.etcd_access import read_endpoints
    from kerolox.supervise.etcd import find_etcd
    from kerolox.supervise.layouts import CONTROLLED, layout

    if like != CONTROLLED:
        if controllers is not None or etcd is not None:
            raise OptionError("--like", like, f"{CONTROLLED}, for --controllers and --etcd")
        return layout(like)
    if etcd is not None:
        read_endpoints(etcd)
    before = [folder.settings(f"controller-{number}") for number in range(3)]
    count = sum(map(bool, before))
    if count:
        kept = before[0].get("etcdEndpoints")
        if controllers not in (None, count) or (etcd is not None and etcd != kept):
            raise OptionError(
                "--controllers",
                controllers,
                f"{count}, with etcd at {kept or 'none'}, as in {folder.path}; other values would lose the "
                "controllers' state. For a new cluster, choose another --data",
            )
        return layout(like, count, sum(bool(folder.settings(f"etcd-{number}")) for number in range(3)))
    if controllers not in (None, 1, 3):
        raise OptionError("--controllers", controllers, "1 or 3")
    own = 3 if controllers == 3 and etcd is None else 0
    if own and find_etcd() is None:
        raise OptionError(
            "--controllers",
            3,
            "etcd to be installed (apt-get install etcd-server), or --etcd URL,URL of a running one",
        )
    return layout(like, controllers or 1, own)


async def _run(folder: ClusterFolder, servers: ClusterServers, events: _Events) -> None:
    from kerolox.supervise.stopping import stop_signals

    stop = stop_signals()
    try:
        if await _unless_told(_start(folder, servers), stop):
            events.up(servers.entries())
            await servers.keep(stop)
    finally:
        events.note("Stopping: controllers and leaders first, then followers, then the others.")
        await servers.stop()
    events.stopped()


async def _start(folder: ClusterFolder, servers: ClusterServers) -> None:
    from kerolox.supervise.replicas import missing_replicas

    await servers.start()
    async with folder.dialer() as dialer:
        async for sentence in missing_replicas(servers.entries(), dialer):
            say(sentence)


async def _unless_told(work: Any, told: asyncio.Event) -> bool:
    """Run the work until it ends or ``told`` is set. Return True if it ended. Raises the work's errors."""
    import asyncio

    doing = asyncio.ensure_future(work)
    waiting = asyncio.ensure_future(told.wait())
    try:
        await asyncio.wait([doing, waiting], return_when=asyncio.FIRST_COMPLETED)
    finally:
        waiting.cancel()
        if not doing.done():
            doing.cancel()
            await asyncio.gather(doing, return_exceptions=True)
    if doing.cancelled():
        return False
    doing.result()
    return True


class _Events:
    """Event lines on stdout: sentences for people, or JSON objects with ``json``."""

    def __init__(self, json: bool, users: AccessFolder, access: Mapping[str, str]) -> None:
        """``access``: the access control settings of the servers; empty without access control."""
        self._json = json
        self._users = users
        self._access = access

    def note(self, text: str) -> None:
        if not self._json:
            self._line(text)

    def up(self, entries: list[ServerEntry]) -> None:
        nameserver = next(one.address for one in entries if one.role == "nameserver")
        if self._json:
            variables = self._users.client_variables(nameserver, self._access) if self._access else {}
            self._event("up", nameserver=nameserver, servers=entries, client=variables)
            return
        output(False).show(entries, _table(entries))
        controllers = ";".join(one.address for one in entries if one.role == "controller")
        told = f"; show the master: kerolox controller status -a '{controllers}'" if controllers else ""
        self._line(f"kerolox cluster ready: nameserver {nameserver}{told}")
        if self._access:
            for line in self._users.client_lines(nameserver, self._access):
                self._line(line)

    def ended(self, one: ServerExit) -> None:
        if self._json:
            details = {"code": one.code, "last_words": one.last_words, "again_in_s": one.again_in_s}
            self._event("ended", one.server, **details)
            return
        how = f"was killed by signal {-one.code}" if one.code < 0 else f"exited with code {one.code}"
        self._line(
            f"{one.server.name} (process {one.server.pid}) {how}; restart in {one.again_in_s:g} s. End of "
            f"its log: {one.last_words or 'empty'}"
        )

    def started(self, server: ServerEntry) -> None:
        if self._json:
            self._event("started", server)
        else:
            self._line(f"{server.name} was restarted as process {server.pid}.")

    def stopped(self) -> None:
        if self._json:
            self._event("stopped")

    def _event(self, what: str, server: ServerEntry | None = None, **details: Any) -> None:
        self._line(json_text({"event": what, **(plain(server) if server else {}), **details}))

    def _line(self, text: str) -> None:
        echo(text)
        sys.stdout.flush()


def _table(entries: list[ServerEntry]) -> OutputTable:
    return OutputTable(COLUMNS, [tuple(getattr(one, key) for key in KEYS) for one in entries])


@one_line_errors
def status(data: DataOption = Path("cluster"), json: JsonFlag = False) -> None:
    """Show the servers of a cluster created by ``cluster up``, running or not."""
    from kerolox.supervise.folder import ClusterFolder, NoCluster

    folder = ClusterFolder(data)
    entries = folder.read()
    if not entries:
        raise NoCluster(f"no cluster exists in {folder.path}. Start one: kerolox cluster up --data {data}")
    holder = folder.holder()
    if holder is None and not folder.is_left():
        for one in entries:  # a killed supervisor could not record the stop
            one.pid, one.state = None, "stopped"
    output(json).note(
        f"run by process {holder}" if holder else "not running. Start it again: kerolox cluster up"
    )
    output(json).show({"pid": holder, "servers": entries}, _table(entries))


@one_line_errors
def down(data: DataOption = Path("cluster"), json: JsonFlag = False) -> None:
    """Stop a cluster started by ``cluster up``, and wait until it has stopped."""
    import signal
    import time

    from kerolox.supervise.folder import ClusterFolder, ClusterRuns, NoCluster

    folder = ClusterFolder(data)
    holder = folder.holder() if folder.file.exists() else None
    if holder is None:
        raise NoCluster(f"no cluster is running in {folder.path}")
    os.kill(holder, signal.SIGTERM)
    until_s = time.monotonic() + DOWN_S
    while folder.holder() == holder:
        if time.monotonic() > until_s:
            raise ClusterRuns(
                f"process {holder} has not stopped after {DOWN_S:.0f} s. See the servers' logs in "
                f"{folder.path / 'logs'}"
            )
        time.sleep(0.05)
    output(json).report(f"stopped: process {holder} and its servers", {"stopped": holder})
