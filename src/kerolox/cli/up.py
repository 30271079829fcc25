"""``kerolox up``: a name server and brokers with one command and one data folder."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kerolox.cli.broker import by_key, refuse_own
from kerolox.cli.output import JsonFlag, echo, one_line_errors, output
from kerolox.cli.posture import AccessFlag, OpenFlag
from kerolox.cli.serving import (
    LogLevel,
    listen_address,
    load_options,
    log_to_stderr,
    options_document,
    options_table,
    stop_signals,
)
from kerolox.errors import KeroloxError, OptionError
from kerolox.protocol.bodies.properties_text import read_properties

if TYPE_CHECKING:
    import asyncio
    from asyncio.subprocess import Process

    from kerolox.broker.options import BrokerOptions
    from kerolox.nameserver.server import NameServer
    from kerolox.options import Loaded, Options

EXAMPLE = "Example: kerolox up --data ./kerolox-data"

BROKERS_MAX = 26
PORTS_APART = 10  # between brokers: each takes its own port, the one two below, and the next
CHILD_READY_S = 60.0
CHILD_STOP_S = 30.0

# Small files: an embedded store uses megabytes of disk instead of gigabytes, and opens at once.
EMBEDDED: dict[str, int | str] = {
    "mappedFileSizeCommitLog": 64 << 20,
    "mappedFileSizeConsumeQueue": 30_000 * 20,
    "maxHashSlotNum": 50_000,  # also in store/options.py, which the offline tools use to read these files
    "maxIndexNum": 200_000,
    "diskSpaceFreeEnough": 256 << 20,  # laptop disks are often 90% full
    "enablePropertyFilter": "true",  # so that `sql=` works without further settings
}


# Options that have separate flags here. The checks of open addresses use the values of these flags.
OWN = {
    "bindAddress": "--broker-listen HOST:PORT, which sets the address",
    "listenPort": "--broker-listen HOST:PORT, which sets the port",
    "storePathRootDir": "--data DIR; a broker's store is in DIR/broker-a",
    "brokerConfigPath": "--data DIR; changed options are in DIR/broker-a/broker.conf",
}


class BrokerEnded(KeroloxError):
    """A broker process exited unexpectedly."""


@one_line_errors
def serve(
    data: Annotated[Path, typer.Option(help="Data folder.", metavar="DIR", file_okay=False)] = Path(
        "kerolox-data"
    ),
    ephemeral: Annotated[
        bool, typer.Option("--ephemeral", help="Use a temporary folder and delete it at the stop.")
    ] = False,
    nameserver_listen: Annotated[
        str,
        typer.Option(
            help="Listen address of the name server. Port 0 picks a free port.", metavar="HOST:PORT"
        ),
    ] = "127.0.0.1:9876",
    broker_listen: Annotated[
        str,
        typer.Option(
            help="Listen address of the broker. Port 0 picks a free port. More brokers use ports ten apart.",
            metavar="HOST:PORT",
        ),
    ] = "127.0.0.1:10911",
    advertised_host: Annotated[
        str | None, typer.Option(help="Address advertised to clients. Default: detected.", metavar="HOST")
    ] = None,
    brokers: Annotated[
        int,
        typer.Option(min=1, max=BROKERS_MAX, help="Number of brokers. Several run as separate processes."),
    ] = 1,
    access: AccessFlag = False,
    open_to_all: OpenFlag = False,
    settings: Annotated[
        list[str] | None,
        typer.Option("--set", help="Set a broker option by RocketMQ's key. Repeatable.", metavar="KEY=VALUE"),
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Print every option with its value and source, then exit.")
    ] = False,
    json: JsonFlag = False,
    log_level: Annotated[LogLevel, typer.Option(help="Lowest log level, on stderr.")] = LogLevel.WARNING,
) -> None:
    """Run a name server and a broker in one process until SIGTERM or SIGINT.

    Non-loopback addresses require --access or --open.
    """
    import tempfile

    from kerolox.broker.options import BrokerOptions
    from kerolox.cli.access_folder import AccessFolder
    from kerolox.cli.posture import check_posture
    from kerolox.net.loop import run

    chosen = settings or []
    refuse_own(chosen, OWN if brokers == 1 else OWN | {"brokerName": "one broker (--brokers 1) for a name"})
    by_key(BrokerOptions, chosen)  # raises for a wrong option before any server starts
    nameserver_at = listen_address(nameserver_listen, "--nameserver-listen")
    broker_at = listen_address(broker_listen, "--broker-listen")
    with tempfile.TemporaryDirectory(prefix="kerolox-") as temporary:
        place = Path(temporary) if ephemeral and not print_config else data
        hosts = (nameserver_at[0], broker_at[0])
        check_posture(hosts, access=access, open_to_all=open_to_all, folder=AccessFolder(place))
        servers = _Servers(place, nameserver_at, broker_at, brokers, advertised_host, chosen)
        if access:
            servers.secure(make=not print_config)
        if print_config:
            _print_config(servers, json)
            return
        log_to_stderr(log_level)
        if brokers == 1:
            run(_serve_in_process(servers))
        else:
            run(_serve_processes(servers, log_level))


@dataclass
class _Servers:
    """Servers to run, with their settings."""

    data: Path
    nameserver_at: tuple[str, int]
    broker_at: tuple[str, int]
    count: int
    advertised_host: str | None
    settings: list[str]  # --set values for brokers
    access: dict[str, str] = field(default_factory=dict)  # access control settings, by RocketMQ's keys

    @property
    def registers_elsewhere(self) -> bool:
        """True if a setting makes the brokers register at other name servers than the one run here."""
        return any(setting.partition("=")[0] == "namesrvAddr" for setting in self.settings)

    def config_file(self, name: str) -> Path:
        """Return the file of options changed at run time; create an empty one for a new broker."""
        path = self.data / name / "broker.conf"
        if not path.exists():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("# Options of this broker; changes at run time are written here.\n")
        return path

    def embedded(self, file: Path) -> list[str]:
        """Return the ``--set`` values for small files, without those that the broker's file sets."""
        kept = read_properties(file.read_bytes()) if file.exists() else {}
        return [f"{key}={value}" for key, value in EMBEDDED.items() if key not in kept]

    def secure(self, *, make: bool) -> None:
        from kerolox.cli.access_folder import AccessFolder
        from kerolox.cli.posture import secured

        given = dict(setting.split("=", 1) for setting in self.settings)
        hosts = (self.nameserver_at[0], self.broker_at[0])
        self.access = secured(AccessFolder(self.data), hosts, given, make=make)
        if "brokerClusterName" in given:
            self.access["accessCluster"] = given["brokerClusterName"]

    def access_of(self, cls: type[Options]) -> dict[str, Any]:
        """Return the access control settings that this kind of server supports, by option name."""
        from kerolox.options import specs

        known = {spec.key for spec in specs(cls)}
        return by_key(cls, [f"{key}={value}" for key, value in self.access.items() if key in known])

    def nameserver(self, brokers_awaited: int) -> NameServer:
        from kerolox.nameserver.options import NamesrvOptions

        access = self.access_of(NamesrvOptions)
        return nameserver_in(self.data, self.nameserver_at, brokers_awaited, access)

    def broker_options(
        self, nameserver: str, number: int, *, show_only: bool = False
    ) -> Loaded[BrokerOptions]:
        from kerolox.broker.options import BrokerOptions

        name = broker_name(number)
        file = self.data / name / "broker.conf" if show_only else self.config_file(name)
        own: dict[str, Any] = {
            "bind_address": self.broker_at[0],
            "listen_port": _port(self.broker_at, number),
            "broker_name": name,
            "store_path": str(self.data / name),
            "nameservers": _reachable(nameserver),
            "config_path": str(file),
            **by_key(BrokerOptions, self.embedded(file)),
            **self.access_of(BrokerOptions),
        }
        chosen = {"advertised_host": self.advertised_host, **by_key(BrokerOptions, self.settings)}
        loaded = load_options(BrokerOptions, file if file.exists() else None, {**own, **chosen})
        for key in own.keys() - chosen.keys():
            loaded.sources[key] = "kerolox up"
        return loaded

    def say_ready(self, nameserver: str, brokers: list[str]) -> None:
        from kerolox.cli.access_folder import AccessFolder

        host = brokers[0].rpartition(":")[0]
        port = nameserver.rpartition(":")[2]
        shown = f"{host}:{port}" if _reachable(nameserver) != nameserver else nameserver
        echo(f"kerolox ready: nameserver {shown}, broker {', '.join(brokers)}")
        if self.access:
            for line in AccessFolder(self.data).client_lines(shown, self.access):
                echo(line)
        sys.stdout.flush()


