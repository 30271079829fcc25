"""``kerolox up``: a name server and brokers with one command and one data folder."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kerolox.cli.broker import by_key, refuse_own
from kerolox.cli.output import JsonFlag, echo, one_line_errors, output
from kerolox.cli.posture import AccessFlag, OpenFlag
from kerolox.cli.serving import (
    LogLevel,
    LogLevelOption,
    PrintConfigFlag,
    listen_address,
    load_options,
    log_to_stderr,
    options_document,
    options_table,
)
from kerolox.errors import KeroloxError, OptionError
from kerolox.protocol.bodies.properties_text import read_properties
from kerolox.supervise.embedded import (
    EMBEDDED,
    PORTS_APART,
    bracketed,
    nameserver_in,
    reachable,
)

if TYPE_CHECKING:
    import asyncio

    from kerolox.broker.options import BrokerOptions
    from kerolox.nameserver.server import NameServer
    from kerolox.options import Loaded, Options
    from kerolox.supervise.process import ServerProcess

EXAMPLE = "Example: kerolox up --data ./kerolox-data"

BROKERS_MAX = 26
BROKER_STOP_S = 30.0

# Options that have separate flags here. The checks of open addresses use the values of these flags.
OWN = {
    "bindAddress": "--broker-listen HOST:PORT, which sets the address",
    "listenPort": "--broker-listen HOST:PORT, which sets the port",
    "grpcListen": "--grpc-listen HOST:PORT",
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
    grpc_listen: Annotated[
        str | None,
        typer.Option(
            help="Listen address for RocketMQ 5's clients, which speak gRPC. Default: no such port.",
            metavar="HOST:PORT",
        ),
    ] = None,
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
    print_config: PrintConfigFlag = False,
    json: JsonFlag = False,
    log_level: LogLevelOption = LogLevel.WARNING,
) -> None:
    """Run a name server and a broker in one process until SIGTERM or SIGINT.

    Non-loopback addresses require --access or --open.
    """
    import tempfile

    from kerolox.access.folder import AccessFolder
    from kerolox.broker.options import BrokerOptions
    from kerolox.cli.posture import check_posture
    from kerolox.net.loop import run

    chosen = settings or []
    refuse_own(chosen, OWN if brokers == 1 else OWN | {"brokerName": "one broker (--brokers 1) for a name"})
    by_key(BrokerOptions, chosen)  # raises for a wrong option before any server starts
    nameserver_at = listen_address(nameserver_listen, "--nameserver-listen")
    broker_at = listen_address(broker_listen, "--broker-listen")
    hosts = [nameserver_at[0], broker_at[0]]
    if grpc_listen is not None:
        grpc_at = listen_address(grpc_listen, "--grpc-listen")
        hosts.append(grpc_at[0])
        if brokers > 1:
            raise OptionError("--grpc-listen", grpc_listen, "one broker (--brokers 1)")
        chosen = [*chosen, f"grpcListen={bracketed(grpc_at[0])}:{grpc_at[1]}"]
    with tempfile.TemporaryDirectory(prefix="kerolox-") as temporary:
        place = Path(temporary) if ephemeral and not print_config else data
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

    def secure(self, *, make: bool) -> None:
        from kerolox.access.folder import AccessFolder

        given = dict(setting.split("=", 1) for setting in self.settings)
        hosts = (self.nameserver_at[0], self.broker_at[0])
        self.access = AccessFolder(self.data).secured_settings(hosts, given, make=make)
        if "brokerClusterName" in given:
            self.access["accessCluster"] = given["brokerClusterName"]

    def access_of(self, cls: type[Options]) -> dict[str, Any]:
        """Return the access control settings that this kind of server supports, by option name."""
        from kerolox.options import specs

        known = {spec.key for spec in specs(cls)}
        return by_key(cls, _texts({key: value for key, value in self.access.items() if key in known}))

    def nameserver(self, brokers_awaited: int) -> NameServer:
        from kerolox.nameserver.options import NamesrvOptions

        access = self.access_of(NamesrvOptions)
        return nameserver_in(self.data, self.nameserver_at, brokers_awaited, access)

    def own_settings(self, nameserver: str, number: int, file: Path) -> dict[str, str]:
        """Return the settings of a broker that the operator has not chosen, by RocketMQ's keys."""
        from kerolox.broker.options import BrokerOptions
        from kerolox.options import specs

        name = broker_name(number)
        known = {spec.key for spec in specs(BrokerOptions)}
        kept = read_properties(file.read_bytes()) if file.exists() else {}
        return {
            "bindAddress": self.broker_at[0],
            "listenPort": str(_port(self.broker_at, number)),
            "brokerName": name,
            "storePathRootDir": str(self.data / name),
            "namesrvAddr": _reachable(nameserver),
            **{key: str(value) for key, value in EMBEDDED.items() if key not in kept},
            **{key: value for key, value in self.access.items() if key in known},
        }

    def broker_options(
        self, nameserver: str, number: int, *, show_only: bool = False
    ) -> Loaded[BrokerOptions]:
        from kerolox.broker.options import BrokerOptions

        name = broker_name(number)
        file = self.data / name / "broker.conf" if show_only else self.config_file(name)
        settings = self.own_settings(nameserver, number, file)
        own = {"config_path": str(file), **by_key(BrokerOptions, _texts(settings))}
        chosen = {"advertised_host": self.advertised_host, **by_key(BrokerOptions, self.settings)}
        loaded = load_options(BrokerOptions, file if file.exists() else None, {**own, **chosen})
        for key in own.keys() - chosen.keys():
            loaded.sources[key] = "kerolox up"
        return loaded

    def broker_process(self, nameserver: str, number: int, log_level: LogLevel) -> ServerProcess:
        """Return a broker in a process of its own."""
        from kerolox.broker.options import BrokerOptions
        from kerolox.options import specs
        from kerolox.supervise.process import ServerProcess

        name = broker_name(number)
        file = self.config_file(name)
        settings = self.own_settings(nameserver, number, file)
        # Every user of the machine can read command lines, so secrets are passed in the environment.
        secret = {spec.key: spec.environment for spec in specs(BrokerOptions) if spec.secret}
        environment = {secret[key]: settings.pop(key) for key in secret.keys() & settings.keys()}
        texts = [*_texts(settings), *self.settings]
        words = ["broker", "--config-file", str(file), "--log-level", log_level.value]
        words += [word for text in texts for word in ("--set", text)]
        if self.advertised_host:
            words += ["--advertised-host", self.advertised_host]
        return ServerProcess(name, words, environment=environment, stop_s=BROKER_STOP_S)

    def say_ready(self, nameserver: str, brokers: list[str], grpc: str = "") -> None:
        from kerolox.access.folder import AccessFolder

        host = brokers[0].rpartition(":")[0]
        port = nameserver.rpartition(":")[2]
        shown = f"{host}:{port}" if _reachable(nameserver) != nameserver else nameserver
        more = f", gRPC {grpc}" if grpc else ""
        echo(f"kerolox ready: nameserver {shown}, broker {', '.join(brokers)}{more}")
        if self.access:
            for line in AccessFolder(self.data).client_lines(shown, self.access):
                echo(line)
        sys.stdout.flush()


