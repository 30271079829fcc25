"""``kerolox up``: a name server and brokers with one command and one folder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kerolox.cli.broker import by_key
from kerolox.cli.output import JsonFlag, one_line_errors, output
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

if TYPE_CHECKING:
    import asyncio
    from asyncio.subprocess import Process

    from kerolox.broker.options import BrokerOptions
    from kerolox.nameserver.server import NameServer
    from kerolox.options import Loaded

EXAMPLE = "Example: kerolox up --data ./kerolox-data"

BROKERS_MAX = 26
PORTS_APART = 10  # between brokers: each takes its own port, the one two below, and the next
CHILD_READY_S = 60.0
CHILD_STOP_S = 30.0

# Small files: an embedded store takes megabytes of disk, not gigabytes, and opens at once.
EMBEDDED: dict[str, int | str] = {
    "mappedFileSizeCommitLog": 64 << 20,
    "mappedFileSizeConsumeQueue": 30_000 * 20,
    "maxHashSlotNum": 50_000,  # also in store/options.py, by which the offline tools know these files
    "maxIndexNum": 200_000,
    "diskSpaceFreeEnough": 256 << 20,  # a laptop's disk is often nine tenths full
    "enablePropertyFilter": "true",  # who tries out `sql=` should not have to find this option first
}


class BrokerEnded(KeroloxError):
    """A broker process stopped by itself."""


@one_line_errors
def serve(
    data: Annotated[Path, typer.Option(help="Folder of everything that is kept.", metavar="DIR")] = Path(
        "kerolox-data"
    ),
    ephemeral: Annotated[bool, typer.Option("--ephemeral", help="Keep nothing after the stop.")] = False,
    nameserver_listen: Annotated[
        str, typer.Option(help="Where the name server listens; port 0 takes a free one.", metavar="HOST:PORT")
    ] = "127.0.0.1:9876",
    broker_listen: Annotated[
        str,
        typer.Option(
            help="Where the broker listens; port 0 takes a free one. Further brokers take ports ten apart.",
            metavar="HOST:PORT",
        ),
    ] = "127.0.0.1:10911",
    advertised_host: Annotated[
        str | None, typer.Option(help="Address clients are told; found out if not given.", metavar="HOST")
    ] = None,
    brokers: Annotated[
        int,
        typer.Option(min=1, max=BROKERS_MAX, help="Brokers; more than one run as processes of their own."),
    ] = 1,
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set", help="A broker's option by RocketMQ's key; may be repeated.", metavar="KEY=VALUE"
        ),
    ] = None,
    print_config: Annotated[
        bool, typer.Option("--print-config", help="Show every option and its source, and exit.")
    ] = False,
    json: JsonFlag = False,
    log_level: Annotated[LogLevel, typer.Option(help="What to log, on stderr.")] = LogLevel.WARNING,
) -> None:
    """Run a name server and a broker in one process until SIGTERM or SIGINT."""
    import tempfile

    from kerolox.broker.options import BrokerOptions
    from kerolox.net.loop import run

    chosen = settings or []
    by_key(BrokerOptions, chosen)  # a wrong one is told before anything starts
    nameserver_at, broker_at = listen_address(nameserver_listen), listen_address(broker_listen)
    if print_config:
        _print_config(data, nameserver_at, broker_at, advertised_host, brokers, chosen, json)
        return
    log_to_stderr(log_level)
    flags = (["--advertised-host", advertised_host] if advertised_host else []) + _flags(chosen)
    with tempfile.TemporaryDirectory(prefix="kerolox-") as temporary:
        place = Path(temporary) if ephemeral else data
        if brokers == 1:
            run(_serve_in_process(place, nameserver_at, broker_at, advertised_host, chosen))
        else:
            run(
                _serve_processes(
                    place, nameserver_at, broker_at, brokers, [*flags, "--log-level", log_level.value]
                )
            )


async def _serve_in_process(
    data: Path,
    nameserver_at: tuple[str, int],
    broker_at: tuple[str, int],
    advertised_host: str | None,
    settings: list[str],
) -> None:
    from kerolox.broker.broker import Broker

    told = stop_signals()
    # A broker that is told to register elsewhere would be waited for in vain.
    elsewhere = any(setting.partition("=")[0] == "namesrvAddr" for setting in settings)
    async with _nameserver(data, nameserver_at, 0 if elsewhere else 1) as nameserver:
        loaded = _broker_options(data, nameserver.address, broker_at, 0, advertised_host, settings)
        async with Broker(loaded.options) as broker:
            _say_ready(nameserver.address, [broker.address])
            await told.wait()


def _broker_options(
    data: Path,
    nameserver: str,
    broker_at: tuple[str, int],
    number: int,
    advertised_host: str | None,
    settings: list[str],
) -> Loaded[BrokerOptions]:
    from kerolox.broker.options import BrokerOptions

    name = broker_name(number)
    own: dict[str, Any] = {
        "bind_address": broker_at[0],
        "listen_port": _port(broker_at, number),
        "broker_name": name,
        "store_path": str(data / name),
        "nameservers": _reachable(nameserver),
        "config_path": str(data / name / "broker.conf"),
        **by_key(BrokerOptions, [f"{key}={value}" for key, value in EMBEDDED.items()]),
    }
    chosen = {"advertised_host": advertised_host, **by_key(BrokerOptions, settings)}
    loaded = load_options(BrokerOptions, None, {**own, **chosen})
    for key in own.keys() - chosen.keys():
        loaded.sources[key] = "kerolox up"
    return loaded


def _print_config(
    data: Path,
    nameserver_at: tuple[str, int],
    broker_at: tuple[str, int],
    advertised_host: str | None,
    brokers: int,
    settings: list[str],
    json: bool,
) -> None:
    """The options of all servers that would run."""
    from kerolox.options import Loaded

    host, port = nameserver_at
    address = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    given = {"bind_address", "listen_port", "kv_config_path", "config_store_path"}
    servers: dict[str, Loaded[Any]] = {
        "nameserver": Loaded(_nameserver(data, nameserver_at).options, dict.fromkeys(given, "kerolox up"), {})
    }
    for number in range(brokers):
        servers[broker_name(number)] = _broker_options(
            data, address, broker_at, number, advertised_host, settings
        )
    document = {name: options_document(loaded) for name, loaded in servers.items()}
    output(json).show(document, *(options_table(loaded, name) for name, loaded in servers.items()))


async def _serve_processes(
    data: Path, nameserver_at: tuple[str, int], broker_at: tuple[str, int], count: int, flags: list[str]
) -> None:
    import asyncio

    told = stop_signals()
    async with _nameserver(data, nameserver_at, count) as nameserver:
        children: list[Process] = []
        try:
            for number in range(count):  # one by one: those that were started are ended, whatever happens
                child = await _spawn(data, nameserver.address, broker_at, number, flags)
                children.append(child)
            ready = asyncio.gather(*(_ready(number, child) for number, child in enumerate(children)))
            async with asyncio.timeout(CHILD_READY_S):
                addresses = await ready
            _say_ready(nameserver.address, addresses)
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


def _nameserver(data: Path, at: tuple[str, int], brokers_awaited: int = 1) -> NameServer:
    """It answers clients once the brokers beside it have registered: what it cannot know yet is not
    "no such topic"."""
    from kerolox.nameserver.options import NamesrvOptions
    from kerolox.nameserver.server import NameServer

    options = NamesrvOptions(
        bind_address=at[0],
        listen_port=at[1],
        kv_config_path=str(data / "nameserver" / "kvConfig.json"),
        config_store_path=str(data / "nameserver" / "namesrv.properties"),
    )
    return NameServer(options, brokers_awaited=brokers_awaited)


def _reachable(address: str) -> str:
    """Where this machine finds a server that listens on all its addresses."""
    return address.replace("0.0.0.0:", "127.0.0.1:").replace("[::]:", "[::1]:")


def _say_ready(nameserver: str, brokers: list[str]) -> None:
    host = brokers[0].rpartition(":")[0]
    port = nameserver.rpartition(":")[2]
    shown = f"{host}:{port}" if _reachable(nameserver) != nameserver else nameserver
    typer.echo(f"kerolox ready: nameserver {shown}, broker {', '.join(brokers)}")
    sys.stdout.flush()


def _flags(settings: list[str]) -> list[str]:
    embedded = [f"{key}={value}" for key, value in EMBEDDED.items()]
    return [word for setting in [*embedded, *settings] for word in ("--set", setting)]


# --- brokers as processes --------------------------------------------------------------------------------


async def _spawn(
    data: Path, nameserver: str, broker_at: tuple[str, int], number: int, flags: list[str]
) -> Process:
    import asyncio
    import os

    host, port = broker_at[0], _port(broker_at, number)
    name = broker_name(number)
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", "kerolox", "broker",
        "--listen", f"[{host}]:{port}" if ":" in host else f"{host}:{port}",
        "--name", name,
        "--store", str(data / name),
        "--nameserver", _reachable(nameserver),
        "--parent", str(os.getpid()),
        *flags,
        stdout=asyncio.subprocess.PIPE,
        start_new_session=True,  # a Ctrl-C is for us, and we tell them
    )  # fmt: skip


async def _ready(number: int, child: Process) -> str:
    assert child.stdout is not None
    line = (await child.stdout.readline()).decode()
    if " ready on " not in line:
        raise BrokerEnded(f"{broker_name(number)} did not start; what it says is above")
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
                    f"{broker_name(number)} ended with code {child.returncode}; the others are stopped"
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