def nameserver_in(
    data: Path,
    at: tuple[str, int],
    brokers_awaited: int = 1,
    access: Mapping[str, Any] = MappingProxyType({}),
) -> NameServer:
    """Return a name server with its files in ``data``.

    It answers clients only after ``brokers_awaited`` brokers have registered. Otherwise it would report an
    existing topic as unknown.
    """
    from kerolox.nameserver.options import NamesrvOptions
    from kerolox.nameserver.server import NameServer

    options = NamesrvOptions(
        bind_address=at[0],
        listen_port=at[1],
        kv_config_path=str(data / "nameserver" / "kvConfig.json"),
        config_store_path=str(data / "nameserver" / "namesrv.properties"),
        **access,
    )
    return NameServer(options, brokers_awaited=brokers_awaited)


async def _serve_in_process(servers: _Servers) -> None:
    from kerolox.broker.broker import Broker

    told = stop_signals()
    # A broker that registers elsewhere never registers here, so the name server must not wait for it.
    async with servers.nameserver(0 if servers.registers_elsewhere else 1) as nameserver:
        loaded = servers.broker_options(nameserver.address, 0)
        async with Broker(loaded.options) as broker:
            servers.say_ready(nameserver.address, [broker.address])
            await told.wait()


def _print_config(servers: _Servers, json: bool) -> None:
    """Print the options of all servers that would run."""
    from kerolox.options import Loaded

    host, port = servers.nameserver_at
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    options = servers.nameserver(servers.count).options
    given = {"bind_address", "listen_port", "kv_config_path", "config_store_path"}
    given |= servers.access_of(type(options)).keys()
    shown: dict[str, Loaded[Any]] = {"nameserver": Loaded(options, dict.fromkeys(given, "kerolox up"), {})}
    for number in range(servers.count):
        shown[broker_name(number)] = servers.broker_options(address, number, show_only=True)
    document = {name: options_document(loaded) for name, loaded in shown.items()}
    output(json).show(document, *(options_table(loaded, name) for name, loaded in shown.items()))