async def _serve_in_process(servers: _Servers) -> None:
    from kerolox.broker.broker import Broker
    from kerolox.supervise.stopping import stop_signals

    stop = stop_signals()
    # A broker that registers elsewhere never registers here, so the name server must not wait for it.
    async with servers.nameserver(0 if servers.registers_elsewhere else 1) as nameserver:
        loaded = servers.broker_options(nameserver.address, 0)
        async with Broker(loaded.options) as broker:
            servers.say_ready(nameserver.address, [broker.address], broker.grpc_address)
            await stop.wait()


def _print_config(servers: _Servers, json: bool) -> None:
    """Print the options of all servers that would run."""
    from kerolox.options import Loaded

    host, port = servers.nameserver_at
    address = f"{bracketed(host)}:{port}"
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

    from kerolox.supervise.stopping import stop_signals

    stop = stop_signals()
    async with servers.nameserver(0 if servers.registers_elsewhere else servers.count) as nameserver:
        brokers = [
            servers.broker_process(nameserver.address, number, log_level) for number in range(servers.count)
        ]
        try:
            for broker in brokers:  # one by one, so that each started process is ended on errors
                await broker.launch()
            await asyncio.gather(*(broker.ready() for broker in brokers))
            servers.say_ready(nameserver.address, [broker.address for broker in brokers])
            await _told_or_ended(stop, brokers)
        finally:
            await asyncio.gather(*(broker.stop() for broker in brokers))


async def _told_or_ended(stop: asyncio.Event, brokers: list[ServerProcess]) -> None:
    """Wait until ``stop`` is set. Raises BrokerEnded when a broker exits before."""
    import asyncio

    waits = [asyncio.ensure_future(broker.ended()) for broker in brokers]
    stopping = asyncio.ensure_future(stop.wait())
    await asyncio.wait([stopping, *waits], return_when=asyncio.FIRST_COMPLETED)
    for wait in (stopping, *waits):
        wait.cancel()
    for broker, wait in zip(brokers, waits, strict=True):
        if wait.done() and not wait.cancelled() and not stop.is_set():
            raise BrokerEnded(
                f"{broker.name} exited with code {wait.result()}. The other brokers were stopped. See its "
                "output above"
            )


def _texts(settings: Mapping[str, str]) -> list[str]:
    return [f"{key}={value}" for key, value in settings.items()]


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
    host, _, port = address.rpartition(":")
    return f"{bracketed(reachable(host.strip('[]')))}:{port}"