async def _serve_processes(servers: _Servers, log_level: LogLevel) -> None:
    import asyncio

    told = stop_signals()
    async with servers.nameserver(0 if servers.registers_elsewhere else servers.count) as nameserver:
        children: list[Process] = []
        try:
            for number in range(servers.count):  # one by one, so that each started process is ended on errors
                child = await _spawn(servers, nameserver.address, number, log_level)
                children.append(child)
            ready = asyncio.gather(*(_ready(number, child) for number, child in enumerate(children)))
            async with asyncio.timeout(CHILD_READY_S):
                addresses = await ready
            servers.say_ready(nameserver.address, addresses)
            await _told_or_ended(told, children)
        finally:
            await asyncio.gather(*map(_end, children))


def broker_name(number: int) -> str:
    return f"broker-{chr(ord('a') + number)}"


def _port(broker_at: tuple[str, int], number: int) -> int:
    host, first = broker_at
    port = first + PORTS_APART * number if first else 0
    if port > 65535:
        raise OptionError("--broker-listen", f"{host}:{first}", f"room for broker {number + 1} above it")
    return port


def _reachable(address: str) -> str:
    """Return the loopback address for a server that listens on all addresses."""
    return address.replace("0.0.0.0:", "127.0.0.1:").replace("[::]:", "[::1]:")


# --- brokers as processes --------------------------------------------------------------------------------


async def _spawn(servers: _Servers, nameserver: str, number: int, log_level: LogLevel) -> Process:
    import asyncio
    import os

    from kerolox.broker.options import BrokerOptions
    from kerolox.options import specs

    host, port = servers.broker_at[0], _port(servers.broker_at, number)
    name = broker_name(number)
    known = {spec.key: spec for spec in specs(BrokerOptions)}
    access = {known[key]: value for key, value in servers.access.items() if key in known}
    # Every user of the machine can read command lines, so secrets are passed in the environment.
    secret = {spec.environment: value for spec, value in access.items() if spec.secret}
    told = [f"{spec.key}={value}" for spec, value in access.items() if not spec.secret]
    file = servers.config_file(name)
    embedded = servers.embedded(file)
    flags = [word for setting in [*embedded, *told, *servers.settings] for word in ("--set", setting)]
    if not servers.registers_elsewhere:
        flags += ["--nameserver", _reachable(nameserver)]
    if servers.advertised_host:
        flags += ["--advertised-host", servers.advertised_host]
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "kerolox", "broker",
        "--listen", f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        "--name", name,
        "--store", str(servers.data / name),
        "--config-file", str(file),
        "--parent", str(os.getpid()),
        "--log-level", log_level.value,
        *flags,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **secret},
        start_new_session=True,  # Ctrl-C reaches only this process, which then stops the brokers
    )  # fmt: skip


async def _ready(number: int, child: Process) -> str:
    assert child.stdout is not None
    line = (await child.stdout.readline()).decode()
    if " ready on " not in line:
        raise BrokerEnded(f"{broker_name(number)} did not start. See its output above")
    return line.split()[-1]


async def _told_or_ended(told: asyncio.Event, children: list[Process]) -> None:
    import asyncio

    waits: list[asyncio.Future[Any]] = [asyncio.ensure_future(told.wait())]
    waits += [asyncio.ensure_future(child.wait()) for child in children]
    await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    for wait in waits:
        wait.cancel()
    if not told.is_set():
        for number, child in enumerate(children):
            if child.returncode is not None:
                raise BrokerEnded(
                    f"{broker_name(number)} exited with code {child.returncode}. The other brokers were "
                    "stopped. See its output above"
                )


async def _end(child: Process) -> None:
    import asyncio

    if child.returncode is not None:
        return
    child.terminate()
    try:
        async with asyncio.timeout(CHILD_STOP_S):
            await child.wait()
    except TimeoutError:
        child.kill()
        await child.wait()
